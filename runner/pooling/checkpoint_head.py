"""Says of a checkpoint, before its weights are loaded, which head it has: by the names and shapes of its weights and by config.json.

The weights decide. Where config.json says otherwise, or a head is one that we do not compute, the refusal names it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from ...configs.visible import visible
from ..core.errors import ModelError, first_line
from ..encoders.encoder import Encoder
from ..encoders.registry import encoder_class
from ..encoders.settings import check_setting
from .hidden_size import hidden_size
from .sentence_folder import read_sentence_folder
from .spec import ClassifierHead, EmbeddingHead, HeadLinear, HeadNorm, PoolingSpec, TokenHead, embedding_spec
from .weight_files import checkpoint_weights

Config = dict[str, Any]
Names = Mapping[str, tuple[int, ...]]  # names of weights, and their shapes
HeadWeights = dict[str, tuple[str, tuple[int, ...]]]  # by names without the body's prefix: names in the checkpoint, shapes

# Ends of architectures whose logits are of tokens, spans or choices.
OTHER_TASKS = {
    "ForTokenClassification": "gives logits to each token, not to a text",
    "ForProcessRewardModel": "gives a score to each step of a solution, at marker tokens",
    "ForQuestionAnswering": "marks a span of the text",
    "ForMultipleChoice": "chooses among several texts",
    "ForRewardModelWithGating": "weighs several rewards by a gate of its own code",
}
# Modules of heads with code of their own.
OTHER_HEADS = {
    "gating": "a gate that weighs several rewards (ArmoRM, QRM)",
    "regression_layer": "several rewards under a gate (ArmoRM, QRM)",
    "v_head": "a value head",
    "value_head": "a value head",
    "reward_head": "a reward head of its own code",
    "qa_outputs": "a head that marks spans",
}
CURE = "use a model with a sequence classifier's head"


@dataclass(slots=True, frozen=True)
class CheckpointHead:
    """A checkpoint's head, and what its files say of its logits.

    label_names: a name for each logit, in their order. activation: what the files have applied to the logits, as the last part of PyTorch's
    name in small letters ("sigmoid", "identity"); None where they say nothing.
    """

    head: ClassifierHead | EmbeddingHead | TokenHead
    label_names: tuple[str, ...]
    activation: str | None = None

    @property
    def spec(self) -> PoolingSpec:
        """How hidden states become the logits."""
        return PoolingSpec(self.head, len(self.label_names))


def checkpoint_head(folder: Path, config: Config, home: Path | None = None) -> CheckpointHead:
    """Reads which head the checkpoint in ``folder`` has. Raises ModelError, which names what was found, where it is not served.

    home: the folder of sentence-transformers' files, None for the same. Where LogitScore is among them, the model is a generative
    reranker; where a Dense gives scores, it is a cross-encoder over pooled states. Any other with a language model's head alone is refused.
    """
    named = _activation(home or folder, config)
    if (spec := _module_head(home or folder, config)) is not None:
        return CheckpointHead(spec.head, _label_names(spec.dimensions, {}, folder), named)
    architectures = config.get("architectures") or []
    found = architectures if isinstance(architectures, str) else " and ".join(map(str, architectures))
    for end, what in OTHER_TASKS.items():
        if found.endswith(end):
            raise ModelError(f"model.path: {folder} is a {visible(found)}, which {what}; {CURE}")
    try:
        shapes = {name: tuple(array.shape) for name, array in checkpoint_weights(folder).items()}
        head = find_head(folder, shapes, config)
        _check_widths(head, hidden_size(config))
    except ModelError as error:
        raise ModelError(f"model.path: {folder}{f' ({visible(found)})' if found else ''}: {error}") from error
    return CheckpointHead(head, _label_names(head.labels, config, folder), named)


def find_head(folder: Path, weights: Names, config: Config) -> ClassifierHead:
    """Returns the head among the weights of a checkpoint. Raises ModelError where there is none, or one that is not served."""
    encoder = encoder_class(config)
    heads = _head_weights(weights, encoder)
    for name in heads:
        if (root := name.split(".")[0]) in OTHER_HEADS:
            raise ModelError(f"its weights hold {visible(name)}: {OTHER_HEADS[root]}, which is not served; {CURE}")
    head = _decoder_head(heads, config) if encoder is None else _encoder_head(heads, config)
    if head is None:
        others = visible(", ".join(sorted({name.rpartition(".")[0] for name in heads})) or "no head")
        if encoder is not None:
            raise ModelError(f"expected the head of a sequence classifier, found {others}; {CURE}. job: embed makes vectors with this one")
        raise ModelError(
            f"expected a head called score, found {others}; {CURE}, or in job: classify name the tokens of a generative reranker, "
            "such as yes and no, in classify.true_token and classify.false_token"
        )
    return replace(head, folder=folder)


def _head_weights(weights: Names, encoder: type[Encoder] | None) -> HeadWeights:
    """Returns the weights that are not the body's, by their names without the body's prefix."""
    if encoder is None:
        return {name: (name, shape) for name, shape in weights.items() if name.split(".")[0] in {"score", *OTHER_HEADS}}
    found: HeadWeights = {}
    for name, shape in weights.items():
        for bare in encoder.head_weights({name: cast(Any, shape)}):  # it looks at names alone
            found[bare] = name, shape
    return found


def _decoder_head(heads: HeadWeights, config: Config) -> ClassifierHead | None:
    """A linear layer, or two with a ReLU between them (Qwen2ForRewardModel, INF-ORM): of the last token that is not the pad's id."""
    if "score.weight" in heads:
        layers = [_linear(heads, "score")]
    elif {"score.0.weight", "score.2.weight"} <= set(heads):
        layers = [_linear(heads, "score.0", "relu"), _linear(heads, "score.2")]
    else:
        return None
    if beyond := set(heads) - {f"{layer.name}.{part}" for layer in layers for part in ("weight", "bias")}:
        raise ModelError(f"its head has {visible(sorted(beyond)[0])} too, which is not served; {CURE}")
    return ClassifierHead("last", tuple(layers), _pad(config))


def _encoder_head(heads: HeadWeights, config: Config) -> ClassifierHead | None:
    """The heads of transformers' …ForSequenceClassification, told apart by their weights."""
    if {"classifier.dense.weight", "classifier.out_proj.weight"} <= set(heads):  # RoBERTa, XLM-R, MPNet, ELECTRA
        between = "gelu" if config.get("model_type") == "electra" else "tanh"
        return ClassifierHead("first", (_linear(heads, "classifier.dense", between), _linear(heads, "classifier.out_proj")))
    if "classifier.weight" not in heads:
        return None
    last = _linear(heads, "classifier")
    if "head.dense.weight" in heads:  # ModernBERT
        dense = _linear(heads, "head.dense", config.get("classifier_activation") or "gelu")
        norm = HeadNorm(_name(heads, "head.norm"), dense.outputs, config.get("norm_eps") or 1e-5, "head.norm.bias" in heads)
        check_setting(config, "classifier_pooling", ("cls", "mean"), "cls")
        return ClassifierHead("mean" if config.get("classifier_pooling") == "mean" else "first", (dense, norm, last))
    if "pre_classifier.weight" in heads:  # DistilBERT
        return ClassifierHead("first", (_linear(heads, "pre_classifier", "relu"), last))
    if "pooler.dense.weight" in heads:  # BERT
        return ClassifierHead("first", (_linear(heads, "pooler.dense", "tanh"), last))
    return None


def _linear(heads: HeadWeights, name: str, activation: str | None = None) -> HeadLinear:
    shape = heads[f"{name}.weight"][1]
    if len(shape) != 2 or f"{name}.scales" in heads:
        kind = "is quantized" if f"{name}.scales" in heads else f"has the shape {list(shape)}"
        raise ModelError(f"the weight of its head {name} {kind}; expected a matrix of floats; fetch the model anew, unquantized")
    return HeadLinear(_name(heads, name), shape[1], shape[0], f"{name}.bias" in heads, activation)


def _name(heads: HeadWeights, module: str) -> str:
    """Returns a module's name in the checkpoint."""
    return heads[f"{module}.weight"][0].removesuffix(".weight")


def _check_widths(head: ClassifierHead, width: int) -> None:
    """Raises ModelError where a layer takes another number of values than it is given; states have ``width``."""
    layers = [layer for layer in head.layers if isinstance(layer, HeadLinear)]
    if layers[0].inputs != width:
        raise ModelError(
            f"the model's states have {width} numbers, and its head's {layers[0].name} takes {layers[0].inputs}; fetch the model anew"
        )
    for before, behind in pairwise(layers):
        if before.outputs != behind.inputs:
            raise ModelError(
                f"its head's {before.name} gives {before.outputs} numbers, and {behind.name} takes {behind.inputs}; fetch the model anew"
            )


def _pad(config: Config) -> int | None:
    """Returns the id that does not count as a text's last token, as transformers finds it: its family's own where config.json is silent."""
    text: Config = config.get("text_config") or config
    if "pad_token_id" in text:
        return text["pad_token_id"]
    from transformers import CONFIG_MAPPING

    kind = str(text.get("model_type") or config.get("model_type"))
    return getattr(CONFIG_MAPPING[kind](), "pad_token_id", None) if kind in CONFIG_MAPPING else None


def _label_names(labels: int, config: Config, folder: Path) -> tuple[str, ...]:
    """Returns a name for each logit. Raises ModelError where config.json names another number of labels than the head has."""
    found = config.get("id2label")
    names: dict[str, Any] = found if isinstance(found, dict) else {}
    said = len(names) if names else config.get("num_labels")
    if said is not None and said != labels:
        raise ModelError(
            f"model.path: {folder}: config.json names {said} labels, the head's weight has {labels}; expected the same number; "
            "mend id2label in config.json, or fetch the model anew"
        )
    return tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(labels))


def _activation(folder: Path, config: Config) -> str | None:
    """Returns the activation that sentence-transformers would take from the files: the folder's own, or else config.json's."""
    inner: Config = config.get("sentence_transformers") or {}
    named = (
        _json(folder / "config_sentence_transformers.json").get("activation_fn")
        or inner.get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    return str(named).rpartition(".")[2].lower() if named else None


def _module_head(home: Path, config: Config) -> PoolingSpec | None:
    """Returns the head that sentence-transformers' modules are; None where the transformer has its own."""
    try:
        said = read_sentence_folder(home)
        if said.scores and said.head is not None:
            return embedding_spec(said.head, hidden_size(config))
    except ModelError as error:
        raise ModelError(f"model.path: {error}") from error
    if said.tokens is None:
        return None
    size = (config.get("text_config") or config).get("vocab_size")
    for token in (said.tokens.yes, said.tokens.no):
        if token is not None and isinstance(size, int) and not 0 <= token < size:
            raise ModelError(f"model.path: {home}: LogitScore reads the token {token}, the model has {size} tokens; fetch the model anew")
    return PoolingSpec(said.tokens, 1)


def _json(path: Path) -> Any:
    """Returns what a file holds, {} where it is not there. Raises ModelError where it is not readable."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"model.path: {path} is not readable: {first_line(error)}; fetch the model anew") from error

"""Tests which head is found in a checkpoint's files, and how a head that is not served is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.encoders.registry import ENCODERS
from mlx_bulk.runner.images.tower_processor import TWO_TOWERS
from mlx_bulk.runner.pooling.checkpoint_head import checkpoint_head, find_head
from mlx_bulk.runner.pooling.spec import ClassifierHead, DenseLayer, EmbeddingHead, HeadLinear, HeadNorm, PoolingSpec, TokenHead

from ...encoder_checkpoints import tiny_bert, tiny_electra, tiny_modernbert, tiny_roberta
from ...hf_classifiers import CLASSIFIERS

H = 8
LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"], "hidden_size": H, "pad_token_id": 3}
LABELS = {"0": "no", "1": "maybe", "2": "yes"}


def folder(path: Path, weights: dict[str, tuple[int, ...]]) -> Path:
    path.mkdir(exist_ok=True)
    body = {"model.embed_tokens.weight": (11, H), "model.norm.weight": (H,)}
    arrays = {name: mx.zeros(shape) for name, shape in (body | weights).items()}
    mx.save_safetensors(str(path / "model.safetensors"), arrays)
    return path


def test_a_decoders_score_has_a_row_a_label(tmp_path: Path):
    found = checkpoint_head(folder(tmp_path, {"score.weight": (3, H)}), LLAMA | {"id2label": LABELS})
    assert found.head == ClassifierHead("last", (HeadLinear("score", H, 3, bias=False),), 3, tmp_path)
    assert found.spec == PoolingSpec(found.head, 3)
    assert (found.label_names, found.activation) == (("no", "maybe", "yes"), None)


def test_the_weights_number_of_labels_counts_where_the_config_names_none(tmp_path: Path):
    found = checkpoint_head(folder(tmp_path, {"score.weight": (1, H), "score.bias": (1,)}), LLAMA)
    assert found.spec == PoolingSpec(ClassifierHead("last", (HeadLinear("score", H, 1, bias=True),), 3, tmp_path), 1)
    assert found.label_names == ("LABEL_0",)


@pytest.mark.parametrize(
    ("config", "pad"),
    [({"pad_token_id": None}, None), ({"pad_token_id": 0}, 0), ({"text_config": {"pad_token_id": 5}}, 5)],
)
def test_the_pads_id_is_the_configs(config: dict[str, Any], pad: int | None):
    assert find_head(Path(), {"score.weight": (1, H)}, LLAMA | config).pad == pad


@pytest.mark.parametrize(("kind", "pad"), [("llama", None), ("gemma2", 0), ("phi3", 32000), ("no_such_type", None)])
def test_a_config_without_a_pads_id_has_its_familys(kind: str, pad: int | None):
    assert find_head(Path(), {"score.weight": (1, H)}, {"model_type": kind}).pad == pad


def test_a_score_may_be_two_layers():
    shapes = {"score.0.weight": (12, H), "score.0.bias": (12,), "score.2.weight": (1, 12), "score.2.bias": (1,)}
    head = find_head(Path(), shapes, LLAMA)
    assert head.layers == (HeadLinear("score.0", H, 12, bias=True, activation="relu"), HeadLinear("score.2", 12, 1, bias=True))


def test_encoders_heads_are_told_by_their_weights(tmp_path: Path):
    def head(path: Path) -> Any:
        return checkpoint_head(path, json.loads((path / "config.json").read_text())).head

    pooler = HeadLinear("bert.pooler.dense", 32, 32, bias=True, activation="tanh")
    bert = (pooler, HeadLinear("classifier", 32, 3, bias=True))
    assert head(tiny_bert(tmp_path / "bert", 3)) == ClassifierHead("first", bert, folder=tmp_path / "bert")
    dense = HeadLinear("classifier.dense", 32, 32, bias=True, activation="tanh")
    roberta = (dense, HeadLinear("classifier.out_proj", 32, 1, bias=True))
    assert head(tiny_roberta(tmp_path / "roberta", 1)) == ClassifierHead("first", roberta, folder=tmp_path / "roberta")
    electra = (replace(dense, activation="gelu"), roberta[1])
    assert head(tiny_electra(tmp_path / "electra", 1)) == ClassifierHead("first", electra, folder=tmp_path / "electra")
    modern = (
        HeadLinear("head.dense", 32, 32, bias=False, activation="gelu"),
        HeadNorm("head.norm", 32, 1e-5, bias=False),
        HeadLinear("classifier", 32, 2, bias=True),
    )
    assert head(tiny_modernbert(tmp_path / "cls", 2)) == ClassifierHead("first", modern, folder=tmp_path / "cls")
    by_mean = tiny_modernbert(tmp_path / "mean", 2, classifier_pooling="mean")
    assert head(by_mean) == ClassifierHead("mean", modern, folder=by_mean)


def test_distilberts_head_has_a_relu():
    shapes = {"pre_classifier.weight": (H, H), "pre_classifier.bias": (H,), "classifier.weight": (2, H), "classifier.bias": (2,)}
    layers = find_head(Path(), shapes, {"model_type": "distilbert"}).layers
    assert layers == (HeadLinear("pre_classifier", H, H, bias=True, activation="relu"), HeadLinear("classifier", H, 2, bias=True))


def test_each_encoders_head_is_held_to_transformers():
    """Heads with weights of the same names differ in their activations: a new encoder needs its row among the oracle's classifiers.

    Models with two towers make vectors alone.
    """
    assert set(ENCODERS) - set(TWO_TOWERS) <= set(CLASSIFIERS)


def test_logit_score_names_the_tokens_of_a_generative_reranker(tmp_path: Path):
    path = folder(tmp_path, {})
    modules = [{"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""}]
    modules += [{"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1_LogitScore"}]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_LogitScore").mkdir()
    (path / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": 7, "false_token_id": 2}))
    (path / "config_sentence_transformers.json").write_text(json.dumps({"activation_fn": "torch.nn.modules.linear.Identity"}))
    found = checkpoint_head(path, LLAMA)
    assert found.spec == PoolingSpec(TokenHead(7, 2), 1)
    assert (found.label_names, found.activation) == (("LABEL_0",), "identity")
    inner = folder(tmp_path / "0_Transformer", {})
    assert checkpoint_head(inner, LLAMA, path) == found


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path):
    path = tmp_path / "1_LogitScore"
    path.mkdir()
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.LogitScore", "path": path.name},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (path / "config.json").write_text(json.dumps({"true_token_id": 7, "false_token_id": 11}))
    with pytest.raises(ModelError, match="LogitScore reads the token 11, the model has 11 tokens; fetch the model anew"):
        checkpoint_head(tmp_path, LLAMA | {"vocab_size": 11})


def test_a_dense_that_gives_scores_is_a_cross_encoders_head(tmp_path: Path):
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": place}
        for kind, place in (("Transformer", ""), ("Pooling", "1"), ("Dense", "2"))
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    dense = {"in_features": H, "out_features": 2, "activation_function": "torch.nn.modules.linear.Identity", "module_output_name": "scores"}
    for place, settings in (("1", {"pooling_mode": "mean"}), ("2", dense)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text(json.dumps(settings))
    mx.save_safetensors(str(tmp_path / "2" / "model.safetensors"), {"linear.weight": mx.zeros((2, H)), "linear.bias": mx.zeros(2)})
    found = checkpoint_head(tmp_path, LLAMA)
    layer = DenseLayer(tmp_path / "2", H, 2, "Identity", bias=True)
    assert found.spec == PoolingSpec(EmbeddingHead(("mean",), (layer,)), 2)
    assert found.label_names == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    "config",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
    ],
)
def test_the_activation_is_the_one_that_config_json_names(tmp_path: Path, config: dict[str, Any]):
    assert checkpoint_head(folder(tmp_path, {"score.weight": (1, H)}), LLAMA | config).activation == "sigmoid"


BERT = {"model_type": "bert"}
REFUSED: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], str]] = {
    "no head": (
        {"lm_head.weight": (11, H)},
        {"model_type": "llama"},
        r"expected a head called score, found no head; .*classify\.true_token",
    ),
    "a value head": ({"v_head.summary.weight": (1, H)}, LLAMA, r"v_head\.summary\.weight: a value head, which is not served"),
    "ArmoRM": ({"regression_layer.weight": (19, H)}, LLAMA, r"several rewards under a gate \(ArmoRM, QRM\), which is not served"),
    "tokens": ({"score.weight": (3, H)}, {"architectures": "Qwen2ForTokenClassification"}, "gives logits to each token"),
    "steps": ({"score.0.weight": (H, H)}, {"architectures": ["Qwen2ForProcessRewardModel"]}, "a score to each step of a solution"),
    "tokens of BERT": (
        {"classifier.weight": (3, H)},
        BERT,
        r"expected the head of a sequence classifier, found classifier, .*; use a .* head\. job: embed makes vectors with this one",
    ),
    "labels": ({"score.weight": (2, H)}, LLAMA | {"id2label": LABELS}, "names 3 labels, the head's weight has 2; expected the same number"),
    "quantized": ({"score.weight": (2, 1), "score.scales": (2, 1)}, LLAMA, "head score is quantized; expected a matrix of floats"),
    "more layers": ({"score.weight": (2, H), "score.1.weight": (2, 2)}, LLAMA, r"its head has score\.1\.weight too"),
    "width": ({"score.weight": (2, 9)}, LLAMA, "the model's states have 8 numbers, and its head's score takes 9; fetch the model anew"),
    "widths": ({"score.0.weight": (12, H), "score.2.weight": (1, 9)}, LLAMA, r"score\.0 gives 12 numbers, and score\.2 takes 9"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_head_that_is_not_served_is_refused_by_name(tmp_path: Path, case: str):
    weights, config, message = REFUSED[case]
    with pytest.raises(ModelError, match=message) as refused:
        checkpoint_head(folder(tmp_path, weights), config)
    assert str(refused.value).startswith(f"model.path: {tmp_path}")


@pytest.mark.parametrize(
    ("name", "expected"), [("modules.json", "modules.json is not readable"), ("model.safetensors", "model.safetensors cannot be read")]
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, expected: str):
    (folder(tmp_path, {"score.weight": (1, H)}) / name).write_text("{")
    with pytest.raises(ModelError, match=expected):
        checkpoint_head(tmp_path, LLAMA)

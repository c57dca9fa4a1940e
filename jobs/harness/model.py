"""Loads the model for lm-eval: checks its arguments; loads weights, tokenizer and generation settings.

Arguments have the names of lm-eval's HF backend, where it has them. Knows nothing of requests.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from pydantic import ValidationError

from ...configs.errors import ConfigError
from ...configs.eval import EvalBatchConfig, EvalModelConfig
from ...configs.explain import problems, shown
from ...configs.fields import Section, nearest
from ...configs.schema import BatchConfig
from ...kernels import backend
from ...runner.core.errors import ModelError, first_line
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.requests import AnyRequest
from ...runner.engine.setup import Setup
from ...runner.models.checkpoint import Checkpoint, find_checkpoint
from ...runner.models.model_pool import ModelChoice
from ...runner.pipeline.loading import LoadedModels, load_models
from ...runner.text.tokenizer import Tokenizer

log = logging.getLogger("mlx_bulk")

BATCH = {"batch_size": "rows", "batch_tokens": "tokens", "memory": "memory"}  # arguments, and their settings
# lm-eval and its users pass these to every model; none of them changes a figure here.
WITHOUT_EFFECT = ("device", "max_batch_size", "parallelize", "logits_cache", "softmax_dtype", "use_fast_tokenizer")
# Settings of a generation config that transformers' generate follows and we do not, with the value that does nothing.
NOT_FOLLOWED = {
    "num_beams": 1,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "max_new_tokens": None,
}
SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True)
class EvalModel:
    """A model for lm-eval: what turns text into tokens at once, and the weights when they are first asked for.

    hf: the checkpoint's tokenizer of transformers; hf_config: its config likewise. special: the id of each special token by its text.
    generation: the content of generation_config.json.
    """

    config: EvalModelConfig
    batch: EvalBatchConfig
    seed: int
    checkpoint: Checkpoint
    hf: Any
    hf_config: Any
    tokenizer: Tokenizer
    special: dict[str, int]
    generation: dict[str, Any]

    @property
    def batch_size(self) -> int | str:
        """The most rows at once, or auto."""
        return self.batch.rows

    @property
    def template_args(self) -> dict[str, Any]:
        """The variables of the chat template."""
        thinking = self.config.enable_thinking
        return self.config.chat_template_args | ({} if thinking is None else {"enable_thinking": thinking})

    @property
    def think_end(self) -> str | int | None:
        """The token that ends a completion's thinking, as text or as an id."""
        token = self.config.think_end_token
        return int(token) if isinstance(token, str) and token.isdigit() else token

    @property
    def tokenizer_fingerprint(self) -> str:
        """The sha256 of the tokenizer that is used, by its contents: how it splits text, its special tokens, its length."""
        backend_of = getattr(self.hf, "backend_tokenizer", None)
        content = json.dumps(sorted(self.hf.get_vocab().items())) if backend_of is None else backend_of.to_str()
        settings = [self.hf.special_tokens_map, self.hf.model_max_length, getattr(self.hf, "clean_up_tokenization_spaces", None)]
        content += json.dumps(settings, sort_keys=True, default=str)  # BOS stands before texts, EOS ends them
        return f"sha256 {sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()}"

    @cached_property
    def loaded(self) -> LoadedModels:
        """The weights and their setup, loaded at the first use. Raises ModelError, and OutOfRoom."""
        share = BatchConfig(rows=self.batch.rows, tokens=self.batch.tokens, memory=self.batch.memory)
        return load_models([ModelChoice(self.config, self.checkpoint)], share, LogprobOptions(echo=True, greedy=True))

    @property
    def setup(self) -> Setup:
        """The setup for scoring, with greedy flags."""
        return self.loaded.setup

    @cached_property
    def eos(self) -> frozenset[int]:
        """The token ids that end a completion."""
        return frozenset(i for i in self.tokenizer.eos | self.checkpoint.eos if 0 <= i < self.setup.vocabulary)

    @property
    def info(self) -> dict[str, Any]:
        """Facts that lm-eval writes beside the results."""
        return {
            "model_dtype": self.loaded.model.dtype,
            "model_revision": self.config.revision or "main",
            "mlx_bulk": self.loaded.about,
        }

    def refuse(self, requests: Sequence[AnyRequest]) -> None:
        """Raises ModelError for a request too large for memory."""
        check = self.loaded.row_check()
        for request in requests:
            if (problem := check(request)) is not None:
                raise ModelError(f"a request of lm-eval cannot be run: {problem}")


def load_for_eval(model_args: dict[str, Any]) -> EvalModel:
    """Checks the arguments and loads the model that they name. Raises ConfigError or ModelError."""
    model = prepare_for_eval(model_args)
    _ = model.loaded
    return model


def prepare_for_eval(model_args: dict[str, Any]) -> EvalModel:
    """Checks the arguments, and finds the model and its tokenizer without weights. Raises ConfigError or ModelError."""
    config, batch, seed = _arguments(model_args)
    if (note := backend.prepare().note) is not None:
        log.warning("BLAS: %s", note)
    checkpoint = find_checkpoint(config)
    hf = _tokenizer(config, checkpoint)
    return EvalModel(
        config=config,
        batch=batch,
        seed=seed,
        checkpoint=checkpoint,
        hf=hf,
        hf_config=_config(checkpoint, config.trust_remote_code),
        tokenizer=Tokenizer(hf),
        special={token.content: i for i, token in hf.added_tokens_decoder.items() if token.special},
        generation=_generation(checkpoint.folder),
    )


def _arguments(model_args: dict[str, Any]) -> tuple[EvalModelConfig, EvalBatchConfig, int]:
    """Converts the arguments to settings, without those that have no effect. Raises ConfigError with the nearest name for others."""
    arguments = {name: value for name, value in model_args.items() if name not in WITHOUT_EFFECT}
    valid = ["pretrained", *(name for name in EvalModelConfig.model_fields if name != "path"), *BATCH, "seed"]
    for name in arguments:
        if name not in valid:
            near = nearest(name, valid)
            raise ConfigError(
                f"model_args: {name}: no such argument; " + (f"did you mean {near}?" if near else f"expected {', '.join(valid)}")
            )
    if "pretrained" not in arguments:
        raise ConfigError("model_args: pretrained: missing; expected demo, a local folder, or a Hugging Face repo id")
    size = arguments.get("batch_size", "auto")
    if isinstance(size, str):
        arguments["batch_size"] = "auto" if size.startswith("auto") else int(size) if size.isdigit() else size
    seed = arguments.pop("seed", 0)
    if type(seed) is not int or seed < 0:
        raise ConfigError(f"model_args: seed: found {shown(seed)}; expected a whole number of at least 0")
    batch = _validate(EvalBatchConfig, {setting: arguments.pop(name) for name, setting in BATCH.items() if name in arguments}, BATCH)
    model = _validate(EvalModelConfig, {"path": arguments.pop("pretrained"), **arguments}, {"pretrained": "path"})
    return model, batch, seed


def _validate(section: type[SectionT], values: dict[str, Any], names: dict[str, str]) -> SectionT:
    """Validates ``values`` as a section; ``names`` maps arguments to settings. Raises ConfigError that names each argument."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        arguments = {setting: name for name, setting in names.items()}
        lines = [f"model_args: {arguments.get(p.key, p.key)}: {p.text}" for p in problems(error, values, section)]
        raise ConfigError("\n".join(lines)) from None


def _tokenizer(config: EvalModelConfig, checkpoint: Checkpoint) -> Any:
    """Loads the tokenizer as lm-eval's HF backend does. Raises ModelError."""
    from transformers import AutoTokenizer

    path = checkpoint.folder if config.tokenizer is None else config.tokenizer
    more = {} if config.add_bos_token is None else {"add_bos_token": config.add_bos_token}
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=config.trust_remote_code, use_fast=True, **more)
    except Exception as error:  # tokenizers fail in many ways; each means that this one cannot be used
        reason = first_line(error, None)
        raise ModelError(f"the tokenizer of {path} cannot be loaded: {reason}") from error


def _config(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    """Reads the config with transformers, which adds its class's defaults; as it is where transformers has no such model."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(checkpoint.folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # a model of mlx-lm alone: only its length is asked for
        log.debug("transformers does not read %s: %s", checkpoint.folder / "config.json", error)
        text = checkpoint.config.get("text_config")
        return SimpleNamespace(**checkpoint.config | {"text_config": SimpleNamespace(**text) if text else None})


def _generation(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name, neutral in NOT_FOLLOWED.items():
        if settings.get(name) not in (None, neutral):
            log.warning("generation_config.json: %s: %s is not followed", name, shown(settings[name]))
    return settings

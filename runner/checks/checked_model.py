"""A model and the results of its checks: the setup that follows from them, and what the log and a session note of them."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from ...configs.schema import BatchConfig
from ...kernels import backend
from ...kernels.sampling import logit_memory
from ..core.kv_quantization import KVQuantization
from ..core.logprob_options import LogprobOptions
from ..engine.setup import BatchFeatures, Setup
from ..layers.lm_head import Head
from ..models.loader import LanguageModel
from ..scheduler.limits import Limits
from .capabilities import Capabilities
from .padding_probe import BatchingMode, kv_account
from .scoring_check import CHUNKS, Shortcuts, confirm_shortcuts

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True, frozen=True)
class CheckedModel:
    """A model and the results of its checks.

    capabilities: of its tiny twin; mode: how its own weights let rows share a batch; scoring: the scorer's shortcuts that its weights
    allow, None for a job that scores no given tokens.
    """

    model: LanguageModel
    capabilities: Capabilities
    mode: BatchingMode
    scoring: Shortcuts | None = None

    def with_scoring(self, limits: Limits) -> "CheckedModel":
        """Returns the same with the scorer's shortcuts tried on the model's own weights."""
        model, padded = self.model, not limits.equal_lengths
        shown, allowed = self.capabilities.shortcuts, self.mode.allowed
        return replace(self, scoring=confirm_shortcuts(model.network, model.vocabulary, limits, padded, shown, allowed))

    def setup(self, config: BatchConfig, wanted: LogprobOptions, limits: Limits) -> Setup:
        """Returns the model's setup; prompts share no prefixes yet."""
        features = BatchFeatures(padded=not limits.equal_lengths, ragged=self.mode.way == "padded")
        setup = Setup(
            self.model.network,
            self.model.vocabulary,
            limits,
            wanted,
            features,
            static=config.deterministic,
            prefill_tokens=limits.tokens if config.prefill_tokens == "auto" else config.prefill_tokens,
            logit_bytes=logit_memory.read_at_once(),
            ahead=not backend.on_cpu_path(),
            adapters=self.model.adapters,
            ranks=self.model.split.ranks,
        )
        if self.scoring is None:  # prompts may come in several calls all the same
            return setup.with_features(chunked=self.capabilities.shortcuts.chunked)
        return self.scoring.features_on(replace(setup, head=Head(self.model.network) if self.scoring.head else None))


def log_mode(checked: CheckedModel, limits: Limits, kv: KVQuantization | None) -> None:
    """Logs how a model's rows share a batch. kv: how its keys and values are quantized."""
    model, mode = checked.model, checked.mode
    if mode.way == "padded":
        how = f"batches of up to {limits.rows} rows"
    elif mode.way == "joined":
        how = f"batches of up to {limits.rows} rows, prompts of one length at a time, slower but right ({mode.reason})"
    else:
        rows = "batches of rows of one length" if mode.way == "exact" else "one row at a time"
        how = f"{rows}, slower but right ({mode.reason})"
    held = "" if kv is None else f", {kv.in_words}{kv_account(model.network, kv)}"
    log.info("%s: %s on %s, %s%s", model.checkpoint.folder.name, model.dtype, backend.device_name(), how, held)


def warn_of_chunks(checked: CheckedModel) -> None:
    """Warns where the calls in which a text is fed change a model's logprobs."""
    for reason in checked.capabilities.shortcuts.reasons:
        if reason.startswith(f"{CHUNKS}: logprobs"):
            log.warning(
                "%s: in mlx-lm its logprobs depend on the calls in which a text is fed (%s); prompts are fed in one, so that logprobs of "
                "generated tokens can differ from those that scoring gives the same text",
                *(checked.model.checkpoint.folder.name, reason),
            )


def model_note(checked: CheckedModel, more: dict[str, Any]) -> dict[str, Any]:
    """Returns what a session notes of one model; ``more`` is put to its probe."""
    model, mode, shown, scoring = checked.model, checked.mode, checked.capabilities, checked.scoring
    probed: dict[str, Any] = {
        "way": mode.way,
        "difference": mode.difference,
        "reason": mode.reason,
        "found_on": shown.on if mode.way == shown.way else "weights",
        "twin": shown.no_twin or {"way": shown.way, "difference": shown.difference},
    }
    if scoring is not None:
        shortcuts = {"head": scoring.head, "right_padded": scoring.right_padded, "shared": scoring.shared_passages}
        probed["scoring"] = {**shortcuts, "reasons": list(scoring.reasons)}
    held: dict[str, Any] = {"dtype": model.dtype, "quantized": model.quantized, "substitutes": list(model.substitutes)}
    if model.split.way is not None:
        held["parallel"] = str(model.split)
    if model.features is not None and model.features.uncompared is not None:
        held["unchecked_images"] = model.features.uncompared.kind
    return {"model": str(model.checkpoint.folder), **held, "probe": {**probed, **more}}

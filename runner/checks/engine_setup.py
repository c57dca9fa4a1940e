"""How a loaded model runs on this device: what the probe allows, how many rows and tokens memory holds, what can't be run.

Knows the device and the model; nothing of datasets or files.
"""

import logging
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...configs.schema import BatchConfig
from ...kernels import backend, native
from ..core.errors import ModelError
from ..core.logprob_options import LogprobOptions
from ..engine.prefix_disk_cache import PrefixCache
from ..engine.setup import Setup
from ..layers.kv_cache import fresh, growth
from ..layers.lm_head import Head
from ..layers.network import Network
from ..models.checkpoint import checkpoint_fingerprints
from ..models.device_memory import kv_bytes
from ..models.loader import Model
from ..scheduler.limits import Limits
from .capabilities import Capabilities, capabilities_of, code
from .padding_probe import LENGTHS, PADDED, BatchingMode, probe, slots_independent
from .prefix_check import refused_by_weights
from .scoring_check import CHUNKS, Shortcuts, confirmed

log = logging.getLogger("mlx_bulk")

ROWS = {"cpu": 32, "metal": 64, "cuda": 256}  # decoding at once, when batch.rows is auto
TOKENS = {"cpu": 2048, "metal": 4096, "cuda": 16384}  # in one prefill, when batch.tokens is auto
# Of the float32 logits read at once. They stand twice, beside what their reduction takes: all of it stays below 256 MB.
LOGIT_BYTES = {"cpu": 32 << 20, "metal": 64 << 20, "cuda": 64 << 20}


def fit(
    model: Model, config: BatchConfig, wanted: LogprobOptions, reference: Model | None = None
) -> tuple[Setup, Setup | None, dict[str, Any]]:
    """The engine's setup, the reference model's beside it, and what a session notes of them. Logs one line.

    With a reference both hold the same rows: the limits are those that both can keep. Raises OutOfRoom where memory does not
    hold the weights, ModelError where deterministic mode cannot be kept.
    """
    device = backend.device_name()
    models = [model] if reference is None else [model, reference]
    trusts = [capabilities_of(m) for m in models]
    ways = [_confirmed(m, t) for m, t in zip(models, trusts, strict=True)]
    limits = _limits(config, ways, device, sum(m.weight_bytes for m in models))
    if config.deterministic and not all(slots_independent(m.network, m.vocabulary, limits.rows) for m in models):
        raise ModelError("batch.deterministic: with this model and device a row's bits depend on its batch mates; set it to false")
    padded = not limits.equal_lengths
    short = [
        confirmed(m.network, m.vocabulary, limits, padded, shown.shortcuts, way.allowed) if wanted.echo or wanted.reference else None
        for m, shown, way in zip(models, trusts, ways, strict=True)
    ]
    setups = [
        Setup(
            m.network,
            m.vocabulary,
            limits,
            wanted,
            padded,
            config.deterministic,
            LOGIT_BYTES[device],
            ragged=way.way == "padded",
            adapters=m.adapters,
        )
        for m, way in zip(models, ways, strict=True)
    ]
    setups = [_taking(s, shown.shortcuts, found) for s, shown, found in zip(setups, trusts, short, strict=True)]
    setups[0], unshared = _sharing(setups[0], trusts[0], ways[0])
    if config.prefix_cache is not None:
        setups[0] = _keeping(setups[0], model, Path(config.prefix_cache), unshared)
    for m, way in zip(models, ways, strict=True):
        log.info("%s: %s on %s, %s", m.checkpoint.folder.name, m.dtype, device, _said(way, limits))
    for m, shown in zip(models, trusts, strict=True):
        for reason in (reason for reason in shown.shortcuts.reasons if reason.startswith(f"{CHUNKS}: logprobs")):
            log.warning(
                "%s: in mlx-lm its logprobs depend on the calls in which a text is fed (%s); prompts are fed in one, so that logprobs of "
                "generated tokens can differ from those that scoring gives the same text",
                *(m.checkpoint.folder.name, reason),
            )
    abouts = [_about_model(m, shown, way, found) for m, shown, way, found in zip(models, trusts, ways, short, strict=True)]
    abouts[0]["probe"]["prefixes"] = {"shared": setups[0].shares, "reason": unshared}
    return setups[0], setups[1] if reference else None, _about(abouts, config, limits)


def foreseen(models: Sequence[Model], config: BatchConfig, wanted: LogprobOptions) -> list[Setup]:
    """The setups that ``fit`` will come to as far as twins show it: of ``outline``d models no weights are read.

    models: the model, and the reference behind it where there is one. Raises OutOfRoom where memory does not hold the weights.
    """
    device = backend.device_name()
    trusts = [capabilities_of(m) for m in models]
    ways = [BatchingMode(t.way, t.difference, *_row_bytes(m.network), t.reason) for m, t in zip(models, trusts, strict=True)]
    limits = _limits(config, ways, device, sum(m.weight_bytes for m in models))
    setups = [
        Setup(
            m.network,
            m.vocabulary,
            limits,
            wanted,
            not limits.equal_lengths,
            config.deterministic,
            LOGIT_BYTES[device],
            ragged=t.way == "padded",
            stems=not t.unshared,
        )
        for m, t in zip(models, trusts, strict=True)
    ]
    return [_taking(s, t.shortcuts, t.shortcuts if wanted.echo else None) for s, t in zip(setups, trusts, strict=True)]


def _row_bytes(network: Any) -> tuple[float, float]:
    """What a row's caches take, a token and besides, in bytes: by the shapes of what a prompt would leave, which is not computed."""
    caches = fresh(network, 1, padded=False)
    Network(network)(mx.array([[0] * LENGTHS[0]]), caches, read="nothing")
    return growth(caches)


def _confirmed(model: Model, shown: Capabilities) -> BatchingMode:
    """What a model's own weights confirm of what was ``shown``."""
    found = probe(model.network, model.vocabulary, shown.way)
    return replace(found, reason=shown.reason) if found.way == shown.way else found


def _taking(setup: Setup, shown: Shortcuts, found: Shortcuts | None) -> Setup:
    """The setup with the shortcuts that were ``found``; of those ``shown`` what concerns a job too that scores no prompt."""
    if found is None:
        return replace(setup, chunked=shown.chunked)
    head = Head(setup.model) if found.head else None
    return replace(setup, head=head, right_padded=found.right_padded, shared=found.shared, chunked=found.chunked)


def _sharing(setup: Setup, shown: Capabilities, way: BatchingMode) -> tuple[Setup, str]:
    """The setup with prefixes that prompts share, where short rows on the model's own weights confirm it, and why without them."""
    taking = replace(setup, stems=True)
    if not taking.shares:
        return setup, "batch.deterministic" if setup.static else "its prompts are fed in one call" if setup.padded else way.reason
    reason = shown.unshared or refused_by_weights(setup.model, setup.vocabulary, way.way, way.allowed, setup.head)
    return (setup if reason else taking), reason


def _keeping(setup: Setup, model: Model, folder: Path, unshared: str) -> Setup:
    """The setup with ``folder`` for prefixes that it computes. Raises ModelError where that cannot be a folder."""
    if not setup.shares:
        log.warning("batch.prefix_cache: %s is not used, as prompts of this run share no prefixes (%s)", folder, unshared)
        return setup
    prints = checkpoint_fingerprints(model.checkpoint)
    identity = {
        "weights": prints["model.weights"],
        "adapter": prints["model.adapter"],
        "dtype": model.dtype,
        "quantized": model.quantized,
        "substitutes": model.substitutes,
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "mlx-bulk")},
        "code": code(model.network),
        "device": backend.device_name(),
        "blas": str(backend.prepare()),
        "kernels": native.name(),
    }
    return replace(setup, prefix_cache=PrefixCache.opened(folder, identity))


def _limits(config: BatchConfig, ways: list[BatchingMode], device: str, weight_bytes: int) -> Limits:
    """What a batch may take that every model's caches hold, in the most cautious of their ways."""
    rows = ROWS[device] if config.rows == "auto" else config.rows
    tokens = TOKENS[device] if config.tokens == "auto" else config.tokens
    room = kv_bytes(config.memory, weight_bytes, workspace=2 * LOGIT_BYTES[device])
    kinds = {way.way for way in ways}
    token_bytes, row_bytes = sum(way.token_bytes for way in ways), sum(way.row_bytes for way in ways)
    return Limits(1 if "alone" in kinds else rows, tokens, room, token_bytes, row_bytes, equal_lengths=not kinds <= set(PADDED))


def _said(way: BatchingMode, limits: Limits) -> str:
    """One phrase on how rows share a batch."""
    if way.way == "padded":
        return f"batches of up to {limits.rows} rows"
    if way.way == "joined":
        return f"batches of up to {limits.rows} rows, prompts of one length at a time, slower but right ({way.reason})"
    how = "batches of rows of one length" if way.way == "exact" else "one row at a time"
    return f"{how}, slower but right ({way.reason})"


def _about(models: list[dict[str, Any]], config: BatchConfig, limits: Limits) -> dict[str, Any]:
    """A session's line: what the results may depend on beyond the run's identity."""
    about = {
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "transformers", "pyarrow", "numpy")},
        "host": platform.node(),
        "platform": platform.platform(),
        "device": backend.device_name(),
        "blas": str(backend.prepare()),
        "batch": {**config.model_dump(mode="json"), "rows": limits.rows, "tokens": limits.tokens},
        **models[0],
    }
    return about if len(models) == 1 else {**about, "reference": models[1]}


def _about_model(model: Model, shown: Capabilities, way: BatchingMode, found: Shortcuts | None) -> dict[str, Any]:
    probed: dict[str, Any] = {
        "way": way.way,
        "difference": way.difference,
        "reason": way.reason,
        "found_on": shown.on if way.way == shown.way else "weights",
        "twin": shown.no_twin or {"way": shown.way, "difference": shown.difference},
    }
    if found is not None:
        taken = {"head": found.head, "right_padded": found.right_padded, "shared": found.shared}
        probed["scoring"] = {**taken, "reasons": list(found.reasons)}
    held = {"dtype": model.dtype, "quantized": model.quantized, "substitutes": list(model.substitutes)}
    return {"model": str(model.checkpoint.folder), **held, "probe": probed}

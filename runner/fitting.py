"""How a loaded model runs on this device: what the probe allows, how many rows and tokens memory holds, what can't be run.

Knows the device and the model; nothing of datasets or files.
"""

import logging
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from ..configs.schema import BatchConfig
from ..kernels import backend
from .errors import ModelError
from .memory import kv_bytes
from .model import Model
from .planner import Limits, reach
from .prefill import Setup, Wanted
from .probes import Found, missing_window, probe, slots_independent
from .records import Request

log = logging.getLogger("mlx_bulk")

ROWS = {"cpu": 32, "metal": 64, "cuda": 256}  # decoding at once, when batch.rows is auto
TOKENS = {"cpu": 2048, "metal": 4096, "cuda": 16384}  # in one prefill, when batch.tokens is auto
LOGIT_BYTES = {"cpu": 32 << 20, "metal": 256 << 20, "cuda": 512 << 20}  # of one chunk's float32 logits, when the prompt is echoed


def fit(model: Model, config: BatchConfig, wanted: Wanted) -> tuple[Setup, dict[str, Any]]:
    """The engine's setup, and what a session notes of it. Logs one line.

    Raises OutOfRoom where memory does not hold the weights, ModelError where deterministic mode cannot be kept.
    """
    device = backend.device_name()
    way = probe(model.network, model.vocabulary)
    rows = ROWS[device] if config.rows == "auto" else config.rows
    tokens = TOKENS[device] if config.tokens == "auto" else config.tokens
    room = kv_bytes(config.memory, model.weight_bytes, workspace=2 * LOGIT_BYTES[device])
    limits = Limits(1 if way.way == "alone" else rows, tokens, room, way.token_bytes, way.row_bytes, even=way.way != "padded")
    if config.deterministic and not slots_independent(model.network, model.vocabulary, limits.rows):
        raise ModelError("batch.deterministic: with this model and device a row's bits depend on its batch mates; set it to false")
    setup = Setup(model.network, model.vocabulary, limits, wanted, way.way == "padded", config.deterministic, LOGIT_BYTES[device])
    log.info("%s: %s on %s, %s", model.checkpoint.folder.name, model.dtype, device, _said(way, limits))
    return setup, _about(model, config, way, limits)


def row_check(setup: Setup, config: dict[str, Any]) -> Callable[[Request], str | None]:
    """Says why a request cannot run even alone, or None; warns once of a row beyond a window that the model lacks."""
    window = missing_window(setup.model, config)
    warned = False

    def check(request: Request) -> str | None:
        nonlocal warned
        if window is not None and not warned and reach(request) > window:
            warned = True
            log.warning(
                "row %d can grow to %d tokens: config.json asks for a sliding window of %d, which mlx-lm's %s does not have; "
                "logprobs beyond it are not the trained model's",
                *(request.row, reach(request), window, config.get("model_type")),
            )
        return _too_large(request, setup.limits)

    return check


def _too_large(request: Request, limits: Limits) -> str | None:
    """Why a request cannot run even alone, or None."""
    need = limits.kv(1, reach(request))
    if need <= limits.kv_bytes:
        return None
    return (
        f"{len(request.prompt.ids)} prompt tokens and up to {request.work.sampling.max_tokens} more need {need / 1e9:.2f} GB of KV cache, "
        f"{limits.kv_bytes / 1e9:.2f} GB are there; shorten the prompt, lower sampling.max_tokens, or raise batch.memory"
    )


def _said(way: Found, limits: Limits) -> str:
    """One phrase on how rows share a batch."""
    if way.way == "padded":
        return f"batches of up to {limits.rows} rows"
    how = "batches of rows of one length" if way.way == "exact" else "one row at a time"
    return f"{how}, slower but right ({way.reason})"


def _about(model: Model, config: BatchConfig, way: Found, limits: Limits) -> dict[str, Any]:
    """A session's line: what the results may depend on beyond the run's identity."""
    return {
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "transformers", "pyarrow", "numpy")},
        "host": platform.node(),
        "platform": platform.platform(),
        "device": backend.device_name(),
        "blas": str(backend.prepare()),
        "model": str(model.checkpoint.folder),
        "dtype": model.dtype,
        "batch": {**config.model_dump(mode="json"), "rows": limits.rows, "tokens": limits.tokens},
        "probe": {"way": way.way, "difference": way.difference, "reason": way.reason},
    }

"""Makes the engine setup of a pooling model: how texts share a batch, how many fit in memory, and what a session notes of it.

Knows the device and the model, nothing of datasets or files.
"""

import logging
import platform
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from ...configs.schema import BatchConfig
from ...kernels import backend, native
from ..core.images import ImageTable
from ..core.logprob_options import LogprobOptions
from ..encoders.registry import encoder_class
from ..engine.setup import BatchFeatures, Setup
from ..models.device_memory import kv_bytes
from ..models.loader import LanguageModel
from ..patched_layers.mended_layers import experts_workspace
from ..pooling.spec import PoolingSpec
from ..scheduler.limits import Limits
from ..vision.features import share_image_memory
from ..vision.two_towers import TwoTowers
from .pooling_check import WAYS, TextBatching, find_picture_batching, find_text_batching, fixed_slots_alike

log = logging.getLogger("mlx_bulk")

ROWS = {"cpu": 128, "metal": 256, "cuda": 512}  # texts at once, when batch.rows is auto
FIXED_ROWS = 32  # the same in deterministic mode, where a batch is filled up with dummies
TOKENS = {"cpu": 4096, "metal": 16384, "cuda": 65536}  # in one call, when batch.tokens is auto

# Arrays that are in memory at once while a block computes, as multiples of its widths. mlx asks for the memory of about ten
# operations ahead.
STATES, INNER_STATES = 12, 6
SIZE_NAMES = {
    "width": ("hidden_size", "dim", "n_embd", "d_model"),
    "inner": ("intermediate_size", "hidden_dim", "n_inner", "ffn_dim"),
    "heads": ("num_attention_heads", "n_heads", "n_head"),
}
FUSED = ("attention", "block")  # kernels of ours that keep no scores in memory


@dataclass(slots=True, frozen=True)
class PoolingFit:
    """The engine setup of a pooling model, and what a session notes of it."""

    setup: Setup
    about: dict[str, Any]


def fit_pooling_model(model: LanguageModel, config: BatchConfig, images: ImageTable | None = None) -> PoolingFit:
    """Checks a loaded pooling model and makes its setup. Logs one line. Raises OutOfRoom where memory does not hold the weights.

    images: the pictures of the rows, None for rows of text alone. Raises ModelError where the model cannot read them.
    """
    assert model.pooling is not None, "a pooling model"
    batching = find_text_batching(model.network, model.vocabulary, model.pooling, _positions(model))
    if images is not None:
        batching = _with_pictures(model, model.pooling, images, batching)
    setup = expected_pooling_setup(model, config, batching)
    if images is not None:
        setup = replace(setup, model=model.network.reading(images), images=images)
    if setup.static and setup.limits.rows > 1:
        setup = setup.with_features(any_slot=fixed_slots_alike(model.network, model.vocabulary, setup.limits, setup.positions))
    log.info("%s: %s on %s, %s", model.checkpoint.folder.name, model.dtype, backend.device_name(), _way(setup, batching))
    return PoolingFit(setup, _session_note(model, config, setup, batching))


def _with_pictures(model: LanguageModel, pooling: PoolingSpec, images: ImageTable, texts: TextBatching) -> TextBatching:
    """Returns the more cautious of two ways: that of rows with pictures, and that of ``texts``."""
    if isinstance(model.network.body, TwoTowers):  # no row with a picture goes through the texts' network
        return texts
    found = find_picture_batching(model.network, model.vocabulary, pooling, images.placeholder, model.checkpoint.folder.name)
    return max(texts, found, key=lambda each: WAYS.index(each.way))


def expected_pooling_setup(model: LanguageModel, config: BatchConfig, batching: TextBatching | None = None) -> Setup:
    """Returns the setup with which a pooling model runs if texts share batches as ``batching`` says; None: in the fastest way.

    No weights are read. Raises OutOfRoom where memory does not hold them.
    """
    batching = batching or TextBatching("padded")
    limits = _limits(model, config, batching)
    features = BatchFeatures(padded=batching.way == "padded", right_padded=batching.way == "padded")
    return Setup(
        model.network,
        model.vocabulary,
        limits,
        LogprobOptions(),
        features,
        static=config.deterministic,
        positions=_positions(model),
        dimensions=0 if model.pooling is None else model.pooling.dimensions,
    )


def _positions(model: LanguageModel) -> int:
    """Returns the most tokens that the network takes, pads included."""
    encoder = encoder_class(model.checkpoint.config)
    return sys.maxsize if encoder is None else encoder.max_positions(model.checkpoint.config)


def _limits(model: LanguageModel, config: BatchConfig, batching: TextBatching) -> Limits:
    """Returns the limits of a batch. Its bytes are a bound for the arrays that a call has in memory."""
    device = backend.device_name()
    auto = FIXED_ROWS if config.deterministic else ROWS[device]
    features = share_image_memory([model.features], config.image_memory)
    rows = 1 if batching.way == "alone" else auto if config.rows == "auto" else config.rows
    tokens = TOKENS[device] if config.tokens == "auto" else config.tokens
    encoder, said = encoder_class(model.checkpoint.config), model.checkpoint.config
    sizes = said if encoder is None else encoder.settings(said)
    found = {name: _size(sizes, names) for name, names in SIZE_NAMES.items()}
    inner = found["inner"] or 4 * found["width"]
    # On GPUs mlx's own attention keeps no scores either, in most models.
    fused = device != "cpu" or any(name in model.substitutes for name in FUSED)
    return Limits(
        rows,
        tokens,
        kv_bytes(config.memory, model.weight_bytes, experts_workspace(model.network), features),
        token_bytes=4.0 * (STATES * found["width"] + INNER_STATES * inner),
        row_bytes=0.0,
        equal_lengths=batching.way != "padded",
        pair_bytes=4.0 if fused else 4.0 * (1 + 2 * found["heads"]),
    )


def _size(config: dict[str, Any], names: tuple[str, ...]) -> int:
    """Returns the first of these entries of config.json, or of the text model in it; 0 where there is none."""
    places = (config, config.get("text_config") or {})
    return next((int(place[name]) for place in places for name in names if isinstance(place.get(name), int)), 0)


def _way(setup: Setup, batching: TextBatching) -> str:
    rows = setup.limits.rows
    if batching.way == "padded" and setup.features.any_slot:
        return f"batches of up to {rows} texts"
    if batching.way == "padded":
        return "one text at a time, as batch.deterministic asks for and a text's place in a batch shows in its bits"
    texts = "batches of texts of one length" if batching.way == "exact" else "one text at a time"
    return f"{texts}, slower but right ({batching.reason})"


def _session_note(model: LanguageModel, config: BatchConfig, setup: Setup, batching: TextBatching) -> dict[str, Any]:
    """Returns a session's line: what the vectors may depend on beyond the run's identity."""
    limits = setup.limits
    probed = {"way": batching.way, "difference": batching.difference, "allowed": batching.allowed, "reason": batching.reason}
    if setup.static:
        probed["any_slot"] = setup.features.any_slot
    return {
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "transformers", "pyarrow", "numpy")},
        "host": platform.node(),
        "platform": platform.platform(),
        "device": backend.device_name(),
        "blas": str(backend.prepare()),
        "kernels": native.name(),
        "batch": {**config.model_dump(mode="json"), "rows": limits.rows, "tokens": limits.tokens},
        "model": str(model.checkpoint.folder),
        "dtype": model.dtype,
        "quantized": model.quantized,
        "substitutes": list(model.substitutes),
        "probe": probed,
    }

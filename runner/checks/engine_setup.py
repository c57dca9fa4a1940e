"""Makes engine setups from models: how rows share a batch, how many fit in memory, and what a session notes of it.

Knows the device and the model, nothing of datasets or files.
"""

import logging
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...configs.schema import BatchConfig
from ...kernels import backend, native
from ...kernels.sampling import logit_memory
from ..core.errors import ModelError
from ..core.images import ImageTable
from ..core.kv_quantization import KVQuantization
from ..core.logprob_options import LogprobOptions
from ..engine.prefix_disk_cache import PrefixCache
from ..engine.setup import Setup
from ..layers.kv_cache import leaves_pads_out
from ..models.checkpoint import checkpoint_fingerprints
from ..models.device_memory import kv_bytes
from ..models.loader import LanguageModel
from ..patched_layers.mended_layers import experts_workspace
from ..patched_layers.rope_layers import has_positions
from ..scheduler.limits import Limits, least_limits
from ..scheduler.prefix_tree import CALL_TOKENS
from ..vision.features import share_image_memory
from .capabilities import capabilities_of, code_digest
from .checked_model import CheckedModel, log_mode, model_note, warn_of_chunks
from .padding_probe import PADDED, BatchingMode, cache_bytes, kv_obstacle, kv_refusal, probe
from .picture_check import tried_with_pictures
from .pooling_setup import expected_pooling_setup, fit_pooling_model
from .prefix_check import refused_by_weights
from .slot_independence import slots_alike, slots_independent

log = logging.getLogger("mlx_bulk")

ROWS = {"cpu": 32, "metal": 64, "cuda": 256}  # decoding at once, when batch.rows is auto
TOKENS = {"cpu": 2048, "metal": 4096, "cuda": 15360}  # in one prefill, when batch.tokens is auto
CALL_COST = {"cuda": 1024}  # tokens of a prefill that take as long as the fixed cost of a call; elsewhere CALL_TOKENS


@dataclass(slots=True, frozen=True)
class FittedModels:
    """The engine setup of a model, that of a reference model if there is one, those of reward models, and what a session notes of all."""

    setup: Setup
    reference: Setup | None
    about: dict[str, Any]
    rewards: tuple[Setup, ...] = ()


def fit(
    model: LanguageModel,
    config: BatchConfig,
    wanted: LogprobOptions,
    reference: LanguageModel | None = None,
    rewards: Sequence[LanguageModel] = (),
    images: ImageTable | None = None,
) -> FittedModels:
    """Checks a loaded model, and a reference model and reward models if there are any, and makes their setups. Logs one line a model.

    images: the pictures of the rows, None for rows of text alone.

    Model and reference hold the same rows: the limits are those that both can keep, beside the weights of all. Raises OutOfRoom where
    memory does not hold the weights, ModelError where deterministic mode cannot be kept.
    """
    if model.pooling is not None:
        fitted = fit_pooling_model(model, config, images)
        return FittedModels(fitted.setup, None, fitted.about)
    kv = kv_quantization(config)  # of the model alone: a reference scores, and quantizes nothing
    models = [_checked(model, kv)] + ([] if reference is None else [_checked(reference)])
    limits = least_limits(model.split.ranks.jointly(lambda: _limits(config, models, sum(each.weight_bytes for each in rewards))))
    if config.deterministic:
        _require_independent_rows(models, limits, kv)
    if wanted.echo or wanted.reference:
        models = [each.with_scoring(limits) for each in models]
    setup, *others = [replace(each.setup(config, wanted, limits), images=images) for each in models]
    setup = replace(setup, kv=kv)
    if config.deterministic and wanted.echo and not all(slots_alike(each) for each in (setup, *others)):
        setup, *others = [each.with_features(any_slot=False) for each in (setup, *others)]
    setup, refusal = _sharing_prompts(setup, models[0])
    if images is not None:
        pairs = zip((setup, *others), models, strict=True)
        setup, *others = [_tried(each, own) for each, own in pairs]
    if config.prefix_cache is not None:
        setup = _with_prefix_cache(setup, model, Path(config.prefix_cache), refusal)
    for each in models:
        log_mode(each, limits, setup.kv if each is models[0] else None)
    for each in models:
        warn_of_chunks(each)
    prefixes = {"shared": setup.shares_prompts, "reason": refusal}
    about = _session_note(models, config, limits, prefixes)
    about["batch"]["prefill_tokens"] = setup.prefill_tokens
    fits = [fit_pooling_model(each, config) for each in rewards]
    if fits:
        about["rewards"] = [each.about for each in fits]
    return FittedModels(setup, others[0] if others else None, about, tuple(each.setup for each in fits))


def expected_setups(models: Sequence[LanguageModel], config: BatchConfig, wanted: LogprobOptions) -> list[Setup]:
    """Returns the setups that ``fit`` will make, as far as tiny twins show: no weights of these ``outline``d models are read.

    models: the model, after it the reference where there is one, then reward models. Raises OutOfRoom where memory does not hold the
    weights.
    """
    if models[0].pooling is not None:
        return [expected_pooling_setup(models[0], config)]
    rewards = [each for each in models if each.pooling is not None]
    kv, scores = kv_quantization(config), wanted.echo or wanted.reference
    expected = [_expected(each, scores, kv if each is models[0] else None) for each in models if each.pooling is None]
    limits = _limits(config, expected, sum(each.weight_bytes for each in rewards))
    setups = [each.setup(config, wanted, limits).with_features(shared_prompts=not each.capabilities.unshared) for each in expected]
    setups[0] = replace(setups[0], kv=kv)
    return setups + [expected_pooling_setup(each, config) for each in rewards]


def kv_quantization(config: BatchConfig) -> KVQuantization | None:
    """Returns how the config has cached keys and values quantized; None: not at all."""
    return None if config.kv_bits is None else KVQuantization(config.kv_bits, config.kv_group, config.kv_start)


def _checked(model: LanguageModel, kv: KVQuantization | None = None) -> CheckedModel:
    """Tries on a model's own weights how rows may share a batch, from the fastest way on that its twin allows.

    kv: how its keys and values are to be quantized. Raises ModelError where they cannot be.
    """
    capabilities = model.split.ranks.share(capabilities_of(model))
    mode = probe(model.network, model.vocabulary, capabilities.way)
    if mode.way == capabilities.way:
        mode = replace(mode, reason=capabilities.reason)
    if kv is not None:
        _refuse_kv(model, kv_refusal(model.network, model.vocabulary, mode.way, kv))
        token_bytes, row_bytes = cache_bytes(model.network, kv)
        mode = replace(mode, token_bytes=token_bytes, row_bytes=row_bytes)
    return CheckedModel(model, capabilities, mode)


def _refuse_kv(model: LanguageModel, reason: str) -> None:
    """Raises ModelError for a reason that is not empty."""
    if reason:
        kind = model.checkpoint.config.get("model_type")
        raise ModelError(f"batch.kv_bits: keys and values of {model.checkpoint.folder.name} ({kind}) cannot be quantized: {reason}")


def _expected(model: LanguageModel, scores: bool, kv: KVQuantization | None) -> CheckedModel:
    """Returns the results of the checks if the weights confirm all that the twin shows. kv: as for ``_checked``."""
    if kv is not None:
        _refuse_kv(model, kv_obstacle(model.network, kv))
    shown = capabilities_of(model)
    mode = BatchingMode(shown.way, shown.difference, *cache_bytes(model.network, kv), shown.reason)
    return CheckedModel(model, shown, mode, shown.shortcuts if scores else None)


def _limits(config: BatchConfig, models: Sequence[CheckedModel], beside: int) -> Limits:
    """Returns the limits of a batch that every model's caches can hold, in the most cautious of their ways.

    beside: bytes of the weights of further models, which have no caches.
    """
    device, modes = backend.device_name(), [each.mode for each in models]
    rows = ROWS[device] if config.rows == "auto" else config.rows
    tokens = TOKENS[device] if config.tokens == "auto" else config.tokens
    weights = beside + sum(each.model.weight_bytes for each in models)
    features = share_image_memory([each.model.features for each in models], config.image_memory)
    workspace = logit_memory.workspace(max(each.model.vocabulary for each in models), rows)
    workspace += max(experts_workspace(each.model.network) for each in models)
    room = kv_bytes(config.memory, weights, workspace, features)
    ways = {mode.way for mode in modes}
    token_bytes, row_bytes = sum(mode.token_bytes for mode in modes), sum(mode.row_bytes for mode in modes)
    free = config.kv_bits is None and all(leaves_pads_out(each.model.network) and each.model.checkpoint.adapter is None for each in models)
    return Limits(
        1 if "alone" in ways else rows,
        tokens,
        room,
        token_bytes,
        row_bytes,
        equal_lengths=not ways <= set(PADDED),
        pads=CALL_TOKENS if device == "cpu" and not free else math.inf,
        call_tokens=CALL_COST.get(device, CALL_TOKENS),
        positions=min((each.model.checkpoint.context or sys.maxsize) for each in models),
        few_shapes=device == "cuda",  # cuDNN plans each shape for 0.06 to 0.7 s, and mlx keeps buffers for arrays of one size
    )


def _require_independent_rows(models: Sequence[CheckedModel], limits: Limits, kv: KVQuantization | None) -> None:
    kvs, rows = [kv, None][: len(models)], limits.rows
    if not all(slots_independent(each.model.network, each.model.vocabulary, rows, own) for each, own in zip(models, kvs, strict=True)):
        raise ModelError("batch.deterministic: with this model and device a row's bits depend on its batch mates; set it to false")


def _sharing_prompts(setup: Setup, checked: CheckedModel) -> tuple[Setup, str]:
    """Returns the setup in which prompts share prefixes, if the model's own weights allow it, and else why they do not."""
    sharing, mode = setup.with_features(shared_prompts=True), checked.mode
    if not sharing.shares_prompts:
        why = "its prompts are fed in one call" if setup.features.padded else mode.reason
        return setup, "batch.deterministic" if setup.static else why
    refusal = checked.capabilities.unshared
    refusal = refusal or refused_by_weights(setup.model, setup.vocabulary, mode.way, mode.allowed, setup.head)
    return (setup if refusal else sharing), refusal


def _tried(setup: Setup, checked: CheckedModel) -> Setup:
    """Returns the setup in which rows with pictures are right."""
    features = checked.model.features
    uncompared = None if features is None else features.uncompared
    return tried_with_pictures(setup, checked.mode.allowed, checked.model.checkpoint.folder.name, uncompared)


def _with_prefix_cache(setup: Setup, model: LanguageModel, folder: Path, refusal: str) -> Setup:
    """Returns the setup that keeps computed prefixes in ``folder``. Raises ModelError where that cannot be a folder."""
    if not setup.shares_prompts:
        log.warning("batch.prefix_cache: %s is not used, as prompts of this run share no prefixes (%s)", folder, refusal)
        return setup
    prints = checkpoint_fingerprints(model.checkpoint)
    identity = {
        "weights": prints["model.weights"],
        "adapter": prints["model.adapter"],
        "dtype": model.dtype,
        "quantized": model.quantized,
        "substitutes": model.substitutes,
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "mlx-bulk")},
        "code": code_digest(model.network),
        "device": backend.device_name(),
        "blas": backend.product_build(),
        "kernels": native.name(),
    }
    if setup.kv is not None:
        identity["kv"] = asdict(setup.kv)
    if has_positions(model.network):  # kept beside the layers' caches, which a run of text alone does not do
        identity["positions"] = "sections"
    return replace(setup, prefix_cache=PrefixCache.opened(folder, identity))


# --------------------------------------------------------------------------------------- what the log and a session say


def _session_note(models: Sequence[CheckedModel], config: BatchConfig, limits: Limits, prefixes: dict[str, Any]) -> dict[str, Any]:
    """Returns a session's line: what the results may depend on beyond the run's identity. ``prefixes`` are the first model's."""
    first, *others = models
    note = {
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "transformers", "pyarrow", "numpy", "llguidance")},
        "host": platform.node(),
        "platform": platform.platform(),
        "device": backend.device_name(),
        "blas": str(backend.prepare()),
        "kernels": native.name(),
        "batch": {**config.model_dump(mode="json"), "rows": limits.rows, "tokens": limits.tokens},
        **model_note(first, {"prefixes": prefixes}),
    }
    return {**note, "reference": model_note(others[0], {})} if others else note

"""Finds out what a run may rely on with a model, by trying a small random twin of it. The model's own weights confirm it later.

The twin shows what the architecture does wrong, beyond its windows too, in milliseconds; the result is remembered on disk. Where there
is no twin, the model itself goes through the twin's checks if that is cheap, and else runs rows of one length. Knows models, not their
names. That short rows agree on the model's own weights is tested by padding_probe.py and scoring_check.py.
"""

import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import get_total_parameters

from ... import kernels, runner
from ...kernels import backend, native
from ..core.errors import first_line
from ..files.checked_json import digest, read_document
from ..files.user_cache import remember
from ..layers.lm_head import Head
from ..layers.network import Network
from ..models.config_compat import mlx_lm_settings
from ..models.loader import LanguageModel
from ..twins.tiny_config import WINDOW, Config, window_lengths
from ..twins.tiny_twin import rounding_noise, twin
from .decode_check import batch_difference
from .padding_probe import PADDED, WAYS, Way, allowed_difference, crash_reason, fallback_reason
from .prefix_check import prefix_refusal
from .scoring_check import Shortcuts, find_shortcuts
from .trial import SingleRows, trial_limits

On = Literal["twin", "weights"]
ROWS = 8
TAIL = 2  # times the rounding of one row: some tokens of other rows are off by more
TOKENS = 60  # that the checks put through a model, in windows
WORK = 1e11  # parameters x tokens, the most that the checks may take on a model's own weights: about a second


@dataclass(slots=True, frozen=True)
class Capabilities:
    """How rows may share a batch, the largest difference of a logprob seen there, and which shortcuts scoring may take.

    reason: why the faster ways are not taken. on: what was tried, a twin or the weights. no_twin: why there was no twin. unshared: why
    prompts must not share prefixes, empty where they may.
    """

    way: Way
    difference: float
    reason: str
    shortcuts: Shortcuts
    on: On = "twin"
    no_twin: str = ""
    unshared: str = ""


def capabilities_of(model: LanguageModel) -> Capabilities:
    """Returns what a model's twin shows, or else the model itself. Takes it from the disk where the twin was tried before."""
    config = model.checkpoint.config | mlx_lm_settings(model.checkpoint.config)
    whole = model.network if model.split.whole is None else model.split.whole
    kept = backend.cache_folder("twins") / f"{_key(model, config)}.json"
    if (remembered := _recalled(kept)) is not None:
        return remembered
    try:
        capabilities = try_twin(twin(whole, config))
    except Exception as error:  # NoTwin, or whatever the model file fails with
        return _without_twin(model, config, f"no twin ({first_line(error)})")
    remember(kept, asdict(capabilities))
    return capabilities


def try_twin(network: Any) -> Capabilities:
    """Tries all on a twin."""
    vocabulary = int(Network(network)(mx.array([[0]]), None).shape[-1])
    return try_network(network, vocabulary, WINDOW, "twin", TAIL * rounding_noise(network, vocabulary, 4 * WINDOW))


def try_network(network: Any, vocabulary: int, window: int, on: On, noise: float = 0.0) -> Capabilities:
    """Tries all on ``network``, with rows of up to four times ``window`` tokens. Raises whatever the network raises on a row alone.

    ``noise``: of its logits, as far as it is known.
    """
    allowed = allowed_difference(network, vocabulary, noise)
    short = find_shortcuts(network, vocabulary, trial_limits(ROWS), True, allowed, window)
    head, alone = Head(network) if short.head else None, SingleRows(network)
    reason, of = "", " of a small random twin" if on == "twin" else ""
    for way in WAYS[:-1]:
        try:
            difference = batch_difference(alone, vocabulary, way, window, allowed, head, short.chunked)
        except Exception as error:  # a model file may fail in any way
            reason = fallback_reason(way, reason, crash_reason(f"{way} batches{of}", error))
            continue
        if difference <= allowed:
            unshared = prefix_refusal(alone, vocabulary, way, window, allowed, head) if way in PADDED and short.chunked else ""
            return Capabilities(way, difference, reason, short, on, unshared=f"{unshared}{of}" if unshared else "")
        reason = fallback_reason(way, reason, f"{way} batches{of} change logprobs by {difference:.2g} (allowed {allowed:.2g})")
    return Capabilities("alone", 0.0, reason, short, on)


def _without_twin(model: LanguageModel, config: Config, why: str) -> Capabilities:
    """Tries all on the model's own weights, with rows longer than all its windows, if that is cheap. ``why``: there is no twin."""
    context = model.checkpoint.context or sys.maxsize
    window = max((length for length in window_lengths(config) if length < context), default=0)
    if not window:  # short rows show everything, and are tried anyway
        return Capabilities("padded", 0.0, "", Shortcuts(True, True, True, True), "weights", why)
    reason = f"{why}, and rows longer than {window} tokens take too long to try them on the model itself"
    if get_total_parameters(model.network) * TOKENS * window <= WORK:
        try:
            return replace(try_network(model.network, model.vocabulary, window, "weights"), no_twin=why)
        except Exception as error:  # a model file may fail in any way
            reason = f"{why}, and {crash_reason(f'rows longer than {window} tokens', error)}"
    return Capabilities("exact", 0.0, reason, Shortcuts(True, False, False, True, (reason,)), "weights", why)


def _recalled(kept: Path) -> Capabilities | None:
    try:
        values = read_document(kept)
        short = values.pop("shortcuts")
        return Capabilities(shortcuts=Shortcuts(**(short | {"reasons": tuple(short["reasons"])})), **values)
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or damaged: it is only a memory
        return None


def _key(model: LanguageModel, config: Config) -> str:
    """Returns a key of the config and of all code that computes twins. Models with equal keys have equal verdicts."""
    names = ("mlx", "mlx-lm", "mlx-bulk")
    return digest(
        {
            "config": config,
            "versions": {name: version(name) for name in names},
            "code": code_digest(model.network),
            "device": backend.device_name(),
            "blas": backend.product_build(),
            "kernels": native.name(),
            "substitutes": model.substitutes,
        }
    )


def code_digest(network: nn.Module) -> str:
    """Returns the sha256 of our source and of the network's model files. While they are worked on, their version stays the same."""
    classes = {cls for module in network.modules() for cls in type(module).__mro__}
    methods = (vars(cls).get(name) for cls in classes for name in ("__init__", "__call__"))
    files = {Path(method.__code__.co_filename) for method in methods if isinstance(method, FunctionType)}
    return sha256((_digest_of(files) + own_digest()).encode()).hexdigest()


def _digest_of(files: set[Path]) -> str:
    combined = sha256()
    for file in sorted(file for file in files if file.is_file()):
        combined.update(sha256(file.read_bytes()).digest())
    return combined.hexdigest()


@cache
def own_digest() -> str:
    """Returns the sha256 of our source as this process first saw it: it loads each file once as well."""
    return _digest_of(own_sources())


def own_sources() -> set[Path]:
    """Returns every file of ours that may change what a model computes: the Python, C++ and CUDA of runner and kernels."""
    packages = [Path(package.__path__[0]) for package in (kernels, runner)]
    return {file for package in packages for kind in ("*.py", "*.h", "*.cpp", "*.cuh") for file in package.rglob(kind)}

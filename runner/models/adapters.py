"""Puts an adapter (LoRA or DoRA in mlx-lm's format) or full weights on a loaded network, and takes it off, without loading anew.

The base model's modules and arrays are kept and put back, never computed back: with nothing on, the network is the base to the bit.
Belongs to the model's thread. Knows no policy versions, and no folders but the one it reads.
"""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from ..core.errors import ModelError, first_line
from ..patched_layers.call_context import reads_pictures
from ..patched_layers.joined_projections import separate_projections
from ..patched_layers.layer_patching import note_products

CONFIG, TENSORS = "adapter_config.json", "adapters.safetensors"
TRIAL = (0, 1, 0, 0, 1, 1, 0, 1)  # ids that every vocabulary has
_LEAVES = ("lora_a", "lora_b", "m")
_NAMED = 3
_SHOWN = 60  # characters of a value in a message
_EXPECTED: dict[str, tuple[tuple[type, ...], str]] = {  # the settings of LoRA and DoRA, as mlx-lm writes them
    "num_layers": ((int,), "a whole number: of the last layers that it is on"),
    "lora_parameters": ((dict,), "a mapping with rank, scale, and keys for chosen layers"),
    "lora_parameters.rank": ((int,), "a whole number"),
    "lora_parameters.scale": ((int, float), "a number"),
    "lora_parameters.dropout": ((int, float, NoneType), "a number, or nothing"),
    "lora_parameters.keys": ((list, NoneType), "a list of names of layers, or nothing"),
}
_NEEDED = ("num_layers", "lora_parameters", "lora_parameters.rank")  # mlx-lm itself misses the scale, with advice


@dataclass(slots=True)
class _Replacement:
    """Replacements of the base's modules, by path, and arrays, by name."""

    modules: dict[str, nn.Module] = field(default_factory=dict[str, nn.Module])
    arrays: dict[str, mx.array] = field(default_factory=dict[str, mx.array])


class AdapterRefused(ModelError):
    """Raised where an adapter cannot be put on; says why."""


class Adapters:
    """Puts adapters and weights on ``network``, whose parameters have been read, and takes them off.

    dtype: the type that they are cast to, None for their own. weights: returns the fingerprint of the base's weights. opened: returns
    the network of another checkpoint's folder, made as the base was.
    """

    def __init__(self, network: Any, dtype: mx.Dtype | None, weights: Callable[[], str], opened: Callable[[Path], nn.Module]):
        self._network, self._dtype, self.weights, self._opened = network, dtype, weights, opened
        self._modules: dict[str, nn.Module] = dict(network.named_modules())
        self._arrays: dict[str, mx.array] = dict(tree_flatten(network.parameters()))
        self._on = self._first = _Replacement()
        self._truth: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the base's arrays, which stay in memory beside full weights."""
        return sum(array.nbytes for array in self._arrays.values())

    def put_on(self, folder: Path) -> None:
        """Replaces what is on by what ``folder`` holds: an adapter, or a checkpoint with the base's layers.

        Raises AdapterRefused with the reason where that fails, and then nothing has changed.
        """
        before = self._on
        separate_projections(self._network)  # from now on: with some of them replaced, the others would be computed in another way
        self._apply(_Replacement())
        self._check_base()
        try:
            self._on = _full(self._network, self._opened(folder), self._arrays) if is_full(folder) else self._wrapped(folder)
            self._apply(self._on)
            if self._dtype is not None:
                self._network.set_dtype(self._dtype)
                self._on.arrays = {name: self._now()[name] for name in self._on.arrays}
            self._network.eval()
            mx.eval(self._network.parameters())
            if not np.isfinite(self._trial()).all():
                raise AdapterRefused("its logits are NaN or infinite")
        except (Exception, SystemExit) as error:  # mlx-lm and model files fail in any way
            self._restore(before)
            raise AdapterRefused(f"{folder}: {_reason(error)}") from error

    def try_on(self, folder: Path) -> None:
        """Puts on what ``folder`` holds, and what was on before again. Raises AdapterRefused where ``put_on`` would."""
        before = self._on
        self.put_on(folder)
        self._apply(before)

    @contextmanager
    def reverting(self) -> Generator[None]:
        """Restores what is on before the block if the block fails."""
        before = self._on
        try:
            yield
        except BaseException:
            self._apply(before)
            raise

    def back(self) -> None:
        """Puts on again what was on when the model was loaded."""
        self._apply(self._first)

    def stay(self) -> None:
        """Makes what is on now the state to which ``back`` returns."""
        self._first = self._on

    def note_anew(self) -> None:
        """Notes the base's bits again at the next swap: another model of the same files was loaded, which may change its kernels."""
        self._truth = None

    @contextmanager
    def off(self) -> Generator[None]:
        """Takes all off inside the block. Raises ModelError where the base is not what it was before anything was put on."""
        on = self._on
        self._apply(_Replacement())
        try:
            self._check_base()
            yield
        finally:
            self._apply(on)

    # ----------------------------------------------------------------------------------------------------- swapping

    def _apply(self, wanted: _Replacement) -> None:
        for path in self._on.modules:
            _put(self._network, path, self._modules[path])
        if changed := self._on.arrays.keys() | wanted.arrays.keys():
            self._network.load_weights([(name, wanted.arrays.get(name, self._arrays[name])) for name in changed], strict=False)
        for path, module in wanted.modules.items():
            _put(self._network, path, module)
        self._on = wanted
        note_products(self._network)

    def _restore(self, before: _Replacement) -> None:
        """Restores what was on before a failure, which may have left any module behind."""
        now = dict(self._network.named_modules())
        self._on = _Replacement({path: now[path] for path in self._modules if now.get(path) is not self._modules[path] and path in now}, {})
        self._on.arrays = dict(self._arrays)
        self._apply(before)

    def _wrapped(self, folder: Path) -> _Replacement:
        """Lets mlx-lm put an adapter's folder on the base; returns what it has replaced."""
        settings = load_adapter(self._network, folder)
        given: dict[str, mx.array] = mx.load(str(folder / TENSORS))  # pyright: ignore[reportAssignmentType]
        if bad := [name for name, array in given.items() if not mx.all(mx.isfinite(array)).item()]:
            raise AdapterRefused(f"{bad[0]} holds NaN or infinite numbers")
        if settings.get("fine_tune_type") == "full":
            return _Replacement(arrays={name: self._now()[name] for name in given})
        now = dict(self._network.named_modules())
        modules = {path: now[path] for path, module in self._modules.items() if now.get(path, module) is not module}
        held = [f"{path}.{leaf}" for path, module in modules.items() for leaf in _LEAVES if leaf in module]
        if missing := sorted(set(held) - given.keys()):
            raise AdapterRefused(f"{TENSORS} lacks {_first_names(missing)}, which {CONFIG} asks for")
        if not modules:
            raise AdapterRefused(f"{CONFIG} names no layers that the model has")
        outermost = {path: module for path, module in modules.items() if not any(path.startswith(f"{other}.") for other in modules)}
        return _Replacement(outermost)

    def _now(self) -> dict[str, mx.array]:
        return dict(tree_flatten(self._network.parameters()))

    # ------------------------------------------------------------------------------------------------------- probing

    def _check_base(self) -> None:
        """Checks that the network with nothing on gives the bits that it gave first. Raises ModelError where not."""
        if self._truth is None:
            self._truth = self._trial()
        elif not np.array_equal(self._truth, self._trial(), equal_nan=True):
            raise ModelError("with the adapter off the model's logits are not the base model's any more; start the run again")

    def _trial(self) -> NDArray[np.float32]:
        return np.array(self._network(mx.array([TRIAL])).astype(mx.float32))


def is_full(folder: Path) -> bool:
    """Returns whether ``folder`` holds a whole checkpoint, not an adapter."""
    return not (folder / CONFIG).is_file() and (folder / "config.json").is_file()


def replaces_weights(folder: Path) -> bool:
    """Returns whether ``folder`` holds weights that replace the base's: a checkpoint, or a fully trained adapter."""
    if is_full(folder):
        return True
    try:
        settings = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):  # loading it says so
        return False
    return isinstance(settings, dict) and settings.get("fine_tune_type") == "full"  # pyright: ignore[reportUnknownMemberType]


def load_adapter(network: Any, folder: Path) -> dict[str, Any]:
    """Lets mlx-lm put an adapter's folder on ``network``, and returns its settings. Where these lack dropout it is 0: nothing trains here.

    Raises AdapterRefused where the settings cannot be used; mlx-lm raises in many ways.
    """
    from mlx_lm.utils import load_adapters

    settings = _settings(folder)
    parameters = settings.get("lora_parameters")
    if parameters is None or parameters.get("dropout") is not None:
        load_adapters(network, str(folder))
        return settings
    with TemporaryDirectory(prefix="mlx-bulk-") as whole:  # mlx-lm reads them from a folder
        (Path(whole) / CONFIG).write_text(json.dumps({**settings, "lora_parameters": {**parameters, "dropout": 0.0}}), encoding="utf-8")
        (Path(whole) / TENSORS).symlink_to((folder / TENSORS).absolute())
        load_adapters(network, whole)
    return settings


def _settings(folder: Path) -> dict[str, Any]:
    """Reads adapter_config.json. Raises AdapterRefused where mlx-lm cannot use it."""
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            files = ", ".join(sorted(path.name for path in folder.iterdir())[:_NAMED]) or "nothing"
            raise AdapterRefused(f"holds no {name} (it holds {files}); expected an adapter in mlx-lm's format, or a checkpoint")
    settings = json.loads((folder / CONFIG).read_bytes())
    if not isinstance(settings, dict):
        raise AdapterRefused(
            f"its {CONFIG} holds {_json_text(settings)}; expected a mapping with fine_tune_type, num_layers, lora_parameters"
        )
    if "peft_type" in settings:
        raise AdapterRefused("is an adapter in PEFT's format; expected mlx-lm's (fine_tune_type, num_layers, lora_parameters)")
    if settings.get("fine_tune_type") != "full":
        _require_lora(cast("dict[str, Any]", settings))
    return cast("dict[str, Any]", settings)


def _require_lora(settings: dict[str, Any]) -> None:
    """Raises AdapterRefused for a setting of LoRA that is missing, or of another type than mlx-lm's."""
    inner = cast("dict[str, Any]", settings.get("lora_parameters") if isinstance(settings.get("lora_parameters"), dict) else {})
    found = settings | {f"lora_parameters.{name}": value for name, value in inner.items()}
    for key, (kinds, words) in _EXPECTED.items():
        if key not in found and key not in _NEEDED:
            continue
        value = found.get(key)
        if not isinstance(value, kinds) or isinstance(value, bool):
            problem = f": {key}: found {_json_text(value)}" if key in found else f" has no {key}"
            raise AdapterRefused(f"its {CONFIG}{problem}; expected {words}")


def _json_text(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _full(network: nn.Module, other: nn.Module, base: dict[str, mx.array]) -> _Replacement:
    """Returns the weights of another checkpoint, to replace the base's. Raises AdapterRefused where they do not fit."""
    if reads_pictures(network):
        raise AdapterRefused("is a checkpoint, and its vision tower would not be read, which rows with pictures need; expected an adapter")
    given: dict[str, mx.array] = dict(tree_flatten(other.parameters()))
    if odd := sorted(given.keys() ^ base.keys()):
        raise AdapterRefused(f"the checkpoint has other layers than the model: {_first_names(odd)}")
    if unlike := [name for name in base if base[name].shape != given[name].shape]:
        raise AdapterRefused(f"{unlike[0]} has the shape {given[unlike[0]].shape}, the model's is {base[unlike[0]].shape}")
    mx.eval(list(given.values()))
    if bad := [name for name, array in given.items() if not mx.all(mx.isfinite(array)).item()]:
        raise AdapterRefused(f"{bad[0]} holds NaN or infinite numbers")
    return _Replacement(arrays=given)


def _put(network: Any, path: str, module: nn.Module) -> None:
    """Puts ``module`` at ``path``: names and numbers of children, with dots between them."""
    *above, name = path.split(".")
    node = network
    for part in above:
        node = node[int(part)] if isinstance(node, list | tuple) else node[part]
    node[int(name) if isinstance(node, list) else name] = module


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"its {CONFIG} has no {error.args[0]}" if "scale" not in str(error) else str(error.args[0])
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # mlx-lm lists tensors after such a line
        return f"{lines[1]}" + (f" (and {len(lines) - 2} more)" if len(lines) > 2 else "")
    return first_line(error)


def _first_names(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")

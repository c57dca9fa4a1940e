"""The arguments with which Python code hands over a policy: the step, a folder or arrays. Checked, and written as mlx-lm's two files.

Knows neither the policies that were there before nor the network.
"""

import json
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from ..models.adapters import CONFIG, TENSORS


def given_step(version: object) -> int:
    """Returns the trainer's step. Raises TypeError where it is no whole number."""
    if isinstance(version, bool) or not isinstance(version, Integral):
        raise TypeError(f"update: version: found {_type(version)}; expected the trainer's step, an int")
    return int(version)


def given_folder(adapter: object) -> Path:
    """Returns the path of the folder, from the root on: the working folder may change until it is loaded. Raises TypeError for others."""
    if not isinstance(adapter, str | Path):
        raise TypeError(f"update: adapter: found {_type(adapter)}; expected the path of a folder, a str or Path")
    return Path(adapter).expanduser().absolute()


def write_given(folder: Path, settings: object, tensors: object) -> None:
    """Writes an adapter's settings and tensors into ``folder``. Raises TypeError for values that an adapter's files cannot hold."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"update_arrays: settings: found {_type(settings)}; expected a mapping, the contents of an {CONFIG}")
    for key, value in cast("Mapping[object, object]", settings).items():
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError) as error:
            cure = "expected plain numbers, texts, lists and mappings"
            raise TypeError(f"update_arrays: settings: {key!r} cannot be written as JSON ({error}); {cure}") from None
    if not isinstance(tensors, Mapping):
        cure = "expected a mapping: dict(tree_flatten(model.trainable_parameters()))"
        raise TypeError(f"update_arrays: tensors: found {_type(tensors)}; {cure}")
    for name, tensor in cast("Mapping[object, object]", tensors).items():
        if not isinstance(name, str) or not isinstance(tensor, mx.array):
            cure = "expected mx.array under a name; mx.array(…) makes one"
            raise TypeError(f"update_arrays: tensors: found {_type(tensor)} under {name!r}; {cure}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(dict(cast("Mapping[str, Any]", settings))), encoding="utf-8")
    mx.save_safetensors(str(folder / TENSORS), dict(cast("Mapping[str, mx.array]", tensors)))


def _type(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"

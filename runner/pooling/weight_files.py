"""The weights of a checkpoint by their names, read lazily: a file's header tells names and shapes, and numbers are read when computed."""

from pathlib import Path
from typing import Any, cast

from ...kernels import backend
from ..core.errors import ModelError, first_line

FILES = "model*.safetensors"  # as mlx-lm reads them


def checkpoint_weights(folder: Path) -> dict[str, Any]:
    """Returns the arrays of a checkpoint, not read yet. Raises ModelError, which names the file, where one is damaged."""
    mx = backend.load_mlx()
    weights: dict[str, Any] = {}
    for file in sorted(folder.glob(FILES)):
        try:
            weights |= cast(dict[str, Any], mx.load(str(file)))
        except Exception as error:  # mlx raises many kinds; each means that the file is damaged
            raise ModelError(f"{file.name} cannot be read: {first_line(error)}; fetch the model anew") from error
    return weights

"""Holds the job kinds, the command line, and ``Rollouts`` for trainers in the same process. Importing it prepares the backend."""

from typing import TYPE_CHECKING

from ..kernels import backend

if TYPE_CHECKING:
    from .generate.trainer_api import Rollouts

__all__ = ["Rollouts"]

backend.prepare()


def __getattr__(name: str) -> object:
    """Imports ``Rollouts``, which takes long, on its first use, so that ``mlx-bulk --help`` answers at once."""
    if name == "Rollouts":
        from .generate.trainer_api import Rollouts

        return Rollouts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

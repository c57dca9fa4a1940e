"""The job kinds and the command line, and ``Rollouts`` for trainers in the same process. Importing it readies the backend."""

from typing import TYPE_CHECKING

from ..kernels import backend

if TYPE_CHECKING:
    from .generate.trainer_api import Rollouts

__all__ = ["Rollouts"]

backend.prepare()


def __getattr__(name: str) -> object:
    """Imports what takes long when it is asked for: ``mlx-bulk --help`` answers at once."""
    if name == "Rollouts":
        from .generate.trainer_api import Rollouts

        return Rollouts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

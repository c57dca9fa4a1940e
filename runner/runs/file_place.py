"""The place of a file that the user names: outside all run directories, and free or a regular file.

Changes nothing. Whether a file that is there may be replaced is for each command to say.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from ...configs.errors import ConfigError
from ..data.input_folder import is_run_directory


def link_target(path: Path) -> Path:
    """Resolves all links in ``path``, of which any part may be missing."""
    return Path(os.path.realpath(path))


def require_outside_runs(option: str, paths: Iterable[Path]) -> None:
    """Raises ConfigError where one of ``paths`` lies in the folder of a run or a sweep, or is one. option: as typed, ``--to out.csv``."""
    for path in paths:
        place = link_target(path)
        if run := next(filter(is_run_directory, (place, *place.parents)), None):
            raise ConfigError(f"{option}: lies in the run directory {run}, which holds the run's own files alone; choose another place")


def require_regular_files(option: str, paths: Iterable[Path]) -> None:
    """Raises ConfigError where one of ``paths`` is there and no regular file. Writing renames over it: a device would be gone."""
    for path in paths:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{option}: {path} is there and is no regular file (a folder, a device, a pipe); name another file")

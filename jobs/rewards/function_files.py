"""Watches the files of the reward functions while a run works: all its rewards are to come from the functions that it began with.

Knows files, and no process.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from .functions import RewardFunction, changed

_Stamp = tuple[int, int, int]


class FunctionFiles:
    """The files of ``functions``, with the sha256 that each had when the run began."""

    def __init__(self, functions: Sequence[RewardFunction]):
        self._functions = {function.path: function for function in functions}
        self._seen: dict[str, _Stamp] = {}  # as the file was when it last had its sha256

    def require_unchanged(self) -> None:
        """Raises DataError where a file has changed. Reads a file only where its time or size has changed. For any thread."""
        for path, function in self._functions.items():
            try:
                stamp = _stamp(Path(path).stat())
                if self._seen.get(path) == stamp:
                    continue
                digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            except OSError as error:
                raise changed(function) from error
            if digest != function.sha256:
                raise changed(function)
            self._seen[path] = stamp


def _stamp(at: os.stat_result) -> _Stamp:
    return at.st_mtime_ns, at.st_size, at.st_ino

"""The folder that a trainer writes policies to: a folder a step, its marker file last. Reads names alone; loads nothing.

adapters/step_000012/adapter_config.json  adapters.safetensors  DONE
adapters/step_000013/adapter_config.json  adapters.sa…             not complete: no DONE yet
"""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...configs.errors import ConfigError

log = logging.getLogger("mlx_bulk")

DONE = "DONE"
STEPS = 2**31  # a record's policy_version is an int32

_STEP = re.compile(r"(?:.*\D)?(\d+)")


@dataclass(slots=True, frozen=True)
class Offer:
    """A policy that a trainer has finished: its step, and the folder with the adapter or the weights."""

    version: int
    folder: Path


class PolicySource(Protocol):
    """Where newer policies come from."""

    def offers(self) -> list[Offer]:
        """All complete policies, the newest first. For any thread."""
        ...


@dataclass(slots=True)
class FolderSource:
    """The complete policies in ``folder``, whose names end in the trainer's step, as step_000012 does."""

    folder: Path
    _said: set[str] = field(default_factory=set[str])

    def offers(self) -> list[Offer]:
        """All complete policies, the newest first; what is passed over is said once. For any thread."""
        try:
            folders = [path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        except OSError:
            self._say(f"{self.folder}: there is no such folder yet; policies are looked for there")
            return []
        found: list[Offer] = []
        for path in folders:
            step = _STEP.fullmatch(path.name)
            if step is None:
                self._say(f"{path}: is passed over, as its name does not end in the trainer's step (step_000012)")
            elif int(step[1]) >= STEPS:
                self._say(f"{path}: is passed over, as its step is not below {STEPS:,}; expected one like step_000012")
            elif (path / DONE).is_file():
                found.append(Offer(int(step[1]), path))
            else:
                self._say(f"{path}: is passed over until it holds a file named {DONE}, which the trainer writes last")
        return sorted(found, key=lambda offer: (offer.version, offer.folder.name), reverse=True)

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.info("policy.watch: %s", what)


@dataclass(slots=True)
class GivenSource:
    """Policies that are given from Python, in the same process."""

    given: list[Offer] = field(default_factory=list[Offer])

    def offers(self) -> list[Offer]:
        """All that were given, the newest first. For any thread."""
        return sorted(self.given, key=lambda offer: offer.version, reverse=True)

    def add(self, folder: Path, version: int) -> None:
        """Gives one more, complete. Raises ConfigError for a step that no record can hold."""
        if version >= STEPS:
            raise ConfigError(f"update: found version {version:,}; expected the trainer's count of steps, below {STEPS:,}")
        self.given.append(Offer(version, folder))

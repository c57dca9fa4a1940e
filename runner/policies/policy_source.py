"""Finds newer policies: in the folder where a trainer writes them, or among those that Python code hands over.

A trainer writes one folder a step, and its marker file last. Only names are read here; nothing is loaded.

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
    """A place where newer policies come from."""

    def offers(self) -> list[Offer]:
        """Returns all complete policies, the newest first. For any thread."""
        ...


def offer_stamp(offer: Offer) -> tuple[object, ...]:
    """Identifies an offer by its files: after the trainer has mended them, the offer is tried again."""
    try:
        files = [(path.name, at.st_size, at.st_mtime_ns) for path in sorted(offer.folder.iterdir()) if (at := path.stat())]
    except OSError:
        files = []
    return offer.version, str(offer.folder), *files


def warn_of_older(offers: list[Offer], version: int) -> bool:
    """Warns where all ``offers`` are older than the policy ``version``, which samples. Returns True where it did."""
    newest = max((offer.version for offer in offers), default=version)
    if newest < version:
        log.warning(
            "policy.watch: the newest step there is %d, older than policy %d, which samples; it is not taken. "
            "For policies of another training choose another --output",
            newest,
            version,
        )
    return newest < version


@dataclass(slots=True)
class FolderSource:
    """The complete policies in ``folder``. Their folders' names end in the trainer's step, as step_000012 does."""

    folder: Path
    _logged: set[str] = field(default_factory=set[str])

    def offers(self) -> list[Offer]:
        """Returns all complete policies, the newest first. Logs once why a folder is passed over. For any thread."""
        try:
            folders = [path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        except OSError:
            self._log_once(f"{self.folder}: there is no such folder yet; policies are looked for there")
            return []
        offers: list[Offer] = []
        for path in folders:
            step = _STEP.fullmatch(path.name)
            if step is None:
                self._log_once(f"{path}: is passed over, as its name does not end in the trainer's step (step_000012)")
            elif int(step[1]) >= STEPS:
                self._log_once(f"{path}: is passed over, as its step is not below {STEPS:,}; expected one like step_000012")
            elif (path / DONE).is_file():
                offers.append(Offer(int(step[1]), path))
            else:
                self._log_once(f"{path}: is passed over until it holds a file named {DONE}, which the trainer writes last")
        return sorted(offers, key=lambda offer: (offer.version, offer.folder.name), reverse=True)

    def _log_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.info("policy.watch: %s", message)


@dataclass(slots=True)
class GivenSource:
    """Policies that Python code hands over in the same process."""

    policies: list[Offer] = field(default_factory=list[Offer])

    def offers(self) -> list[Offer]:
        """Returns all policies that were handed over, the newest first. For any thread."""
        return sorted(self.policies, key=lambda offer: offer.version, reverse=True)

    def add(self, folder: Path, version: int) -> None:
        """Hands over one more complete policy. Raises ConfigError for a step that no record can hold."""
        if version >= STEPS:
            raise ConfigError(f"update: found version {version:,}; expected the trainer's count of steps, below {STEPS:,}")
        self.policies.append(Offer(version, folder))

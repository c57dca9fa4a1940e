"""A run's config on this machine: the driver's, with files that came from it in the place of those that lie there alone.

Loads no model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.errors import ConfigError
from ...configs.identity import identity
from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ..cluster.config_files import lay_out, value_at
from ..cluster.description import RunDescription
from ..core.errors import ModelError
from ..data.scan_result import Scan
from ..files.hash_cache import folder_sha256
from ..images.sources import FileReader
from ..models.checkpoint import ADAPTER_CONTENTS
from ..pipeline.job import Kind
from ..pipeline.run_spec import RunSpec
from .model_folders import find_model
from .parcel_shelf import NoSuchParcel, ParcelShelf


class RunGivenUp(Exception):
    """The driver has ended the run, or offered another one, before it began here."""


@dataclass(slots=True, frozen=True)
class LocalConfig:
    """The config as it is to be used here, and as the driver has told it."""

    config: JobConfig
    told: JobConfig

    def spec(self, scan: Scan, kind: Kind, files: FileReader | None) -> RunSpec:
        """Makes the spec of the run. files: see ``PictureSources``. Raises ConfigError and ModelError where it cannot begin here."""
        try:
            return RunSpec.of_scan(scan, self.config, kind, files)
        except ConfigError as error:
            raise ConfigError(f"{error}{self._advice}") from error

    def identity(self, spec: RunSpec) -> dict[str, Any]:
        """Returns the run's identity here, in which files have the paths that the driver has told; their contents are those of here."""
        ours, as_told, as_used = spec.identity(self.config), identity(self.told), identity(self.config)
        return ours | {key: value for key, value in as_told.items() if as_used[key] != value and ours[key] == as_used[key]}

    @property
    def _advice(self) -> str:
        """What to do about a module of reward functions that is not here, as the end of a message."""
        rewards = self.config.rewards if isinstance(self.config, RolloutConfig) else []
        places = [str(reward.fn).rpartition(":")[0] for reward in rewards if reward.fn is not None]
        modules = sorted({place for place in places if place and not place.endswith(".py")})
        named = f" (modules of reward functions must be installed on each worker: {', '.join(modules)}; a file path.py:function is sent)"
        return named if modules else ""


def local_config(
    described: RunDescription, scratch: Path, shelf: ParcelShelf | None, given_up: Callable[[], bool], models: Path | None = None
) -> LocalConfig:
    """Returns the config of a run here. scratch: a folder of the worker's own, where the run directory would be.

    shelf: where adapters arrive that are not here, None where none can. models: the folder below which models lie that are not where
    the driver has them. Raises RunGivenUp once ``given_up`` says so, ModelError where an adapter does not arrive or a model is not here.
    """
    places = lay_out(described.files, described.config, scratch / "files")
    for key, mark in described.models.items():
        places[key] = str(find_model(mark, key, str(value_at(described.config, key)), models))
    if shelf is not None:
        places |= _adapters(described, shelf, given_up)
    return LocalConfig(described.parsed(str(scratch), places), described.parsed(str(scratch)))


def _adapters(described: RunDescription, shelf: ParcelShelf, given_up: Callable[[], bool]) -> dict[str, str]:
    """Returns the folder of each adapter that the driver has in a folder of its own and that is not at the same path here."""
    places: dict[str, str] = {}
    for key, digest in described.adapters.items():
        folder = Path(str(value_at(described.config, key)))
        if folder.is_dir() and folder_sha256(folder, ADAPTER_CONTENTS) == digest:
            continue
        try:
            arrived = shelf.wait_for(key, given_up)
        except NoSuchParcel as error:
            raise ModelError(f"{key}: {folder} is not here, and did not arrive: {error}") from error
        if arrived is None:
            raise RunGivenUp
        places[key] = str(arrived)
    return places

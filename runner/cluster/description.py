"""The run as a worker is told of it: all that it needs to make the same job, without reading the input.

It travels as a pickle, from the driver to the worker alone.
"""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Self, cast

from ...configs.jobs import ROW_JOBS
from ...configs.schema import JobConfig
from ..core.shard_layout import Layout
from ..data.scan_result import Scan
from ..files.hash_cache import folder_sha256
from ..models.checkpoint import ADAPTER_CONTENTS
from ..pipeline.job import ConfigFiles
from ..pipeline.model_work import OpenRun
from .config_files import ModelMark, config_files, local_adapters, local_models, with_values
from .messages import RunOffer

_ELSEWHERE = {"cluster", "output"}  # sections of the config that say nothing to a worker


@dataclass(slots=True, frozen=True)
class RunDescription:
    """The run ``run`` (a hex digest): its config, its scanned input, its identity, and how its rows are cut into shards.

    files: small local files that the config names. adapters: the sha256 of each adapter's folder that it names by a path, by its key.
    models: of local folders, by the keys of their paths.
    """

    run: str
    config: dict[str, Any]
    scan: Scan
    identity: dict[str, Any]
    layout: Layout
    files: ConfigFiles
    adapters: dict[str, str]
    models: dict[str, ModelMark]

    @classmethod
    def of(cls, run: OpenRun) -> Self:
        """Describes an open run. Two starts of one run with the same settings have the same digest; a run in its place has another."""
        config = {key: value for key, value in run.config.model_dump(mode="json").items() if key not in _ELSEWHERE}
        told = [str(run.run_dir.root.absolute()), run.run_dir.nonce, config, run.identity, run.spec.scan.fingerprint(), run.layout.rows]
        digest = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        adapters = {key: folder_sha256(folder, ADAPTER_CONTENTS) for key, folder in local_adapters(run.config, run.spec).items()}
        return cls(
            digest,
            config,
            run.spec.scan,
            run.identity,
            run.layout,
            config_files(run.config, run.spec),
            adapters,
            local_models(run.config, run.spec),
        )

    def parsed(self, output: str, places: Mapping[str, str] = MappingProxyType({})) -> JobConfig:
        """Returns the config. output: the folder that takes the place of the run's; places: settings of other values, by their keys."""
        return ROW_JOBS[self.config["job"]].model_validate({**with_values(self.config, places), "output": {"path": output}})

    def offer(self) -> RunOffer:
        """Returns the message that offers the run to a worker."""
        return RunOffer(self.run, pickle.dumps(self))

    @classmethod
    def of_offer(cls, offer: RunOffer) -> Self:
        """Reads what the driver has sent."""
        return cast("Self", pickle.loads(offer.description))

"""The run as a worker is told of it: all that it needs to make the same job, without reading the input.

It travels as a pickle, from the driver to the worker alone.
"""

import json
import pickle
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self, cast

from ...configs.jobs import ROW_JOBS
from ...configs.schema import JobConfig
from ..core.shard_layout import Layout
from ..data.scan_result import Scan
from ..pipeline.model_work import OpenRun
from .messages import RunOffer

_ELSEWHERE = {"cluster", "output"}  # sections of the config that say nothing to a worker


@dataclass(slots=True, frozen=True)
class RunDescription:
    """The run ``run`` (a hex digest): its config, its scanned input, its identity, and how its rows are cut into shards."""

    run: str
    config: dict[str, Any]
    scan: Scan
    identity: dict[str, Any]
    layout: Layout

    @classmethod
    def of(cls, run: OpenRun) -> Self:
        """Describes an open run. Two starts of one run with the same settings have the same digest."""
        config = {key: value for key, value in run.config.model_dump(mode="json").items() if key not in _ELSEWHERE}
        identity = run.spec.identity(run.config)
        told = [str(run.run_dir.root.absolute()), config, identity, run.spec.scan.fingerprint(), run.layout.rows]
        return cls(sha256(json.dumps(told, sort_keys=True).encode()).hexdigest(), config, run.spec.scan, identity, run.layout)

    def parsed(self, output: str) -> JobConfig:
        """Returns the config; ``output``: the folder that takes the place of the run's."""
        return ROW_JOBS[self.config["job"]].model_validate({**self.config, "output": {"path": output}})

    def offer(self) -> RunOffer:
        """Returns the message that offers the run to a worker."""
        return RunOffer(self.run, pickle.dumps(self))

    @classmethod
    def of_offer(cls, offer: RunOffer) -> Self:
        """Reads what the driver has sent."""
        return cast("Self", pickle.loads(offer.description))

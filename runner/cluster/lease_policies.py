"""The policies of a rollout run over workers: which one a lease names, the files of each, what workers say of it.

``PolicyDesk`` decides. Does not know leases' rows.
"""

from collections.abc import Iterable
from pathlib import Path
from time import monotonic

import pyarrow as pa

from ...configs.rollout import RolloutConfig
from ..leasing.open_lease import OpenLease
from ..models.checkpoint import ADAPTER_CONTENTS, checkpoint_fingerprints
from ..parcels.parcels import Parcel
from ..pipeline.model_work import OpenRun
from ..policies.policy_desk import PolicyDesk
from ..policies.policy_source import FolderSource
from ..policies.policy_store import PolicyStore
from ..policies.recorded_policies import policy_names
from .config_files import local_adapters
from .interface import Fleet
from .messages import NewestPolicy

_LOOK_SECONDS = 1.0  # between looks for the trainer's newest step


class OtherPolicy(ValueError):
    """Records are of another policy than the one that samples their shard. Their rows are done again."""

    def __init__(self, message: str, shard: int, policies: set[str], refused: bool):
        super().__init__(message)
        self._shard, self._policies, self._refused = shard, policies, refused

    def is_fault(self, leases: Iterable[OpenLease]) -> bool:
        """Returns True where the worker is to blame, which has these leases: some are of this shard, and none named what has sampled.

        Nobody is to blame for a policy that was refused in this start. What a lease named that the worker has since before this start is
        not known: the shard may have another policy by now, as that of then was refused, is damaged, or was removed with a run of which
        nothing was recorded.
        """
        own = [lease for lease in leases if lease.given.shard == self._shard]
        return bool(own) and not self._refused and not any(lease.told or self._policies <= {lease.policy} for lease in own)


class LeasePolicies:
    """The policies of ``run``, whose digest is ``name``. Keeps the first one. All methods are for the driver's thread.

    Raises ModelError where a policy of the run cannot be read, OSError where one cannot be kept.
    """

    def __init__(self, run: OpenRun, name: str, fleet: Fleet):
        self._name, self._fleet = name, fleet
        self._desk = _desk_of(run)
        self._adapters = local_adapters(run.config, run.spec)
        self._newest, self._looked = 0, 0.0
        self._refused = set[str]()  # policies that a worker could not load, by name

    @property
    def version(self) -> int | None:
        """The version of the newest policy that samples; None for a run without policies that change."""
        return None if self._desk is None else self._desk.sampling

    def of(self, shard: int) -> str | None:
        """Returns the name of the policy that samples a shard; None where there is but one."""
        return None if self._desk is None else self._desk.of(shard)

    def name_in(self, leases: Iterable[OpenLease]) -> None:
        """Writes the policy into leases that a worker has since before this start: one that is refused later takes these with it."""
        for lease in leases:
            lease.policy = lease.policy or self.of(lease.given.shard)

    def require_named(self, shard: int, results: pa.RecordBatch) -> None:
        """Notes the policy of results of a shard. Raises OtherPolicy where it is not the one that samples the shard."""
        if self._desk is None or not results.num_rows:
            return
        name = self._desk.of(shard)
        if others := {*policy_names(results)} - {name}:
            text = f"policy {min(others)} has sampled them, and shard {shard} is for {name}"
            raise OtherPolicy(text, shard, others, others <= self._refused)
        self._desk.note_loaded(name)

    def note_loaded(self, name: str) -> None:
        """Notes a policy that a worker has loaded."""
        if self._desk is not None:
            self._desk.note_loaded(name)

    def refuse(self, name: str, reason: str) -> bool:
        """Notes that a worker cannot load a policy. Returns False where others can."""
        if self._desk is None:
            return True
        refused = self._desk.refuse(name, reason)
        self._refused |= {name} if refused else set()
        return refused

    def tell_newest(self, worker: str) -> None:
        """Tells a worker the trainer's newest step."""
        if self._desk is not None:
            self._fleet.send(worker, NewestPolicy(self._name, self._desk.newest_version()))

    def look(self, workers: list[str]) -> None:
        """Looks for the trainer's newest step now and then, and tells all workers of a new one."""
        if self._desk is None or monotonic() < self._looked + _LOOK_SECONDS:
            return
        self._looked, before, self._newest = monotonic(), self._newest, self._desk.newest_version()
        for worker in workers if self._newest != before else ():
            self.tell_newest(worker)

    def parcel(self, name: str) -> Parcel | None:
        """Returns the files of a policy, or of an adapter that the config names, for workers that ask for them; None for others."""
        if (adapter := self._adapters.get(name)) is not None:
            return Parcel.of_folder(adapter, ADAPTER_CONTENTS)
        folder = None if self._desk is None else self._desk.folder(name)
        return None if folder is None else Parcel.of_folder(folder)


def _desk_of(run: OpenRun) -> PolicyDesk | None:
    """Returns what decides on the policies of a run; None where there is one policy, which is kept, or none."""
    config = run.config
    if not isinstance(config, RolloutConfig):
        return None
    store = PolicyStore(run.run_dir.policies, checkpoint_fingerprints(run.spec.checkpoint)["model.weights"])
    if config.policy.watch is None:
        store.keep_first(run.spec.checkpoint.adapter)
        store.warn_of_first()
        return None
    source = FolderSource(Path(config.policy.watch))
    return PolicyDesk(run.run_dir, store, source, run.layout, config.policy.update == "round", run.recovered.done.keys())

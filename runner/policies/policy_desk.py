"""Decides which policy samples which rows of a run whose models are elsewhere: on workers, which load the policies or refuse them.

One policy samples all of a shard (or of a round), whoever does its rows and however often the run is started. Knows no network, and
not how a policy gets to a worker.

    shard     0    1    2    3         policy 12 was complete when shard 2 was begun
    policy    0    0    12   12
"""

import logging
from collections.abc import Collection
from pathlib import Path

from ..core.errors import ModelError
from ..core.policy import Policy
from ..core.shard_layout import Layout
from ..models.adapters import AdapterRefused
from ..runs.failures import REFUSED
from ..store.paths import RunPaths
from .policy_source import Offer, PolicySource, offer_stamp, warn_of_older
from .policy_store import BEGUN, SENT, TAKEN, PolicyStore, WeightsMoved
from .recorded_policies import last_policies, policy_at_start_of

log = logging.getLogger("mlx_bulk")


class PolicyDesk:
    """The policies of the run ``run``. source: where newer ones come from. whole_rounds: one policy samples a round, not only a shard.

    sampling: the version of the newest policy that samples. done: shards that have records. All methods are for one thread.

    Raises ModelError where a policy that has sampled in the run cannot be read, nor any newer one; OSError where one cannot be kept.
    """

    def __init__(self, run: RunPaths, store: PolicyStore, source: PolicySource, layout: Layout, whole_rounds: bool, done: Collection[int]):
        self._store, self._source, self._layout, self._whole_rounds = store, source, layout, whole_rounds
        store.keep_base()
        sent, taken = store.noted(SENT), store.noted(TAKEN)
        self._policies = _kept_policies(store)
        self._tried = {name for name in self._policies if name in taken or name not in sent}
        self._offers = {name: Offer(int(line["version"]), Path(line["source"])) for name, line in sent.items() if name not in taken}
        self._refused_files: set[tuple[object, ...]] = set()
        self._warned_older = False
        self._run = run
        self._units = (dict(last_policies(run, sorted(done))) if not whole_rounds else {}) | store.begun()
        self.sampling = max(int(name.split("-")[0]) for name in self._tried)
        self._take_newest()
        store.require_no_step_back(self._newest.version)

    def of(self, shard: int) -> str:
        """Returns ``Policy.name`` of the policy that samples a shard. The first call for a shard, or a round, decides it for good."""
        unit = self._unit(shard)
        name = self._units.get(unit)
        if name is None and self._whole_rounds:  # a run without workers may have begun it
            name = policy_at_start_of(self._run, self._layout, unit)
        if name is not None and name not in self._policies and self._whole_rounds and name not in self._offers:
            self._store.policy(name)  # says what is wrong with it
        if name is None or name not in self._policies:
            self._take_newest()
            name = self._newest.name
        if self._units.get(unit) != name:
            self._store.note(BEGUN, {"unit": unit, "policy": name})
            self._units[unit] = name
        return name

    def newest_version(self) -> int:
        """Returns the trainer's newest finished step, refused or not."""
        return max([self._newest.version, *(offer.version for offer in self._source.offers())])

    def folder(self, name: str) -> Path | None:
        """Returns the folder that a worker needs of a policy; None where the run does not keep it."""
        return self._store.root / name if name in self._policies else None

    def note_loaded(self, name: str) -> None:
        """Notes that a worker samples with a policy, so that it must stay kept."""
        if name in self._tried or (policy := self._policies.get(name)) is None:
            return
        offer = self._offers.pop(name)
        self._store.note(TAKEN, {"version": policy.version, "sha": policy.sha, "source": str(offer.folder)})
        self._tried.add(name)
        log.info("policy %d (sha256 %s) samples from here on, in place of policy %d", policy.version, policy.sha[:12], self.sampling)
        self.sampling = max(self.sampling, policy.version)

    def refuse(self, name: str, reason: str) -> bool:
        """Notes that a worker cannot load a policy; its shards get another. Returns False where other workers can: that one is to blame."""
        if name in self._tried:
            return False
        if (policy := self._policies.pop(name, None)) is not None:
            self._refuse(self._offers.pop(name), reason)
            self._store.drop(policy.name)
            self._units = {unit: other for unit, other in self._units.items() if other != name}
        return True

    @property
    def _newest(self) -> Policy:
        return max(self._policies.values(), key=lambda policy: policy.version)

    def _unit(self, shard: int) -> int:
        return shard // max(1, self._layout.shards_a_round) if self._whole_rounds else shard

    def _take_newest(self) -> None:
        """Keeps the newest policy that the source offers, where it is newer than those that are kept."""
        offers = self._source.offers()
        self._warned_older = self._warned_older or warn_of_older(offers, self._newest.version)
        for offer in offers:
            if offer.version <= self._newest.version or offer_stamp(offer) in self._refused_files:
                continue
            try:
                with self._store.keeping(offer) as (policy, _):
                    self._store.note(SENT, {"version": policy.version, "sha": policy.sha, "source": str(offer.folder)})
            except AdapterRefused as error:
                self._refuse(offer, str(error).split(": ", 1)[-1])
                continue
            self._policies[policy.name], self._offers[policy.name] = policy, offer
            return

    def _refuse(self, offer: Offer, reason: str) -> None:
        self._refused_files.add(offer_stamp(offer))
        log.warning("%s: is refused: %s; policy %d goes on", offer.folder, reason, self._newest.version)
        self._store.note(REFUSED, {"version": offer.version, "source": str(offer.folder), "reason": reason})


def _kept_policies(store: PolicyStore) -> dict[str, Policy]:
    """Returns the policies that are kept, by ``Policy.name``. Damaged ones are left out with a warning."""
    policies: dict[str, Policy] = {}
    for name in store.names():
        try:
            policies[name] = store.policy(name)
        except WeightsMoved:
            continue
        except ModelError as error:
            log.warning("%s", error)
    return policies

"""Holds the policy that samples now, and loads the next one while the engine has nothing in flight.

A policy is kept in the run directory before it samples anything; one that cannot be loaded is refused. Does not know rows or engines.
"""

import logging
from pathlib import Path

from ..core.units import size_as_text
from ..models.adapters import AdapterRefused, Adapters, replaces_weights
from ..runs.failures import REFUSED
from .policy_source import Offer, PolicySource, offer_stamp, warn_of_older
from .policy_store import TAKEN, PolicyStore, put_policy_on

log = logging.getLogger("mlx_bulk")


class PolicyUpdater:
    """Puts the policies that ``source`` offers on a network through ``adapters``. Without a source the policy never changes.

    fixed: the folder of the adapter that the model was loaded with, None without one. full_fits: there is room for full weights
    beside the base's. ``policy`` samples now; ``refused`` counts the offers of this session that could not be loaded. Belongs to
    the model's thread, except ``newest_version``.

    Raises ModelError where a policy that has sampled in the run cannot be loaded, nor any newer one.
    """

    def __init__(self, adapters: Adapters, store: PolicyStore, fixed: Path | None, source: PolicySource | None, full_fits: bool):
        self._adapters, self._store, self._source, self._full_fits = adapters, store, source, full_fits
        self._refused_files: set[tuple[object, ...]] = set()
        self._warned_older = False
        self.refused = 0
        self.policy = store.keep_first(fixed)
        if source is None:
            store.warn_of_first()
        if source is not None:  # a trainer that removes old steps does not take the run back to an older one
            self._load_first([*source.offers(), *store.kept()])
            store.require_no_step_back(self.policy.version)
            self._offers(source)

    @property
    def live(self) -> bool:
        """True when newer policies may come."""
        return self._source is not None

    @property
    def newer_available(self) -> bool:
        """True when a newer policy is there that has not been refused."""
        return self._source is not None and any(self._newer(offer) for offer in self._offers(self._source))

    def load_newest(self) -> None:
        """Loads the newest policy that can be loaded; without one, the present policy goes on. Nothing may be in flight."""
        if self._source is not None:
            self._load_first(self._source.offers())

    def load_kept(self, name: str) -> None:
        """Loads the policy that the run keeps as ``name``, older or newer. Nothing may be in flight.

        Raises ModelError where it is not whole, or cannot be loaded; then nothing has changed.
        """
        policy = self._store.policy(name)
        if policy.adapter is not None:
            self.require_room(policy.adapter)
        put_policy_on(self._adapters, policy)
        log.info("policy %d samples on in the rows that it began, in place of policy %d", policy.version, self.policy.version)
        self.policy = policy

    def newest_version(self) -> int:
        """Returns the trainer's newest finished step, refused or not. For any thread."""
        offers = [] if self._source is None else self._source.offers()
        return max([self.policy.version, *(offer.version for offer in offers)])

    def _load_first(self, offers: list[Offer]) -> None:
        """Loads the newest of the offers that can be loaded and is newer than the present policy."""
        for offer in sorted(filter(self._newer, offers), key=lambda offer: offer.version, reverse=True):
            try:
                self.require_room(offer.folder)
                with self._adapters.reverting():  # weights that cannot be kept must not sample under the old policy's name
                    with self._store.keeping(offer) as (policy, folder):
                        self._adapters.put_on(folder)
                    self._store.note(TAKEN, {"version": policy.version, "sha": policy.sha, "source": str(offer.folder)})
            except AdapterRefused as error:
                self._refuse(offer, str(error))
                continue
            log.info(
                "policy %d (sha256 %s) samples from here on, in place of policy %d", policy.version, policy.sha[:12], self.policy.version
            )
            self.policy = policy
            return

    def _offers(self, source: PolicySource) -> list[Offer]:
        """Returns the source's offers. Warns once if all of them are older than the present policy."""
        offers = source.offers()
        self._warned_older = self._warned_older or warn_of_older(offers, self.policy.version)
        return offers

    def require_room(self, folder: Path) -> None:
        """Raises AdapterRefused where ``folder`` holds full weights, and there is no room for them."""
        if not self._full_fits and replaces_weights(folder):
            need = size_as_text(self._adapters.nbytes)
            cure = "raise batch.memory and start the same command again, or train an adapter"
            raise AdapterRefused(f"{folder}: full weights take {need} beside the base's, more than half of the room for KV caches; {cure}")

    def _newer(self, offer: Offer) -> bool:
        return offer.version > self.policy.version and offer_stamp(offer) not in self._refused_files

    def _refuse(self, offer: Offer, reason: str) -> None:
        reason = reason.split(": ", 1)[-1]
        self._refused_files.add(offer_stamp(offer))
        self.refused += 1
        log.warning("%s: is refused: %s; policy %d goes on", offer.folder, reason, self.policy.version)
        self._store.note(REFUSED, {"version": offer.version, "source": str(offer.folder), "reason": reason})

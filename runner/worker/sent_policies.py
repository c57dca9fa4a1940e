"""The policies of a worker: each lease names one, the driver sends its files, and it is put on the network while nothing is in flight.

Knows no leases; ``LeaseSession`` says which policy comes next.
"""

from collections.abc import Callable
from contextlib import suppress

from ..core.errors import ModelError
from ..models.adapters import Adapters
from ..policies.policy_store import PolicyStore, WeightsMoved
from ..policies.policy_updater import PolicyUpdater
from .parcel_shelf import NoSuchParcel, ParcelShelf

_KEPT = 2  # policies whose files stay here beside the base: the present one, and the one before


class PolicyNotLoaded(Exception):
    """This worker cannot load the policy ``name``. Nothing has changed."""

    def __init__(self, name: str, reason: str):
        super().__init__(reason)
        self.name, self.reason = name, reason


class SentPolicies(PolicyUpdater):
    """Puts policies on a network that the driver sends, each under its ``Policy.name``. Others are as in ``PolicyUpdater``.

    shelf: where their files arrive; store: the same folder. loaded: is called with the name of each policy that is put on. stopped:
    returns True when the run is to end here.
    """

    def __init__(
        self,
        adapters: Adapters,
        store: PolicyStore,
        full_fits: bool,
        shelf: ParcelShelf,
        loaded: Callable[[str], None],
        stopped: Callable[[], bool],
    ):
        super().__init__(adapters, store, None, None, full_fits)
        self._base = self.policy.name
        self._shelf, self._loaded, self._is_stopped = shelf, loaded, stopped
        self._here: list[str] = []
        self._names: list[str] = []
        self._of_shards: dict[int, int] = {}  # a shard -> its policy's place in _names
        self._newest = 0

    @property
    def live(self) -> bool:
        """True: newer policies may come."""
        return True

    def newest_version(self) -> int:
        """Returns the trainer's newest finished step that the driver has told. For any thread."""
        return max(self.policy.version, self._newest)

    def note_newest(self, version: int) -> None:
        """Notes the trainer's newest finished step. For any thread."""
        self._newest = max(self._newest, version)

    def assign(self, shard: int, name: str) -> None:
        """Notes the policy that samples the rows of a shard which come next. For the thread that reads ahead."""
        if name not in self._names:
            self._names.append(name)
        self._of_shards[shard] = self._names.index(name)

    def number_of(self, shard: int) -> int:
        """Returns a number that all shards of one policy share."""
        return self._of_shards[shard]

    def name_of(self, number: int) -> str:
        """Returns the name of the policy with a number of ``number_of``."""
        return self._names[number]

    def load_kept(self, name: str) -> None:
        """Loads the policy, once it is here. Nothing may be in flight. Changes nothing where the run is to end here before.

        Raises PolicyNotLoaded.
        """
        try:
            if name != self._base and self._shelf.wait_for(name, self._is_stopped) is None:
                return
            super().load_kept(name)
        except NoSuchParcel as error:
            raise PolicyNotLoaded(name, str(error)) from error
        except WeightsMoved as error:
            folder = str(error).split(": ", 1)[0]
            raise PolicyNotLoaded(
                name,
                f"full weights are not sent to workers, and one of them does not see {folder}; let the trainer write where all machines "
                "read, or write adapters",
            ) from error
        except ModelError as error:
            self._shelf.drop(name)
            raise PolicyNotLoaded(name, str(error).split(": ", 1)[-1]) from error
        self._loaded(name)
        self._remove_old(name)

    def _remove_old(self, name: str) -> None:
        if name == self._base:
            return
        with suppress(ValueError):
            self._here.remove(name)
        self._here.append(name)
        while len(self._here) > _KEPT:
            self._shelf.drop(self._here.pop(0))

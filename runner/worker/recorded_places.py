"""What is recorded of the rows of a worker's leases, as the driver has told with each."""

from collections.abc import Sequence

from ..cluster.messages import Lease
from ..core.shard_layout import Layout, Place
from ..store.recovery import Recovered
from ..store.shard_ledger import ledger_of


class RecordedPlaces:
    """Places of records by shard and position. recovered: the same, for a session's input; it changes with each lease."""

    def __init__(self, layout: Layout):
        self.recovered = Recovered(frozenset(), {}, {}, {}, {}, 0, 0, 0)
        self._layout = layout
        self._places: dict[int, dict[int, list[Place]]] = {}

    def note(self, lease: Lease, positions: Sequence[int]) -> None:
        """Notes what is recorded of the lease's rows, in place of what earlier leases told: errors may be done again since."""
        places = self._places.setdefault(lease.shard, {})
        for position in positions:
            places.pop(position, None)
        for place in lease.recorded:
            places.setdefault(place[0], []).append(place)
        told = [place for each in places.values() for place in each]
        if told:
            self.recovered.done[lease.shard] = ledger_of(self._layout.rows_of(lease.shard), self._layout, told)
        else:
            self.recovered.done.pop(lease.shard, None)
            del self._places[lease.shard]

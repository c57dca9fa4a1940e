"""Finds rows for which this worker has no room, while another one may have it.

Such a row comes back by itself. In deterministic mode a shard's rows stay together, so all of them come back.
"""

from ..checks.row_limits import LackOfRoom
from ..core.errors import UNFIT, OutOfRoom, RowError
from ..core.requests import AnyRequest
from ..core.shard_layout import Layout
from ..pipeline.systematic_failure import RowCheck


class RoomCheck:
    """A session's check of its requests: as ``check``, but for lack of room. Called in the reading thread."""

    def __init__(self, check: RowCheck, layout: Layout):
        self._check, self._layout = check, layout
        self._lacking: dict[int, str] = {}  # by shard: why there is no room

    def __call__(self, request: AnyRequest) -> str | None:
        """Returns why a request cannot be run anywhere, or None. Raises RowError for a row which another worker may have room for.

        Lack of room for a row of a shard that stays together is noted; see ``why``.
        """
        try:
            problem = self._check(request)
        except OutOfRoom as error:  # in deterministic mode
            self._lacking.setdefault(self._layout.shard_of(request.row), str(error))
            return None
        if isinstance(problem, LackOfRoom):
            raise RowError(UNFIT, problem)
        return problem

    def why(self, shard: int) -> str | None:
        """Returns why there is no room for a shard all of whose requests were checked; None where there is."""
        return self._lacking.get(shard)

    def note(self, shard: int, why: str) -> None:
        """Notes that memory did not hold a shard."""
        self._lacking[shard] = why

    def forget(self, shard: int) -> None:
        """Forgets what was noted of a shard."""
        self._lacking.pop(shard, None)

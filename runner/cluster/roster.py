"""The workers of a run, as the driver knows them: who is ready, who was refused, what their engines have counted.

Sends nothing. Raises an error where no worker can do the run any more.
"""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from ...configs.cluster import ClusterConfig
from ..core.errors import BulkError, DataError, ModelError, OutOfRoom, first_line
from ..core.progress import Progress
from ..core.shard_layout import Layout
from ..leasing.row_set import RowSet
from .frame_intake import MOST_COUNTED
from .interface import ORPHAN_SECONDS, Joined
from .messages import Figures, FromWorker, Hello, Ready, RunFailed, Unfit

log = logging.getLogger("mlx_bulk")

COUNTS = ("prefilled", "padded", "steps", "slot_steps")
"""Fields of ``Progress`` that workers count: all their work. Other tokens come with the records, and count where these are kept."""

_MOST_HALVINGS = 64
_ERRORS: dict[str, type[BulkError]] = {error.__name__: error for error in (DataError, ModelError, OutOfRoom)}


class NoWorkers(OutOfRoom):
    """No worker has been there for too long. The same command continues the run."""

    exit_code = 75


@dataclass(slots=True)
class KnownWorker:
    """A worker that has joined. ready: its models are loaded. refused: why it is not used any more. stopped: it has ended its work.

    counts: of its engine; before: the sums of its earlier engines. failed: the error for which it is refused, where it told one.
    longest: tokens of the longest row that it has room for, 0 while unknown. since, left: when it joined last, and when it went (seconds of
    the roster's clock).
    """

    joined: Joined
    since: float = 0.0
    ready: bool = False
    longest: int = 0
    left: float | None = None
    refused: str = ""
    stopped: bool = False
    failed: BulkError | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    before: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def label(self) -> str:
        """What it is called when it is started again, too: its --name, or its machine."""
        return str(self.joined.hello.facts.get("name") or self.joined.hello.host)

    def count(self, counts: dict[str, int]) -> None:
        """Takes the newest counts; those of an engine that was started again begin at 0."""
        if any(counts.get(name, 0) < value for name, value in self.counts.items() if name in COUNTS):
            self.before = {name: self.before.get(name, 0) + self.counts.get(name, 0) for name in COUNTS}
        self.counts = counts


class Roster:
    """All workers of a run by their names. now: seconds of any clock, when the run began."""

    def __init__(self, settings: ClusterConfig, now: float):
        self.workers: dict[str, KnownWorker] = {}
        self._settings = settings
        self._nobody_since: float | None = now

    def join(self, joined: Joined, now: float) -> KnownWorker:
        """Notes a worker that has connected, for the first time or again."""
        worker = self.workers.setdefault(joined.worker, KnownWorker(joined))
        worker.joined, worker.since, worker.ready, worker.stopped, worker.left = joined, now, False, False, None
        return worker

    @property
    def least(self) -> int:
        """How many workers must be there for the run to begin."""
        return self._settings.min_workers

    def usable(self) -> list[str]:
        """Returns the workers that can be given rows."""
        return [name for name, worker in self.workers.items() if worker.ready and not worker.refused]

    def others(self, but: str, connected: list[str]) -> list[str]:
        """Returns the workers of ``connected`` that are not refused, without ``but``."""
        return [name for name in connected if name != but and not (name in self.workers and self.workers[name].refused)]

    def suits(self, worker: str, rows: RowSet, connected: list[str]) -> bool:
        """Returns False for rows that the worker has no room for, and for rows with which its like has gone already, while another may
        try them: it may be to blame."""
        labels, label = (
            {self.workers[name].label for name in self.others("", connected) if name in self.workers},
            self.workers[worker].label,
        )
        if label in rows.no_room or (rows.beyond and self.workers[worker].longest <= rows.beyond):
            return False
        return rows.beyond > 0 or label not in rows.died or labels <= {*rows.died, *rows.no_room}

    def longest(self, now: float) -> int:
        """Returns the tokens of the longest row that any worker has room for; more than any row while one may still tell.

        A worker that has gone counts for ``cluster.wait`` seconds.
        """
        there = self._expected(now)
        if any(each.left is None and not each.longest for each in there):
            return sys.maxsize
        return max((each.longest for each in there), default=sys.maxsize)

    def may_hold(self, rows: RowSet, now: float) -> bool:
        """Returns False where each worker has said that it has no room for these rows; one that has gone counts as in ``longest``."""
        return any(each.label not in rows.no_room for each in self._expected(now))

    def _expected(self, now: float) -> list[KnownWorker]:
        """Returns the workers that are used and here, or may come back."""
        used = [each for each in self.workers.values() if not each.refused]
        return [each for each in used if each.left is None or now - each.left < self._settings.wait]

    def is_last(self, worker: str) -> bool:
        """Returns True when no other worker can ever do the run: nobody can join, and all others are refused."""
        refused = [name for name, each in self.workers.items() if each.refused and name != worker]
        return self._settings.listen is None and len(refused) + 1 >= self._settings.workers

    def sum_into(self, progress: Progress) -> bool:
        """Sets the ``COUNTS`` of ``progress`` to the sums over all workers. Returns True where one has changed."""
        before = [getattr(progress, count) for count in COUNTS]
        sums = [sum(each.counts.get(count, 0) + each.before.get(count, 0) for each in self.workers.values()) for count in COUNTS]
        for count, found in zip(COUNTS, sums, strict=True):
            setattr(progress, count, found)
        return sums != before

    def require(self, connected: list[str], now: float) -> None:
        """Raises NoWorkers where none could be used for ``cluster.wait`` seconds, ModelError where all that can come were refused.

        Where all that can come have come and gone, it waits ``ORPHAN_SECONDS`` at most.
        """
        if self.others("", connected):
            self._nobody_since = None
            return
        refused = [name for name, worker in self.workers.items() if worker.refused]
        if self._settings.listen is None and refused and len(refused) >= self._settings.workers:
            failed = [error for name in refused if (error := self.workers[name].failed) is not None]
            raise failed[0] if failed else ModelError("no worker is left that can do the run; the lines above say why each was refused")
        self._nobody_since = now if self._nobody_since is None else self._nobody_since
        alone, wait = self._settings.listen is None and len(self.workers) >= self._settings.workers, self._settings.wait
        if alone and now - self._nobody_since > min(wait, ORPHAN_SECONDS):  # nobody else can come
            raise NoWorkers(
                "all workers of this machine have ended; what was finished is safe, and the same command (without --overwrite) continues"
            )
        if now - self._nobody_since > wait:
            named = "; ".join(str(error) for each in self.workers.values() if (error := each.failed) is not None)
            raise NoWorkers(
                f"no worker that can be used was there for {wait:g} s{f' ({named})' if named else ''}; what was finished is safe. Start "
                "workers, then continue with the same command (without --overwrite)"
            )


def facts_of(ready: Ready) -> dict[str, Any]:
    """Returns the facts of a worker's session. Raises ValueError where they are not what a worker tells."""
    try:
        facts = json.loads(ready.facts)
        json.dumps([[facts]])  # sessions.jsonl holds them one level deeper
    except RecursionError:
        raise ValueError("found values in one another without an end") from None
    if not isinstance(facts, dict):
        raise ValueError(f"found {type(facts).__name__}, expected a mapping")
    batch, halved = facts.get("batch", {}), facts.get("halved", 0)
    rows = batch.get("rows") if isinstance(batch, dict) else 0
    if rows is not None and (not isinstance(rows, int) or not 0 < rows <= MOST_COUNTED):
        raise ValueError("found a batch without a number of rows")
    if type(halved) is not int or not 0 <= halved < _MOST_HALVINGS or ready.longest < 0:
        raise ValueError("found a number below 0")
    return facts


def message_fault(message: FromWorker, layout: Layout) -> str:
    """Returns what is wrong with a message that no worker of ours sends, as its types are right; empty where nothing is.

    Those that hold records are checked where these are read. Changes nothing, so that whatever it finds costs a worker and not the run.
    """
    try:
        match message:
            case Ready():
                facts_of(message)
            case Figures(counts=counts):
                if any(not 0 <= count <= MOST_COUNTED for count in counts.values()):
                    raise ValueError("found a count below 0, or one that is too large")
            case Unfit(position=position):
                _require_rows(layout, [position])
            case Hello(leases=leases):
                for positions in leases.values():
                    _require_rows(layout, positions)
            case _:
                pass
    except Exception as error:  # of any kind: what a worker sends is no reason to end the run
        text = first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
        return f"sent {type(message).__name__}, which cannot be right ({text}); install the same version of mlx-bulk"
    return ""


def _require_rows(layout: Layout, positions: Sequence[int]) -> None:
    for position in positions:
        if not layout.has(position):
            raise ValueError(f"the run has no row {position}")


def error_of(worker: str, failed: RunFailed) -> BulkError:
    """Returns what a run ends with that failed at ``worker``: it names the worker, but for errors of the data, which are everywhere."""
    if failed.kind == "DataError":
        return DataError(failed.message)
    kind = "" if failed.kind in _ERRORS else f"{failed.kind}: "
    return _ERRORS.get(failed.kind, ModelError)(f"{worker}: {kind}{failed.message}")


def version_fault(hello: Hello) -> str:
    """Returns why a worker cannot be used whose mlx-bulk is another; empty where it is the same. Warns of other versions of mlx."""
    ours, theirs = version("mlx-bulk"), hello.facts.get("mlx-bulk", None)
    if theirs not in (None, ours):
        return f"has mlx-bulk {theirs}, the run {ours}; install the same version on both machines"
    for package in ("mlx", "mlx-lm"):
        if (found := hello.facts.get(package)) not in (None, version(package)):
            text = "%s has %s %s, this machine %s: last bits of its rows may differ from those of other workers"
            log.warning(text, hello.worker, package, found, version(package))
    return ""

"""Finds the row that kills the process, by bisection over several deaths.

Knows the process's messages alone. Each death halves the group of suspects; a group that has been run is free of suspicion.

    the model had   a b c d e f g h     died
    run apart       a b c d   e f g h   died in the first group: e f g h waits
                    a b   c d           died in the second: a and b are done, c and d are run alone
                    c                   died with c alone: c is fatal

If a batch has died and no row of it is fatal, its size is to blame: at the next such death batches are halved for good. Frozen
batches (deterministic mode) are neither split nor halved, only repeated.
"""

import signal
from dataclasses import dataclass, field
from typing import Any

from ...runner.core.errors import ModelError, OutOfRoom
from ..terminal.tables import count_text

Group = tuple[int, ...]

IDLE_DEATHS = 2  # deaths in turn while the model had no rows: the next start would end alike
FROZEN_DEATHS = 3  # SIGKILLs of one run, each with another frozen batch: the next batches would end alike


@dataclass(slots=True)
class Suspects:
    """The suspects after each death. A row is fatal once the process has died with it alone, at its second death at the earliest.

    started: runs whose start options have had their effect. suspect_groups: the groups of each run that run by themselves.
    fatal_rows: the fatal rows of each run, with the reason. batch_halvings: how often each run's batches are halved.
    reading: runs that have read from stdin. code: the exit code that the process was about to return.
    """

    started: set[str] = field(default_factory=set[str])
    suspect_groups: dict[str, list[Group]] = field(default_factory=dict[str, list[Group]])
    fatal_rows: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    batch_halvings: dict[str, int] = field(default_factory=dict[str, int])
    reading: set[str] = field(default_factory=set[str])
    code: int | None = None
    _run: str = ""
    _frozen: bool = False
    _positions: int = 0  # of one round
    _flight: Group = ()  # the rows in the model
    _repeated: tuple[str, Group] | None = None  # the frozen batch in the model at the last death
    _frozen_kills: int = 0  # of this run
    _fatal_before: dict[str, int] = field(default_factory=dict[str, int])  # fatal rows of each run when a batch died last
    _idle: int = 0

    def receive(self, message: dict[str, Any]) -> None:
        """Takes in a message of the process: a run that reads stdin, a run begun, the rows in the model, or the exit code."""
        if "reading" in message:
            self.reading.add(message["reading"])
        if "run" in message:
            if message["run"] != self._run:
                self._frozen_kills = 0
            self._run, self._frozen, self._positions = message["run"], message["frozen"], message["positions"]
            self.started.add(self._run)
        if "rows" in message:
            self._flight = tuple(sorted(message["rows"]))
        self.code = message.get("code", self.code)

    @property
    def frozen(self) -> bool:
        """True while the run's batches cannot be divided (deterministic mode)."""
        return self._frozen

    @property
    def orders(self) -> dict[str, Any]:
        """The orders for the next process, as JSON values."""
        fatal = {run: list(rows.items()) for run, rows in self.fatal_rows.items()}
        return {
            "started": sorted(self.started),
            "suspect_groups": self.suspect_groups,
            "fatal_rows": fatal,
            "batch_halvings": self.batch_halvings,
        }

    def record_death(self, number: int) -> tuple[str, str]:
        """Updates the suspects after a death by the signal ``number``; returns what happened and what follows, as text.

        Raises ModelError where another start is of no use, OutOfRoom where the reason is lack of memory.
        """
        cause, rows, self._flight = _cause(number), self._flight, ()
        if not rows:
            return self._record_idle_death(cause)
        self._idle = 0
        if self._frozen:
            return self._record_frozen_death(cause, rows, number)
        groups = self.suspect_groups.get(self._run, [])
        at = next((i for i, group in enumerate(groups) if set(rows) <= set(group)), None)
        if at is not None and len(rows) == 1:
            event, follows = f"{cause} again with row {rows[0] % self._positions:,} alone in the model", "it goes to errors/"
            reasons = self.fatal_rows.setdefault(self._run, {})
            reasons[rows[0]] = f"the process {cause} twice with this row in the model, the second time with no other"
            new = []
        else:
            half = (len(rows) + 1) // 2
            event = f"{cause} with {count_text(len(rows), 'row')} in the model"
            follows = f"it starts again and runs them apart, at most {half:,} at once"
            if at is None and len(rows) > 1 and self._again_without_cause():
                follows += "; as no row of the batch that died before was to blame, batch.rows and batch.tokens are halved from here on"
            new = [group for group in (rows[:half], rows[half:]) if group]
        rest = [] if at is None else [tuple(row for row in groups[at] if row not in rows), *groups[at + 1 :]]
        self.suspect_groups[self._run] = [group for group in (*new, *rest) if group]
        return f"the process {event}", follows

    def _again_without_cause(self) -> bool:
        """Records the death of a whole batch, and halves batches if one died before without a fatal row. Returns whether it did."""
        fatal = len(self.fatal_rows.get(self._run, {}))
        again = self._fatal_before.get(self._run) == fatal
        self._fatal_before[self._run] = fatal
        if again:
            self.batch_halvings[self._run] = self.batch_halvings.get(self._run, 0) + 1
        return again

    def _record_idle_death(self, cause: str) -> tuple[str, str]:
        self._idle += 1
        if self._idle >= IDLE_DEATHS:
            raise ModelError(
                f"the process {cause} {IDLE_DEATHS} times before the model had any row (while it read the input or loaded the model, "
                "say); finished rows are safe. Look for what the system says of it, then continue with the same command "
                "(without --overwrite)"
            )
        return f"the process {cause} before the model had any row", "it starts again"

    def _record_frozen_death(self, cause: str, rows: Group, number: int) -> tuple[str, str]:
        self._frozen_kills += number == signal.SIGKILL
        repeated = self._repeated == (self._run, rows)
        if number == signal.SIGKILL and (repeated or self._frozen_kills >= FROZEN_DEATHS):
            often = (
                f"twice with the same {count_text(len(rows), 'row')}"
                if repeated
                else f"{self._frozen_kills} times, each time with other rows"
            )
            raise OutOfRoom(
                f"the process died of SIGKILL {often} in the model: the system seems to be short of memory. Finished rows are safe. "
                "batch.deterministic freezes batch.rows and batch.tokens: make memory free on this machine and continue with the same "
                "command (without --overwrite), or start another run (another --output) with lower ones"
            )
        if repeated:
            listed = ", ".join(f"{row % self._positions}" for row in rows[:10]) + (", …" if len(rows) > 10 else "")
            raise ModelError(
                f"the process {cause} twice with the same {count_text(len(rows), 'row')} in the model ({listed}); finished rows are safe. "
                "batch.deterministic does not take a batch apart to find the row that does it: run them once with batch.deterministic "
                "false and another --output to find it"
            )
        self._repeated = self._run, rows
        return f"the process {cause} with {count_text(len(rows), 'row')} in the model", "it starts again"


def _cause(number: int) -> str:
    hint = " (the system may have been short of memory: lower batch.memory, batch.rows or batch.tokens)" if number == signal.SIGKILL else ""
    return f"died of {signal.Signals(number).name}{hint}"

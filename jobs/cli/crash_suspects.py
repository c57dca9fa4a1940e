"""Which rows may have ended a process that died, and what the next one is to do with them.

Knows no process, only what it said. Each death halves a group; what is left of a group when it has been run is not suspect any more.

    the model had   a b c d e f g h     died
    run apart       a b c d   e f g h   died in the first group: e f g h waits
                    a b   c d           died in the second: a and b are done, c and d are run alone
                    c                   died with c alone: c is fatal

Where a batch has died and no row of it is fatal, it is the batch's size: at the next such death batches are halved for good. Batches
that are frozen (deterministic mode) are neither taken apart nor made smaller, only repeated.
"""

import signal
from dataclasses import dataclass, field
from typing import Any

from ...runner.core.errors import ModelError, OutOfRoom
from ..terminal.tables import count_text

Group = tuple[int, ...]

IDLE_DEATHS = 2  # so many in turn, and none while the model had rows: the next would be like them
FROZEN_DEATHS = 3  # so many SIGKILLs of a run, each with another frozen batch: the next batches would be like them


@dataclass(slots=True)
class Suspects:
    """What is known after each death. A row is fatal when the process has died with it alone, at its second death at the earliest."""

    begun: set[str] = field(default_factory=set[str])
    apart: dict[str, list[Group]] = field(default_factory=dict[str, list[Group]])
    fatal: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    halved: dict[str, int] = field(default_factory=dict[str, int])  # how many times, by run
    reading: set[str] = field(default_factory=set[str])  # runs that have read from stdin
    code: int | None = None  # that the process was about to return
    _run: str = ""
    _frozen: bool = False
    _positions: int = 0  # of one round
    _flight: Group = ()
    _repeated: tuple[str, Group] | None = None  # a frozen batch that was in the model at the last death
    _frozen_kills: int = 0  # of this run
    _fatal_before: dict[str, int] = field(default_factory=dict[str, int])  # how many rows were fatal when a batch died last
    _idle: int = 0

    def hear(self, message: dict[str, Any]) -> None:
        """Takes in what the process says: whose rows it reads from stdin, the run begun, the rows in the model, its exit code."""
        if "reading" in message:
            self.reading.add(message["reading"])
        if "run" in message:
            if message["run"] != self._run:
                self._frozen_kills = 0
            self._run, self._frozen, self._positions = message["run"], message["frozen"], message["positions"]
            self.begun.add(self._run)
        if "rows" in message:
            self._flight = tuple(sorted(message["rows"]))
        self.code = message.get("code", self.code)

    @property
    def orders(self) -> dict[str, Any]:
        """What the next process has to know, as JSON holds it."""
        fatal = {run: list(rows.items()) for run, rows in self.fatal.items()}
        return {"begun": sorted(self.begun), "apart": self.apart, "fatal": fatal, "halved": self.halved}

    def died(self, number: int) -> tuple[str, str]:
        """Draws the conclusions from a death by the signal ``number``; says what has happened, and what follows from it.

        Raises ModelError where starting again is of no use, OutOfRoom where that is for want of memory.
        """
        cause, rows, self._flight = _cause(number), self._flight, ()
        if not rows:
            return self._died_idle(cause)
        self._idle = 0
        if self._frozen:
            return self._died_frozen(cause, rows, number)
        groups = self.apart.get(self._run, [])
        at = next((i for i, group in enumerate(groups) if set(rows) <= set(group)), None)
        if at is not None and len(rows) == 1:
            said, follows = f"{cause} again with row {rows[0] % self._positions:,} alone in the model", "it goes to errors/"
            known = self.fatal.setdefault(self._run, {})
            known[rows[0]] = f"the process {cause} twice with this row in the model, the second time with no other"
            new = []
        else:
            half = (len(rows) + 1) // 2
            said, follows = (
                f"{cause} with {count_text(len(rows), 'row')} in the model",
                f"it starts again and runs them apart, at most {half:,} at once",
            )
            if at is None and len(rows) > 1 and self._again_without_cause():
                follows += "; as no row of the batch that died before was to blame, batch.rows and batch.tokens are halved from here on"
            new = [group for group in (rows[:half], rows[half:]) if group]
        left = [] if at is None else [tuple(row for row in groups[at] if row not in rows), *groups[at + 1 :]]
        self.apart[self._run] = [group for group in (*new, *left) if group]
        return f"the process {said}", follows

    def _again_without_cause(self) -> bool:
        """Counts the death of a whole batch; whether another died before and no row was found that did it. Then batches are halved."""
        fatal = len(self.fatal.get(self._run, {}))
        again = self._fatal_before.get(self._run) == fatal
        self._fatal_before[self._run] = fatal
        if again:
            self.halved[self._run] = self.halved.get(self._run, 0) + 1
        return again

    def _died_idle(self, cause: str) -> tuple[str, str]:
        self._idle += 1
        if self._idle >= IDLE_DEATHS:
            raise ModelError(
                f"the process {cause} {IDLE_DEATHS} times before the model had any row (while it read the input or loaded the model, "
                "say); finished rows are safe. Look for what the system says of it, then continue with the same command "
                "(without --overwrite)"
            )
        return f"the process {cause} before the model had any row", "it starts again"

    def _died_frozen(self, cause: str, rows: Group, number: int) -> tuple[str, str]:
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

"""Connects a run with its process: when to end, what to save first, which rows the model has.

The defaults serve a caller without a supervisor. Signal handlers and sockets belong to the command line.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, frozen=True)
class Orders:
    """Instructions for a run after processes have died in it.

    started: its start options (``--overwrite``, ``--retry-errors``) have had their effect.
    suspect_groups: groups of rows that may have ended the last process. Each runs before all other rows, alone in the model.
    fatal_rows: rows that are not run any more, with the reason.
    batch_halvings: how many times batches are halved, because full ones have ended processes and no single row did.
    """

    started: bool = False
    suspect_groups: tuple[tuple[int, ...], ...] = ()
    fatal_rows: Mapping[int, str] = field(default_factory=dict[int, str])
    batch_halvings: int = 0

    @property
    def first_groups(self) -> list[tuple[int, ...]]:
        """Groups of rows that are done before all others: first those to be quarantined, then those that run alone."""
        return [group for group in (tuple(self.fatal_rows), *self.suspect_groups) if group]


class Supervisor:
    """Starts the process again when it dies, and finds the row that ended it. This base class stands for no supervisor."""

    def orders(self, run: Path) -> Orders:
        """Returns the instructions for the run in the folder ``run``."""
        return Orders()

    def reading_stdin(self, run: Path) -> None:
        """Notes that the run in the folder ``run`` reads its rows from stdin. A process started later will not find them there."""

    def begin(self, run: Path, frozen: bool, positions: int) -> None:
        """Notes that the run's start options have had their effect, and that rows named from now on are its own.

        frozen: its batches cannot be divided (deterministic mode). positions: row positions of one round.
        """

    def note_in_flight(self, rows: Iterable[int]) -> None:
        """Notes which rows the model has from now on."""


def _unsaved(save: Callable[[], bool]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(slots=True, frozen=True)
class HostProcess:
    """The process around a run.

    stopped: called between steps; returns True when the run is to end early. saving: a context manager around the run. Its
    argument saves all that is finished and returns True on success; another thread calls it if the process has to end inside the
    block. By default nothing stops the run.
    """

    stopped: Callable[[], bool] = lambda: False
    saving: Callable[[Callable[[], bool]], AbstractContextManager[None]] = _unsaved
    supervisor: Supervisor = field(default_factory=Supervisor)

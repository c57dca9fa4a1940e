"""What a run hears from the process that it is in, and tells it: when to end, what to save first, which rows the model has.

Holds no signal handler and no socket: those are the command line's. What is here serves a caller who has neither.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, frozen=True)
class Orders:
    """What is known of a run from processes that died in it.

    begun: its start options (``--overwrite``, ``--retry-errors``) have had their effect. apart: groups of rows one of which may
    have ended the last process; each group is run before all else, with no other row in the model. fatal: rows that are not
    run any more, and why. halved: how many times batches are to be halved, as full ones have ended processes that no row did.
    """

    begun: bool = False
    apart: tuple[tuple[int, ...], ...] = ()
    fatal: Mapping[int, str] = field(default_factory=dict[int, str])
    halved: int = 0

    @property
    def first(self) -> list[tuple[int, ...]]:
        """The groups in which rows are done before all others: what is to be quarantined, then what is run apart."""
        return [group for group in (tuple(self.fatal), *self.apart) if group]


class Supervisor:
    """Whoever starts the process again when it dies, and finds the row that made it. This one is nobody."""

    def orders(self, run: Path) -> Orders:
        """What is known of the run in the folder ``run``."""
        return Orders()

    def reading_stdin(self, run: Path) -> None:
        """Says that the run in the folder ``run`` is about to read its rows from stdin: who comes after it will not find them there."""

    def begin(self, run: Path, frozen: bool, positions: int) -> None:
        """Says that the run's start options have had their effect, and that the rows told from now on are its.

        ``frozen``: its batches can't be taken apart (deterministic mode). ``positions``: those of one round.
        """

    def flight(self, rows: Iterable[int]) -> None:
        """Says which rows the model has from now on."""


def _unsaved(save: Callable[[], bool]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(slots=True, frozen=True)
class HostProcess:
    """The process around a run.

    stopped: asked between steps whether the run is to end early. saving: takes what saves all that is finished and says whether
    it could, and calls it, from another thread, if the process has to end within the block. By default nobody stops and nobody
    watches.
    """

    stopped: Callable[[], bool] = lambda: False
    saving: Callable[[Callable[[], bool]], AbstractContextManager[None]] = _unsaved
    supervisor: Supervisor = field(default_factory=Supervisor)

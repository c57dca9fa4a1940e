"""The messages between a driver and its workers; ``network`` carries them.

To a worker go rows and the description of the run as pickles: a worker does what its driver says, code included. The other way go
plain values alone, and each is checked here, so that nothing that a worker sends is ever unpickled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.shard_layout import Place
from ..parcels.file_messages import NoParcel, PicturePart, PictureTaken, PictureWanted, Piece, PieceWanted

TokenCounts = tuple[int, int, int, int]  # a row's position; tokens of its prompt, generated, scored


@dataclass(slots=True, frozen=True)
class RunOffer:
    """Asks a worker to make itself ready for a run. run: hex digest that names it. description: a pickled ``RunDescription``."""

    run: str
    description: bytes


@dataclass(slots=True, frozen=True)
class Lease:
    """Rows for a worker to do. rows: a pickled list of ``Row`` and ``BadRow`` in order. recorded: what of them is recorded already.

    shard: all its rows lie in it. alone: the engine runs nothing else beside these rows. policy: the name of the policy that samples
    all of them, for a run whose policy may change.
    """

    run: str
    lease: str
    shard: int
    rows: bytes
    recorded: tuple[Place, ...] = ()
    alone: bool = False
    policy: str | None = None


@dataclass(slots=True, frozen=True)
class NewestPolicy:
    """The trainer's newest step, by which a group's staleness counts."""

    run: str
    version: int


@dataclass(slots=True, frozen=True)
class Ack:
    """Frames that the driver has taken or will never take: the worker forgets them. number: the last one of them."""

    run: str
    number: int


@dataclass(slots=True, frozen=True)
class StopRun:
    """Asks a worker to end its work on the run between two steps and to send what is finished. Its model stays in memory.

    reason: why this worker is not used, in words; empty where the run ends.
    """

    run: str
    reason: str = ""


@dataclass(slots=True, frozen=True)
class Dismiss:
    """Asks a worker to end."""


@dataclass(slots=True, frozen=True)
class Hello:
    """A worker's first message on a connection.

    facts: what ``mlx-bulk status`` shows of it, and what is compared at the door (versions, device, memory). run, leases: what it
    still works on, for a driver that was started again: the positions of each lease that are not finished.
    """

    worker: str
    host: str
    facts: dict[str, str | int | float | None]
    run: str | None = None
    leases: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


@dataclass(slots=True, frozen=True)
class Ready:
    """The worker has loaded the run's models. facts: of the session, as ``sessions.jsonl`` has them, as JSON.

    longest: tokens of the longest row that it has room for.
    """

    run: str
    facts: str
    longest: int = 0


@dataclass(slots=True, frozen=True)
class Unfit:
    """A row that the worker has no room for, with the reason. Nothing else comes of it in its lease."""

    run: str
    position: int
    reason: str


@dataclass(slots=True, frozen=True)
class NoRoom:
    """The worker has no memory for the rows of a lease, which must stay together, with the reason. It has dropped the lease."""

    run: str
    lease: str
    reason: str


@dataclass(slots=True, frozen=True)
class RunRefused:
    """The worker would give other results, or cannot run the job at all. reasons: one line each."""

    run: str
    reasons: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Begun:
    """The worker's engine has taken the first rows of a lease."""

    run: str
    lease: str


@dataclass(slots=True, frozen=True)
class Frame:
    """A frame of a journal without its header: kind ("R" or "E"), payload (an Arrow IPC stream), and checksum of both."""

    kind: str
    payload: bytes
    checksum: bytes


@dataclass(slots=True, frozen=True)
class Frames:
    """Finished records of one shard. number: counts a worker's messages of this kind in a run, from 1; 0 where nothing waits for an ack.

    admitted: rows, and how many records or failures each will have in all. resolved: what the frames hold. tokens: of their rows,
    since the message before.
    """

    run: str
    number: int
    shard: int
    admitted: tuple[Place, ...]
    resolved: tuple[Place, ...]
    frames: tuple[Frame, ...]
    tokens: tuple[TokenCounts, ...] = ()


@dataclass(slots=True, frozen=True)
class LeaseDone:
    """All rows of a lease are finished; their frames came before this message."""

    run: str
    lease: str


@dataclass(slots=True, frozen=True)
class Figures:
    """The counts of the worker's engine since it began the run, and bytes of memory at the peak."""

    run: str
    counts: dict[str, int]
    doing: str = ""


@dataclass(slots=True, frozen=True)
class EngineDied:
    """The engine's process has died and is started again. cause, follows: what happened and what comes now, in words."""

    run: str
    cause: str
    follows: str


@dataclass(slots=True, frozen=True)
class PolicyLoaded:
    """The worker samples with the policy of this name from here on."""

    run: str
    policy: str


@dataclass(slots=True, frozen=True)
class PolicyRefused:
    """The worker cannot load the policy of this name. It has dropped all leases that name it, and none of their rows was begun."""

    run: str
    policy: str
    reason: str


@dataclass(slots=True, frozen=True)
class RunFailed:
    """The worker cannot go on with the run. kind: the error's class; message: as a user would read it."""

    run: str
    kind: str
    message: str


@dataclass(slots=True, frozen=True)
class RunStopped:
    """The worker's last message of a run that it was asked to stop: all that it had finished came before."""

    run: str


ToWorker = RunOffer | Lease | Piece | NoParcel | PicturePart | NewestPolicy | Ack | StopRun | Dismiss
FromWorker = (
    Hello
    | Ready
    | Unfit
    | NoRoom
    | RunRefused
    | Begun
    | Frames
    | LeaseDone
    | PieceWanted
    | PictureWanted
    | PictureTaken
    | PolicyLoaded
    | PolicyRefused
    | Figures
    | EngineDied
    | RunFailed
    | RunStopped
)
Message = ToWorker | FromWorker


def one_a_line(reasons: Sequence[str]) -> str:
    """Returns the reasons of a refusal as text: several each on a line of their own."""
    return reasons[0] if len(reasons) == 1 else "".join(f"\n  {reason}" for reason in reasons)

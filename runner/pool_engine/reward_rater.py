"""Rates finished completions with reward models, many at once, beside the model that samples and in its thread.

Completions wait until they fill some batches. Equal completions of a group get one rating, also where they come in different batches:
the last bits of a product can depend on the batch. Knows no rewards' names and no texts: the job says what a model reads of a completion.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..core.outcomes import Failure, Generated, Pooled, Rating
from ..core.requests import PoolRequest, Request, TokenInput
from ..engine.interface import one_window
from ..engine.setup import Setup
from .pooler import Pooler

SHARE = 0.25  # of the memory for caches; the batch that decodes has the rest
BATCHES = 4  # completions wait until they have this many batches of tokens,
MOST = 256  # or are this many

Inputs = Callable[[Request, Generated], Sequence[TokenInput | str]]
Check = Callable[[PoolRequest], str | None]
_KINDS = {"NotFinite": "nan", "OutOfMemory": "memory"}  # of a pooler's failures


class RewardRater:
    """Rates completions with the models of ``setups``.

    checks: say of each model why a text is too large for it even alone. inputs: what each reads of a completion, or why it cannot.
    """

    def __init__(self, setups: Sequence[Setup], checks: Sequence[Check], inputs: Inputs):
        self._poolers = [Pooler(setup) for setup in setups]
        self._tokens = BATCHES * min(setup.limits.tokens for setup in setups)
        self._checks, self._inputs = checks, inputs
        self._waiting: list[tuple[Generated, Sequence[TokenInput | str]]] = []
        self._waiting_tokens = 0
        self._groups: dict[int, _Group] = {}  # by row; those of which some completions are not rated yet

    @property
    def waiting(self) -> int:
        """The number of completions that wait."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True when those that wait make full batches."""
        return len(self._waiting) >= MOST or self._waiting_tokens >= self._tokens

    def add(self, request: Request, outcome: Generated) -> None:
        """Has a completion wait for its ratings. request: asks for all completions of its group that are to be rated."""
        self._groups.setdefault(outcome.row, _Group(len(request.samples), [{} for _ in self._poolers]))
        inputs = list(self._inputs(request, outcome))
        for place, (given, check) in enumerate(zip(inputs, self._checks, strict=True)):
            if isinstance(given, TokenInput) and (problem := check(PoolRequest(outcome.row, (given,)))) is not None:
                inputs[place] = f"too_long: {problem}"
        self._waiting.append((outcome, inputs))
        self._waiting_tokens += max(len(each.ids) if isinstance(each, TokenInput) else 0 for each in inputs)

    def rated(self, stopped: Callable[[], bool]) -> Iterator[Generated]:
        """Yields the completions that waited, with their ratings; none of them when ``stopped``."""
        waiting, self._waiting, self._waiting_tokens = self._waiting, [], 0
        ratings: list[list[Rating]] = []
        for number, pooler in enumerate(self._poolers):
            known = [self._groups[outcome.row].known[number] for outcome, _ in waiting]
            ratings.append(_rate(pooler, [inputs[number] for _, inputs in waiting], known, stopped))
            if stopped():
                return
        for (outcome, _), own in zip(waiting, zip(*ratings, strict=True), strict=True):
            self._groups[outcome.row].left -= 1
            if not self._groups[outcome.row].left:
                del self._groups[outcome.row]
            yield replace(outcome, ratings=own)


@dataclass(slots=True)
class _Group:
    """A row's completions: how many are not rated yet, and for each model the ratings of what it has read, by its bytes."""

    left: int
    known: list[dict[bytes, Rating]]


def _rate(
    pooler: Pooler, inputs: Sequence[TokenInput | str], known: Sequence[dict[bytes, Rating]], stopped: Callable[[], bool]
) -> list[Rating]:
    """Returns a rating for each input, in their order; after ``stopped`` some lack their reward.

    known: for each input its group's ratings so far, to which the new ones are added.
    """
    ratings = [Rating(None, each if isinstance(each, str) else None) for each in inputs]
    asked = {at: _bytes(each) for at, each in enumerate(inputs) if isinstance(each, TokenInput)}
    first = {(id(known[at]), key): at for at, key in reversed(asked.items()) if key not in known[at]}
    requests = [PoolRequest(at, (each,)) for at in sorted(first.values()) if isinstance(each := inputs[at], TokenInput)]
    for outcome in pooler.run(one_window(requests), stopped):
        if isinstance(outcome, Pooled):
            ratings[outcome.row] = Rating(float(outcome.values[0, 0]))
        elif isinstance(outcome, Failure):
            ratings[outcome.row] = Rating(None, f"{_KINDS[outcome.error]}: {outcome.message}")
    for at in first.values():
        known[at][asked[at]] = ratings[at]
    for at, key in asked.items():
        ratings[at] = known[at][key]
    return ratings


def _bytes(given: TokenInput) -> bytes:
    """Returns what tells one input from another."""
    return given.start.to_bytes(8, "little") + given.ids.tobytes() + (b"" if given.types is None else b"/" + given.types.tobytes())

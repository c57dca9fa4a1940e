"""Groups the texts of a window into batches for a pooling model: texts of similar length go through it together.

A text that several rows ask for is computed once, as datasets often hold the same text many times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..core.requests import PoolRequest, TokenInput
from .limits import Limits
from .prefix_tree import Owner, bucket_length

PORTION_BATCHES = 32  # batches after which every started row is finished: rows are saved steadily, and lengths still match well


@dataclass(slots=True)
class OwnedInput:
    """An input that is to be computed. owners: the rows that need its vector, by their index, and its place in each of them."""

    input: TokenInput
    owners: list[Owner] = field(default_factory=list[Owner])

    def __len__(self) -> int:
        return len(self.input.ids)


@dataclass(slots=True, frozen=True)
class PoolBatch:
    """Inputs that go through the model together: ``rows`` of them, dummies included, padded to ``width`` tokens."""

    inputs: Sequence[OwnedInput]
    rows: int
    width: int

    @property
    def tokens(self) -> int:
        """The tokens of its texts, without pads."""
        return sum(map(len, self.inputs))


def owned_inputs(requests: Sequence[PoolRequest], shared: bool) -> list[OwnedInput]:
    """Lists the inputs of all requests in their order. Equal ones are one, if they are to be ``shared``."""
    if not shared:
        return [OwnedInput(each, [(i, j)]) for i, request in enumerate(requests) for j, each in enumerate(request.inputs)]
    found: dict[tuple[int, bytes, bytes | None], OwnedInput] = {}
    for i, request in enumerate(requests):
        for j, each in enumerate(request.inputs):
            key = each.start, each.ids.tobytes(), None if each.types is None else each.types.tobytes()
            found.setdefault(key, OwnedInput(each)).owners.append((i, j))
    return list(found.values())


def pool_batches(inputs: Sequence[OwnedInput], limits: Limits) -> Iterator[PoolBatch]:
    """Yields batches of neighbours in length, longest first within each portion of some ``PORTION_BATCHES`` batches.

    A batch keeps to rows, padded tokens and memory; an input that exceeds them goes alone. With ``limits.equal_lengths`` only inputs
    of one length share a batch.
    """
    for portion in _portions(inputs, PORTION_BATCHES * limits.tokens):
        at = 0
        while at < len(portion):
            width, end = len(portion[at]), at + 1
            most = min(limits.most_rows(width), limits.tokens // max(1, width))
            while end < len(portion) and end - at < most and (len(portion[end]) == width or not limits.equal_lengths):
                end += 1
            yield PoolBatch(portion[at:end], end - at, width)
            at = end


def fixed_pool_batches(inputs: Sequence[OwnedInput], shape: Callable[[int], tuple[int, int]]) -> Iterator[PoolBatch]:
    """Yields the batches of deterministic mode, widest first. The shape of an input's batch depends on its length alone.

    ``shape`` gives rows and width of the batch for a text of so many tokens. There are always as many rows: dummies stand in for missing
    inputs. Inputs of one shape share batches, in their order.
    """
    buckets: dict[tuple[int, int], list[OwnedInput]] = {}
    for each in inputs:
        buckets.setdefault(shape(len(each)), []).append(each)
    for (rows, width), bucket in sorted(buckets.items(), key=lambda item: -item[0][1]):
        for at in range(0, len(bucket), rows):
            yield PoolBatch(bucket[at : at + rows], rows, width)


def fixed_shape(limits: Limits, length: int, positions: int) -> tuple[int, int]:
    """Returns rows and width of the batch for a text of ``length`` tokens in deterministic mode. This machine's memory plays no part.

    positions: the most tokens that the model takes, pads included.
    """
    width = length if limits.equal_lengths else max(length, min(bucket_length(length), positions))
    return max(1, min(limits.rows, limits.tokens // max(1, width))), width


def _portions(inputs: Sequence[OwnedInput], tokens: int) -> Iterator[list[OwnedInput]]:
    """Splits the inputs into portions of about ``tokens``, each longest first."""
    portion: list[OwnedInput] = []
    left = tokens
    for each in inputs:
        if portion and len(each) > left:
            yield sorted(portion, key=len, reverse=True)
            portion, left = [], tokens
        portion.append(each)
        left -= len(each)
    if portion:
        yield sorted(portion, key=len, reverse=True)

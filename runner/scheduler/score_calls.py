"""A batch of segments as the calls of the model that score it: its padded tokens, and what each call says about which passage."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.requests import Ids
from .prefix_tree import PassageRead, Segment


@dataclass(slots=True, frozen=True)
class CallRead:
    """A passage's part in one call of the model: at [N] flat indices of its hidden states, targets [N]."""

    read: PassageRead
    at: NDArray[np.intp]
    targets: Ids


def batch_width(batch: list[Segment]) -> int:
    """Returns how many tokens of its own the longest segment has."""
    return max(len(segment) for segment in batch)


def padded_tokens(batch: list[Segment], shape: tuple[int, int] | None = None) -> NDArray[np.int32]:
    """Returns the segments' own tokens [B, T], padded on the right; of a ``shape`` with rows of pads."""
    tokens = np.zeros(shape or (len(batch), batch_width(batch)), np.int32)
    for row, segment in zip(tokens, batch, strict=False):
        row[: len(segment)] = segment.ids[segment.start :]
    return tokens


def call_reads(batch: list[Segment], at: int, width: int) -> Iterator[CallRead]:
    """Yields what a call of the ``width`` columns from ``at`` on says about each passage: the token at position t predicts t + 1."""
    for row, segment in enumerate(batch):
        begin = segment.start + at
        end = min(begin + width, len(segment.ids))
        for read in segment.reads:
            passage = read.passage
            first, last = np.searchsorted(passage.positions, (begin + 1, end + 1))
            if first < last:
                positions = passage.positions[first:last]
                yield CallRead(read, row * width + positions.astype(np.intp) - 1 - begin, passage.ids[positions])

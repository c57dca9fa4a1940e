"""Scores the tokens of stored completions again, in one pass each. Does not know why."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Floats
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Scored
from ..engine.interface import one_window
from ..engine.setup import Setup
from ..scoring.reference_logprobs import reference_request
from ..scoring.scorer import Scorer
from .stored_records import StoredRecord


@dataclass(slots=True, frozen=True)
class SecondScores:
    """A record's N tokens scored again: logprobs, logprobs under logits / temperature, and whether each is the most likely token.

    All are NaN or False where the row could not be scored: a logit was NaN, or memory did not hold it.
    """

    record: StoredRecord
    logprobs: Floats
    tempered: Floats
    greedy: NDArray[np.bool_]


def rescored(
    setup: Setup, records: list[StoredRecord], temperature: float | None, stopped: Callable[[], bool] = lambda: False
) -> Iterator[SecondScores]:
    """Yields the second scores of each record, in any order; fewer when ``stopped``. temperature: None for 1."""
    scorer = Scorer(replace(setup, wanted=LogprobOptions(echo=True, greedy=True, temperature=1.0 if temperature is None else temperature)))
    requests = [reference_request(at, record.prompt, record.completion, record.images) for at, record in enumerate(records)]
    for outcome in scorer.run(one_window(requests), stopped):
        record = records[outcome.row]
        if isinstance(outcome, Scored):
            scores = outcome.scores[0]
            assert scores.tempered is not None
            assert scores.greedy is not None
            yield SecondScores(record, scores.logprobs, scores.tempered, scores.greedy)
        else:
            lost = np.full(len(record.completion), np.nan, np.float32)
            yield SecondScores(record, lost, lost, np.zeros(len(lost), np.bool_))


def without_pictures(records: list[StoredRecord], placeholder: int | None) -> list[StoredRecord]:
    """Returns the records whose prompts are text alone: of a picture a record holds the ``placeholder``, and no features follow from that.

    placeholder: the model's, None for one that reads text alone.
    """
    return records if placeholder is None else [record for record in records if not (record.prompt == placeholder).any()]

"""Tokens travel once, with the records of their row."""

from typing import Any

import numpy as np
import pytest
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.outcomes import Generated, Scored
from mlx_bulk.runner.core.requests import Generate, Passage, PoolRequest, Prompt, Request, Sample, Sampling, ScoreRequest, TokenInput
from mlx_bulk.runner.worker.row_tokens import RowTokens


def ids(count: int) -> Any:
    return np.zeros(count, np.int32)


def generated(row: int, sample: int, tokens: int) -> Generated:
    scores = Scores(np.zeros(tokens, np.float32))
    return Generated(row, Sample(sample, 0), ids(tokens), scores, np.zeros(tokens, np.float32), "stop", None, None)


def test_a_prompt_counts_once_and_completions_as_they_end():
    tokens = RowTokens()
    request = Request(7, Prompt("", ids(5), ids(5)), Generate(Sampling(), (Sample(0, 0), Sample(1, 0))))
    assert tokens.note_window([request]) == [request]
    assert tokens.note_window([]) == []
    assert tokens.note_window(None) is None
    tokens.note_outcome(generated(7, 1, 3))
    assert tokens.take({7, 8}) == ((7, 5, 3, 0),)
    tokens.note_outcome(generated(7, 0, 4))
    assert tokens.take([7]) == ((7, 0, 4, 0),)
    assert tokens.take([7]) == ()


@pytest.mark.parametrize(
    ("request_", "prompt"),
    [
        (ScoreRequest(1, (Passage(ids(6), ids(2)), Passage(ids(3), ids(1)))), 9),
        (PoolRequest(1, (TokenInput(ids(4)), TokenInput(ids(2)))), 6),
    ],
)
def test_all_passages_and_all_texts_count(request_: ScoreRequest | PoolRequest, prompt: int):
    tokens = RowTokens()
    tokens.note_window([request_])
    tokens.note_outcome(Scored(1, (Scores(np.zeros(2, np.float32)), Scores(np.zeros(1, np.float32)))))
    assert tokens.take([1]) == ((1, prompt, 0, 3),)

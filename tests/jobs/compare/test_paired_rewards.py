"""Tests rewards of the same samples in two rollouts: closed forms on records written by hand."""

import math
from pathlib import Path

import pyarrow as pa
import pytest

from .test_paired_records import COMPLETIONS, held


def test_errors_of_rollouts_are_clustered_by_document(tmp_path: Path):
    """Differences of rewards 1, 1 (row 0), 0, -1 (row 1), none (row 2): a mean of 1/4; residuals 1.5 and -1.5 of documents of 2."""
    a = [(0, 0, 0.0), (0, 1, 0.0), (1, 0, 0.5), (1, 1, 1.0), (2, 0, None)]
    b = [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 0.5), (1, 1, 0.0), (2, 0, 1.0)]
    records = [
        [
            {
                "row": row,
                "sample": s,
                "round": 0,
                "reward": reward,
                "completion_ids": [s],
                "cumulative_logprob": 0.0 if reward is None else reward,
            }
            for row, s, reward in side
        ]
        for side in (a, b)
    ]
    schema = pa.schema([*COMPLETIONS, ("round", pa.int64()), ("reward", pa.float32())])
    figures = held(tmp_path, schema, records[0], records[1], "rollout").figures
    assert (figures["rewarded"], figures["unrewarded"]) == (4, 1)
    assert (figures["reward_a"], figures["reward_b"], figures["reward_difference"]) == (0.375, 0.625, 0.25)
    assert figures["reward_difference_stderr"] == pytest.approx(math.sqrt(2 / 1 * (1.5**2 + 1.5**2)) / 4)
    # Of logprobs row 2 counts too: 2, -1 and 1 over 5 samples.
    residuals = [2 - 2 * 0.4, -1 - 2 * 0.4, 1 - 0.4]
    assert figures["logprob_difference"] == pytest.approx(0.4)
    assert figures["logprob_difference_stderr"] == pytest.approx(math.sqrt(3 / 2 * sum(each**2 for each in residuals)) / 5)

"""Answers written as records of a run and read back: from parts, from journals, and from errors."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.configs.errors import BulkError
from mlx_bulk.jobs.evals.answer_records import SCHEMA, answer_failure, answer_record, kept_answers
from mlx_bulk.jobs.evals.request_list import EvalRequest
from mlx_bulk.runner.core.outcomes import Failure, Scored
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.writer import Writer

KINDS = ["loglikelihood", "loglikelihood_rolling", "generate_until"]


def request(kind: str, row: int) -> EvalRequest:
    settings = {"until": ["\n"]} if kind == "generate_until" else None
    return EvalRequest("t", row, 0, 0, kind, "The king", None if settings else " is", settings)


def write(folder: Path, layout: Layout, answers: dict[int, Any], failed: int) -> None:
    """Writes answers, and a failure, of rows whose kinds go round."""
    with RunDir.open(folder) as run_dir:
        writer = Writer(run_dir, run_dir.identity, SCHEMA, layout, run_dir.recover(layout, SCHEMA), 0)
        for row in range(layout.rows):
            writer.admit(row, 1)
        for row, answer in answers.items():
            writer.add(row, 0, answer_record(request(KINDS[row % 3], row), Scored(row, ()), answer))
        failure = Failure(0, None, 0, "score", "NaN", "its logits are not numbers", "")
        writer.fail(answer_failure(failed, request(KINDS[failed % 3], failed), failure))
        writer.close()


def test_answers_come_back_as_they_were(tmp_path: Path):
    answers = {0: (-1.25, True), 1: -7.5, 2: "", 3: (-np.inf, False), 5: "a text 🙂", 6: (-0.1, False)}
    layout = Layout(9, 3)  # the first shard is committed, the others are journals
    write(tmp_path, layout, answers, failed=4)
    kinds = [KINDS[row % 3] for row in range(9)]
    found = kept_answers(tmp_path, kinds)
    rolling = found.pop(4)
    assert isinstance(rolling, float)
    assert math.isnan(rolling)
    assert found == answers
    with pytest.raises(BulkError, match="row 0 holds an answer of a loglikelihood request, and the tasks ask for generate_until there"):
        kept_answers(tmp_path, ["generate_until", *kinds[1:]])


@pytest.mark.parametrize(("row", "empty"), [(0, (math.nan, False)), (2, "")])
def test_a_failed_request_gives_lm_eval_its_empty_answer(tmp_path: Path, row: int, empty: object):
    write(tmp_path, Layout(3, 4), {}, failed=row)
    assert repr(kept_answers(tmp_path, KINDS)) == repr({row: empty})

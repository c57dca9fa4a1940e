"""Tests joins of two runs' documents and their figures: closed forms on records written by hand."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.jobs.compare.paired_records import PairedRecords, pair_records
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.writer import Writer

Record = dict[str, Any]
IDENTITY = [("row", pa.int64()), ("key", pa.string())]
TEXT = pa.schema(
    [
        *IDENTITY,
        *[("sum_logprob", pa.float64()), ("scored_tokens", pa.int32()), ("scored_bytes", pa.int64())],
        *[("token_ids", pa.list_(pa.int32())), ("token_logprobs", pa.list_(pa.float32()))],
    ]
)
CHOICES = pa.schema(
    [*IDENTITY, ("choice_logprobs", pa.list_(pa.float64())), ("prediction", pa.int32()), ("label", pa.int32()), ("correct", pa.bool_())]
)
COMPLETIONS = pa.schema([*IDENTITY, ("sample", pa.int32()), ("completion_ids", pa.list_(pa.int32())), ("cumulative_logprob", pa.float64())])


def write(folder: Path, schema: pa.Schema, records: Sequence[Record]) -> Path:
    """A run directory with these records, in the order of their rows; rows and samples between them are quarantined."""
    rows = max((record["row"] for record in records), default=-1) + 1
    with RunDir.open(folder) as run:
        run.bind({"config": {}, "identity": {}, "inputs": {"limit": None, "sources": []}})
        writer = Writer(run, run.identity, schema, Layout(rows, 4), run.recover(Layout(rows, 4), schema), 5.0)
        for row in range(rows):
            mine = [record for record in records if record["row"] == row]
            if not mine:
                writer.fail(Failure(row, str(row), None, "read", "RowError", "unreadable", "{}"))
                continue
            by_sample = {record.get("sample", 0): record for record in mine}
            writer.admit(row, max(by_sample) + 1)
            for sample in range(max(by_sample) + 1):
                if sample in by_sample:
                    writer.add(row, sample, {"key": str(row), **by_sample[sample]})
                else:
                    writer.fail(Failure(row, str(row), sample, "generate", "NotANumber", "NaN", "{}"))
        writer.close()
    return folder


def texts(*documents: tuple[float | None, int, int], start: int = 0, keys: str | None = None) -> list[Record]:
    found: list[Record] = []
    for row, (total, tokens, size) in enumerate(documents, start=start):
        key = {} if keys is None else {"key": keys[row]}
        each = {"token_ids": [*range(tokens)], "token_logprobs": [] if total is None else [total / max(tokens, 1)] * tokens}
        found.append({"row": row, "sum_logprob": total, "scored_tokens": tokens, "scored_bytes": size, **each, **key})
    return found


def text(row: int, ids: list[int], logprobs: list[float | None], size: int) -> Record:
    """A document's record by its tokens."""
    scored = [value for value in logprobs if value is not None]
    sums = {"sum_logprob": math.fsum(scored) if scored else None, "scored_tokens": len(scored), "scored_bytes": size}
    return {"row": row, "token_ids": ids, "token_logprobs": logprobs, **sums}


def held(
    tmp_path: Path, schema: pa.Schema, a: Sequence[Record], b: Sequence[Record], kind: str, by_key: bool = False, top: int = 10
) -> PairedRecords:
    return pair_records(write(tmp_path / "a", schema, a), write(tmp_path / "b", schema, b), kind, by_key, top)


# ---------------------------------------------------------------------------------------------------------------- text


def test_the_difference_of_two_scorings_by_hand(tmp_path: Path):
    found = held(tmp_path, TEXT, texts((-2.0, 1, 4), (-6.0, 3, 9)), texts((-3.0, 1, 4), (-7.0, 3, 9)), "text")
    # 2 nats over 4 tokens; the residuals of 1 and 1 against 0.5 a token are 0.5 and -0.5: sqrt(2/1 * 0.5) / 4.
    assert found.figures == {
        "documents": 2,
        "left_out": 0,
        "left_out_nothing_scored": 0,
        "left_out_unlike_tokens": 0,
        "left_out_without_a_chance": 0,
        "unit": "token",
        "nll_difference": 0.5,
        "nll_difference_stderr": pytest.approx(0.25),
        "perplexity_ratio": pytest.approx(math.exp(0.5)),
        "perplexity_ratio_stderr": pytest.approx(0.25 * math.exp(0.5)),
    }
    assert (found.joined_by, found.matched, found.only_a, found.only_b) == ("row", 2, 0, 0)
    assert [(each["row"], each["a"], each["b"], each["difference"]) for each in found.most] == [
        (0, 2.0, 3.0, 1.0),
        (1, 2.0, pytest.approx(7 / 3), pytest.approx(1 / 3)),
    ]


def test_a_run_against_itself_differs_in_nothing(tmp_path: Path):
    run = write(tmp_path / "a", TEXT, texts((-2.5, 2, 4), (-6.0, 3, 9), (-1.0, 5, 5)))
    found = pair_records(run, run, "text", False, 10)
    assert (found.figures["nll_difference"], found.figures["nll_difference_stderr"], found.figures["perplexity_ratio"]) == (0.0, 0.0, 1.0)
    assert found.most == []


def test_documents_of_which_nothing_or_the_impossible_is_scored_are_left_out(tmp_path: Path):
    a = texts((-2.0, 2, 4), (None, 0, 0), (-math.inf, 2, 4), (-1.0, 2, 4))
    b = texts((-3.0, 2, 4), (None, 0, 0), (-3.0, 2, 4), (-math.inf, 2, 4))
    found = held(tmp_path, TEXT, a, b, "text")
    assert (found.figures["documents"], found.figures["left_out"], found.figures["nll_difference"]) == (1, 3, 0.5)
    assert found.figures["nll_difference_stderr"] is None  # of one document
    assert (found.figures["left_out_nothing_scored"], found.figures["left_out_without_a_chance"]) == (1, 2)
    assert [each["row"] for each in found.most] == [0]  # only what counts


def test_two_tokenizers_are_compared_by_bytes(tmp_path: Path):
    found = held(tmp_path, TEXT, texts((-2.0, 1, 4), (-6.0, 3, 8)), texts((-5.0, 2, 4), (-9.0, 3, 8)), "text")
    assert (found.figures["unit"], found.figures["nll_difference"]) == ("byte", 0.5)
    assert "perplexity_ratio" not in found.figures
    assert found.figures["unlike_tokens"] == 1
    assert found.measure == "NLL (nats per byte)"


def test_by_bytes_only_documents_of_as_many_bytes_count(tmp_path: Path):
    a = texts((-2.0, 1, 4), (-6.0, 3, 8), (-2.0, 2, 4))
    b = texts((-5.0, 2, 4), (-9.0, 4, 8), (-9.0, 3, 5))
    found = held(tmp_path, TEXT, a, b, "text")
    assert (found.figures["documents"], found.figures["left_out"], found.figures["left_out_unlike_bytes"]) == (2, 1, 1)
    assert (found.figures["unit"], found.figures["nll_difference"]) == ("byte", 0.5)
    assert [each["row"] for each in found.most] == [0, 1]


def test_behind_a_bos_and_without_one_the_tokens_that_both_score_are_compared(tmp_path: Path):
    a = [text(0, [1, 7, 8, 9], [None, -7.0, -5.0, -1.0], 9), text(1, [1, 7, 8], [None, -6.0, -2.0], 6)]
    b = [text(0, [7, 8, 9], [None, -4.0, -1.0], 6), text(1, [7, 8], [None, -4.0], 3)]
    found = held(tmp_path, TEXT, a, b, "text")
    assert (found.figures["documents"], found.figures["left_out"], found.figures["unit"]) == (2, 0, "token")
    assert (found.figures["tokens_only_a"], found.figures["tokens_only_b"]) == (2, 0)
    # (1 - 2) / (2 + 1): the logprobs of 8 and 9 alone.
    assert found.figures["nll_difference"] == pytest.approx((-1 + 0 + 2) / 3)
    assert [(each["row"], each["a"], each["b"]) for each in found.most] == [(1, 2.0, 4.0), (0, 3.0, 2.5)]
    other_way = pair_records(tmp_path / "b", tmp_path / "a", "text", False, 10)
    assert other_way.figures["nll_difference"] == pytest.approx(-1 / 3)
    assert (other_way.figures["tokens_only_a"], other_way.figures["tokens_only_b"]) == (0, 2)


def test_a_document_with_nothing_before_it_has_nothing_that_both_score(tmp_path: Path):
    a = [text(0, [1, 7], [None, -7.0], 4), text(1, [1, 7, 8], [None, -6.0, -2.0], 6)]
    b = [text(0, [7], [None], 0), text(1, [7, 8], [None, -4.0], 3)]
    found = held(tmp_path, TEXT, a, b, "text")
    assert (found.figures["documents"], found.figures["left_out_nothing_scored"]) == (1, 1)
    assert [each["row"] for each in found.most] == [1]


def test_one_document_with_other_tokens_is_left_out_and_named_alone(tmp_path: Path):
    a, b = texts((-2.0, 1, 4), (-6.0, 3, 9), (-6.0, 3, 9)), texts((-3.0, 1, 4), (-7.0, 3, 9), (-90.0, 5, 9))
    found = held(tmp_path, TEXT, a, b, "text")
    assert (found.figures["unit"], found.figures["documents"]) == ("token", 2)
    assert found.figures["nll_difference"] == pytest.approx(0.5, rel=1e-6)  # of float32
    assert (found.figures["left_out"], found.figures["left_out_unlike_tokens"]) == (1, 1)
    assert [each["row"] for each in found.most] == [0, 1]


def test_rows_are_joined_by_position_and_the_rest_is_counted(tmp_path: Path):
    a = texts((-1.0, 1, 1), (-2.0, 1, 1), (-3.0, 1, 1))
    b = texts((-2.5, 1, 1), (-3.5, 1, 1), (-4.5, 1, 1), (-5.5, 1, 1), start=1)
    found = held(tmp_path, TEXT, a, b, "text")
    assert (found.matched, found.only_a, found.only_b) == (2, 1, 2)
    assert found.figures["nll_difference"] == 0.5


def test_keys_join_rows_that_stand_elsewhere(tmp_path: Path):
    a = texts((-1.0, 1, 1), (-2.0, 1, 1), (-3.0, 1, 1), keys="xyz")
    b = texts((-3.5, 1, 1), (-1.5, 1, 1), (-9.0, 1, 1), keys="zxw")
    found = held(tmp_path, TEXT, a, b, "text", by_key=True)
    assert (found.joined_by, found.matched, found.only_a, found.only_b) == ("key", 2, 1, 1)
    assert found.figures["nll_difference"] == 0.5
    assert [(each["key"], each["row"], each["row_b"]) for each in found.most] == [("x", 0, 1), ("z", 2, 0)]


def test_runs_with_no_document_in_common(tmp_path: Path):
    found = held(tmp_path, TEXT, texts((-1.0, 1, 1)), texts((-1.0, 1, 1), start=5), "text")
    assert (found.matched, found.figures["nll_difference"], found.figures["perplexity_ratio"], found.most) == (0, None, None, [])
    assert held(tmp_path / "empty", TEXT, [], [], "text").matched == 0


def test_top_says_how_many_documents_are_named(tmp_path: Path):
    a, b = texts(*[(-1.0, 1, 1)] * 5), texts(*[(-1.0 - i, 1, 1) for i in range(5)])
    assert [each["row"] for each in held(tmp_path, TEXT, a, b, "text", top=2).most] == [4, 3]
    assert held(tmp_path / "none", TEXT, a, b, "text", top=0).most == []


documents = st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.integers(1, 20)), min_size=2, max_size=12)


@given(documents)
@settings(deadline=None, max_examples=15)  # each writes two runs
def test_the_paired_error_is_that_of_the_ratio_estimate(
    tmp_path_factory: pytest.TempPathFactory, given_documents: list[tuple[float, float, int]]
):
    folder = tmp_path_factory.mktemp("runs")
    a = texts(*((x, n, n) for x, _, n in given_documents))
    b = texts(*((y, n, n) for _, y, n in given_documents))
    found = held(folder, TEXT, a, b, "text").figures
    gaps, counts = np.array([x - y for x, y, _ in given_documents]), np.array([n for *_, n in given_documents])
    mean, d = gaps.sum() / counts.sum(), len(counts)
    variance = sum((gap - mean * n) ** 2 for gap, n in zip(gaps, counts, strict=True))
    # The order of sums differs: both are float64.
    assert found["nll_difference"] == pytest.approx(mean, rel=1e-12, abs=1e-12)
    assert found["nll_difference_stderr"] == pytest.approx(math.sqrt(d / (d - 1) * variance) / counts.sum(), rel=1e-9, abs=1e-12)


# ------------------------------------------------------------------------------------------------------------- choices


def choices(*rows: tuple[int, int | None]) -> list[Record]:
    """A prediction and a label a row; the predicted choice has logprob -1, the others -3."""
    return [
        {
            "row": row,
            "choice_logprobs": [-1.0 if i == prediction else -3.0 for i in range(3)],
            "prediction": prediction,
            "label": label,
            "correct": None if label is None else prediction == label,
        }
        for row, (prediction, label) in enumerate(rows)
    ]


def test_who_is_right_where_the_other_is_not(tmp_path: Path):
    a = choices((0, 0), (0, 0), (1, 0), (2, 2), (1, 0), (1, None))
    b = choices((0, 0), (1, 0), (0, 0), (2, 2), (2, 0), (1, None))
    found = held(tmp_path, CHOICES, a, b, "choices")
    assert found.figures == {
        "documents": 5,
        "left_out": 1,
        "acc_a": pytest.approx(0.6),
        "acc_b": pytest.approx(0.6),
        "acc_difference": 0.0,
        # The differences are 0, -1, 1, 0, 0: a sample variance of 1/2, over 5.
        "acc_difference_stderr": pytest.approx(math.sqrt(0.5 / 5)),
        "both_right": 2,
        "only_a_right": 1,
        "only_b_right": 1,
        "neither_right": 1,
        "same_prediction": 3,
    }
    assert [(each["row"], each["a"], each["b"]) for each in found.most] == [(1, -1.0, -3.0), (2, -3.0, -1.0)]


def test_choices_without_labels_have_no_accuracy(tmp_path: Path):
    found = held(tmp_path, CHOICES, choices((0, None)), choices((1, None)), "choices")
    assert (found.figures["acc_a"], found.figures["acc_difference"], found.figures["same_prediction"]) == (None, None, 0)
    assert found.most == []


# --------------------------------------------------------------------------------------------------------- completions


def completions(*samples: tuple[int, int, list[int], float]) -> list[Record]:
    return [{"row": row, "sample": s, "completion_ids": ids, "cumulative_logprob": total} for row, s, ids, total in samples]


def test_completions_part_at_a_token(tmp_path: Path):
    a = completions((0, 0, [5, 6, 7], -1.0), (0, 1, [5, 6], -2.0), (1, 0, [1], -3.0), (2, 0, [4, 4], -1.0))
    b = completions((0, 0, [5, 6, 7], -1.0), (0, 1, [5, 6, 9], -4.0), (1, 0, [2, 1], -2.0), (2, 1, [4, 4], -1.0))
    found = held(tmp_path, COMPLETIONS, a, b, "generate")
    assert (found.matched, found.only_a, found.only_b) == (3, 1, 1)
    assert (found.figures["completions"], found.figures["same"]) == (3, 1)
    # One goes on where the other ends (position 2), one differs at once.
    assert (found.figures["first_difference_min"], found.figures["first_difference_max"]) == (0, 2)
    assert found.figures["logprob_difference"] == pytest.approx(-1 / 3)
    assert [(each["row"], each["sample"], each["difference"]) for each in found.most] == [(0, 1, -2.0), (1, 0, 1.0)]


def test_completions_that_are_all_the_same_part_nowhere(tmp_path: Path):
    a = completions((0, 0, [5], -1.0), (1, 0, [], 0.0))
    found = held(tmp_path, COMPLETIONS, a, a, "generate")
    assert (found.figures["same"], found.figures["first_difference_min"], found.figures["logprob_difference_stderr"]) == (2, None, 0.0)

"""Tests the pass over a run's records against a plain loop over the same records."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.report_data.lowest import Lowest, hash_uniforms
from mlx_bulk.jobs.report_data.record_pass import SPAN, RecordPass, pass_over_records
from mlx_bulk.jobs.report_data.record_pass import _add_calls as add_calls  # pyright: ignore[reportPrivateUsage]
from mlx_bulk.jobs.report_data.record_pass import _add_spans as add_spans  # pyright: ignore[reportPrivateUsage]
from mlx_bulk.jobs.report_data.samples import samples

from ...thinkers import WEATHER, write_thinker
from ..support.bench import Bench, Done, Record

QUESTIONS: list[Record] = [{"q": f"What is {a} + {b}?"} for a in range(4) for b in range(3)]


@pytest.fixture
def done(bench: Bench) -> Done:
    return bench.run(
        rows=QUESTIONS, sampling={"max_tokens": 20, "temperature": 1.0, "n": 2}, batch={"rows_per_shard": 5}, logprobs={"stats": True}
    )


def found_in(run: Path) -> RecordPass:
    found = pass_over_records(run)
    assert found is not None
    return found


def test_it_counts_what_a_loop_counts(done: Done):
    found, records = found_in(done.output), done.records
    assert found.records == len(records) == 24
    logprobs = [value for record in records for value in record["logprobs"]]
    assert found.nll.count == len(logprobs)
    assert found.nll.mean == pytest.approx(-np.mean(logprobs))
    assert found.lengths["completion"].total == sum(record["completion_tokens"] for record in records)
    assert found.lengths["prompt"].quantile(0.5) == np.quantile([r["prompt_tokens"] for r in records], 0.5, method="inverted_cdf")
    assert found.finish == {reason: sum(r["finish_reason"] == reason for r in records) for reason in {r["finish_reason"] for r in records}}
    means = sorted((r["cumulative_logprob"] / r["completion_tokens"], (0, r["row"], r["sample"])) for r in records)
    assert found.sorts["least likely"].found == [who for _, who in means[:16]]
    assert found.sorts["most likely"].found == [who for _, who in means[::-1][:8]]


def test_the_least_likely_spans_are_those_of_a_loop(done: Done):
    spans: list[tuple[float, tuple[int, int, int], int]] = []
    for record in done.records:
        values = np.array(record["logprobs"], np.float64)
        means = [values[at : at + SPAN].mean() for at in range(len(values) - SPAN + 1)]
        if means:
            spans.append((min(means), (0, record["row"], record["sample"]), int(np.argmin(means))))
    found = found_in(done.output).spans
    spans.sort()
    assert found.found == [who for _, who, _ in spans[:12]]
    assert found.notes.tolist() == [at for *_, at in spans[:12]]
    np.testing.assert_allclose(found.scores, [value for value, *_ in spans[:12]], atol=1e-6)


def test_reasoning_and_calls_are_counted_and_shown_folded(tmp_path: Path):
    bench = Bench(tmp_path, write_thinker(tmp_path / "model"))
    prompt = {"user": "{{ q }}", "tools": [WEATHER], "chat_template_args": {"thinking": "open"}}
    done = bench.run(rows=QUESTIONS[:3], prompt=prompt, sampling={"max_tokens": 4, "ignore_eos": True})
    found = found_in(done.output)
    assert found.calls == {"no call": 3}
    assert found.lengths["reasoning"].total == sum(record["reasoning_tokens"] for record in done.records) == 12
    parts = samples(done.output, found, None).records[0]["parts"]
    assert [(part["name"], part.get("folded", False)) for part in parts] == [("prompt", False), ("reasoning", True), ("completion", False)]


def test_calls_are_counted_by_what_became_of_them():
    call = {"id": "1", "name": "f", "arguments": "{}"}
    columns = {"tool_calls": [None, [], [call], [call, call], []], "tool_error": [None, "cut off", None, "unknown tool", "not a call: x"]}
    found = RecordPass(list(columns))
    add_calls(found, pa.RecordBatch.from_pydict(columns))
    assert found.calls == {"no call": 2, "1 call": 1, "2 calls": 1, "cut off": 1, "unknown tool": 1, "not a call": 1}


LISTS = st.lists(st.lists(st.one_of(st.floats(-20, 0, width=32), st.just(float("nan"))), max_size=24), min_size=1, max_size=8)


@given(LISTS)
def test_spans_neither_cross_records_nor_holes(lists: list[list[float]]):
    spans, records = Lowest(50), np.stack([np.zeros(len(lists)), np.arange(len(lists)), np.zeros(len(lists))], axis=1).astype(np.int64)
    flat = np.array([value for each in lists for value in each], np.float32)
    add_spans(spans, flat, np.array([len(each) for each in lists]), records)
    expected: dict[tuple[int, int, int], float] = {}
    for index, each in enumerate(lists):
        windows = [np.mean(each[at : at + SPAN]) for at in range(len(each) - SPAN + 1)]
        if windows := [float(value) for value in windows if not np.isnan(value)]:
            expected[0, index, 0] = min(windows)
    assert set(spans.found) == set(expected)
    for who, score in zip(spans.found, spans.scores, strict=True):
        assert score == pytest.approx(expected[who], abs=1e-5)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.integers(1, 10))
def test_the_lowest_are_the_lowest_however_they_come(values: list[float], size: int):
    lowest = Lowest(7)
    for start in range(0, len(values), size):
        some = np.array(values[start : start + size])
        lowest.add(some, np.stack([np.zeros(len(some)), np.arange(start, start + len(some)), np.zeros(len(some))], axis=1).astype(np.int64))
    order = sorted(range(len(values)), key=lambda i: (values[i], i))[:7]
    assert [row for _, row, _ in lowest.found] == order


def test_a_shuffled_order_is_even_and_always_the_same():
    records = np.stack([np.zeros(20_000), np.arange(20_000) // 4, np.arange(20_000) % 4], axis=1).astype(np.int64)
    values = hash_uniforms(records)
    assert np.array_equal(values, hash_uniforms(records))
    assert len(set(values.tolist())) == len(values)
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    # Each of the 20 counts is binomial(20,000, 1/20): deviation 31.
    assert abs(counts - 1000).max() < 5 * 31


def test_choices_tell_who_is_sure_and_wrong(bench: Bench):
    rows: list[Record] = [{"q": f"Is {i} odd?", "a": ["yes", "no", "perhaps"], "y": i % 3} for i in range(9)]
    done = bench.score(rows=rows, prompt={"text": "{{ q }}"}, score={"choices": "a", "label": "y"})
    found = found_in(done.output)
    right = sum(record["correct"] for record in done.records)
    assert (found.accuracy["right"], found.accuracy["wrong"], found.accuracy["no label"]) == (right, 9 - right, 0)
    wrong = [(-np.diff(sorted(r["choice_logprobs"]))[-1], r["row"]) for r in done.records if not r["correct"]]
    assert [row for _, row, _ in found.sorts["wrong and sure"].found] == [row for _, row in sorted(wrong)[:12]]


def test_a_run_without_records_has_nothing(tmp_path: Path):
    assert pass_over_records(tmp_path) is None

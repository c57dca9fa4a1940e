"""Tests that scores do not depend on batches, and that statistics are a function of the records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.score import ScoreConfig
from mlx_bulk.jobs.statistics.score_stats import score_statistics

from ..jobs.support.bench import Bench, Done, Record

TOKEN = 1e-4  # the contract's: float32 sums in another order
WORDS = ["the", "king", "is", "dead,", "long", "live", "café", "東京", "and", "a", "messenger", "enters", "with", "news", "from", "Rome"]
ROWS: list[Record] = [
    {"id": f"k{row}", "text": " ".join(WORDS[(row + i) % len(WORDS)] for i in range(1 + 11 * row % 47))} for row in range(24)
]
CHOICES: list[Record] = [
    {"id": f"k{row}", "q": f"One, two, three, four, five, six. {' '.join(WORDS[: 1 + row % 9])}:", "a": [" yes", " no, never", " no"]}
    for row in range(12)
]
TEXT = {"score": {"text": "{{ text }}"}, "logprobs": {"top": 3, "stats": True}}
CHOSEN = {"prompt": {"text": "{{ q }}"}, "score": {"choices": "a"}}


def scored(bench: Bench, name: str, rows: list[Record], **sections: Any) -> Done:
    done = bench.score(
        "--output", str(bench.root / name), rows=rows, data={"path": str(bench.root / "rows.jsonl"), "key": "id"}, **sections
    )
    assert done.code == 0, done.stderr
    return done


def by_key(done: Done, column: str) -> dict[str, Any]:
    return {record["key"]: record[column] for record in done.records}


def floats(values: Any) -> Any:
    """Lists of logprobs, nulls as NaN, behind each other."""
    return np.concatenate([np.array(part, np.float64).ravel() for part in values])


def assert_same_logprobs(mine: Done, other: Done, column: str) -> None:
    a, b = by_key(mine, column), by_key(other, column)
    assert a.keys() == b.keys()
    one, two = ([part for key in sorted(x) for part in (x[key] if isinstance(x[key][0], list) else [x[key]])] for x in (a, b))
    assert [len(part) for part in one] == [len(part) for part in two]
    np.testing.assert_allclose(floats(one), floats(two), rtol=0, atol=TOKEN, equal_nan=True)


@pytest.mark.parametrize(
    ("rows", "job", "column"),
    [
        pytest.param(ROWS, TEXT, "token_logprobs", id="text", marks=pytest.mark.slow),
        pytest.param(CHOICES, CHOSEN, "choice_token_logprobs", id="choices"),
    ],
)
def test_logprobs_are_the_same_in_batches_of_any_size_and_order(bench: Bench, rows: list[Record], job: dict[str, Any], column: str) -> None:
    alone = scored(bench, "alone", rows, **job, batch={"rows": 1})
    assert np.nanstd(floats([part for r in alone.records for part in (r[column] if isinstance(r[column][0], list) else [r[column]])])) > 1
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    for name, order, batch in (
        ("four", rows, {"rows": 4}),
        ("many", rows, {"rows": 32}),
        ("shards", rows, {"rows": 4, "rows_per_shard": 5}),
        ("shuffled", shuffled, {"rows": 4}),
        ("pieces", rows, {"rows": 32, "tokens": 16}),
    ):
        assert_same_logprobs(scored(bench, name, order, **job, batch=batch), alone, column)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "job"), [pytest.param(ROWS, TEXT, id="text", marks=pytest.mark.slow), pytest.param(CHOICES, CHOSEN, id="choices")]
)
def test_deterministic_records_have_the_same_bytes_also_in_another_order(bench: Bench, rows: list[Record], job: dict[str, Any]) -> None:
    batch = {"rows": 4, "deterministic": True}
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    once, again, other = (scored(bench, name, order, **job, batch=batch) for name, order in (("a", rows), ("b", rows), ("c", shuffled)))
    assert once.table.equals(again.table)
    assert bytes_of(once.output) == bytes_of(again.output)
    names = [name for name in once.table.column_names if name != "row"]
    assert once.table.select(names).sort_by("key").equals(other.table.select(names).sort_by("key"))


def bytes_of(output: Path) -> bytes:
    return b"".join(part.read_bytes() for part in sorted((output / "results").glob("part-*.arrow")))


@pytest.mark.parametrize(("rows", "job"), [(ROWS, TEXT), (CHOICES, CHOSEN)], ids=["text", "choices"])
def test_statistics_are_recomputed_from_the_records_byte_by_byte(bench: Bench, rows: list[Record], job: dict[str, Any]) -> None:
    done = scored(bench, "run", rows, **job, batch={"rows_per_shard": 7})
    config = load_config(bench.root / "config.yaml")
    assert isinstance(config, ScoreConfig)
    with pa.memory_map(str(done.output / "stats.arrow")) as file:
        stored = pa.ipc.open_file(file).read_all()
        given = stored.slice(0, 1).to_pylist()[0]
        again = score_statistics(done.output, config, given["prefix"], given["bos_every_window"], given["context"])
        assert serialized(again) == serialized(stored)


def serialized(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_a_scoring_run_takes_the_shortcuts_that_the_probes_allow(bench: Bench) -> None:
    done = scored(bench, "run", ROWS[:2], **TEXT)
    start = json.loads((done.output / "sessions.jsonl").read_text().splitlines()[0])
    assert start["probe"]["scoring"] == {"head": True, "right_padded": True, "shared": True, "reasons": []}

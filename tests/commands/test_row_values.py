"""Tests sampling settings that come from a row's columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ..checkpoints import EOS
from ..jobs.support.bench import ROWS, Bench, Record

VALUES: dict[str, Any] = {
    "max_tokens": 2, "temperature": 0.5, "top_p": 0.3, "top_k": 5, "min_p": 0.4, "typical_p": 0.3, "xtc_probability": 0.9,
    "xtc_threshold": 0.001, "repetition_penalty": 1.7, "presence_penalty": 2.0,
    "frequency_penalty": 1.5, "dry_multiplier": 2.0, "dry_base": 3.0, "dry_allowed_length": 1, "dry_range": 3,
    "dry_sequence_breakers": ["a"], "logit_bias": {"300": 7.5}, "stop": ["e"], "include_stop": True, "stop_token_ids": [430],
    "ignore_eos": True, "min_tokens": 3, "n": 2, "seed": 12345,
}  # fmt: skip
# A number and a whole one, an object, text, a list, true or false, and what decides how many samples there are and how they are drawn.
QUICK = ("temperature", "max_tokens", "logit_bias", "stop", "stop_token_ids", "dry_sequence_breakers", "ignore_eos", "n", "seed")

BASE: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "xtc_threshold": 0.002, "stop": ["a", "e"], "logit_bias": {str(EOS): 4.0}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, model: Path) -> list[Record]:
    """Records of the rows without any value of their own."""
    return Bench(tmp_path_factory.mktemp("plain"), model).run(sampling=BASE).records


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VALUES])
def test_a_row_s_value_is_as_the_config_s(bench: Bench, plain: list[Record], name: str):
    rows = [{**row, "given": {name: value}} for row, value in zip(ROWS, [VALUES[name], None, VALUES[name], None, None], strict=True)]
    mixed = bench.run(rows=rows, sampling={**BASE, "columns": {name: f"given.{name}"}}).records
    if name == "seed":  # a column's is the stream's key itself, the config's is hashed with the row's key
        assert [r["seed"] for r in mixed if r["row"] in (0, 2)] == [12345, 12345]
        assert [r["completion_ids"] for r in mixed if r["row"] == 1] == [r["completion_ids"] for r in plain if r["row"] == 1]
        return
    everywhere = bench.run("--overwrite", rows=rows, sampling={**BASE, name: VALUES[name]}).records
    for row in range(5):
        mine, expected = ([r for r in records if r["row"] == row] for records in (mixed, everywhere if row in (0, 2) else plain))
        assert [(r["completion_ids"], r["completion"], r["finish_reason"], r["seed"]) for r in mine] == [
            (r["completion_ids"], r["completion"], r["finish_reason"], r["seed"]) for r in expected
        ]


def test_a_record_s_seed_reproduces_it_alone(bench: Bench):
    wanted = bench.run(sampling={"temperature": 1.0, "n": 3}).records[4]
    assert (wanted["row"], wanted["sample"]) == (1, 1)
    row = {"q": wanted["prompt"], "seed": wanted["seed"]}
    (alone,) = bench.run("--overwrite", rows=[row], sampling={"temperature": 1.0, "columns": {"seed": "seed"}}).records
    assert (alone["completion_ids"], alone["seed"], alone["sample"]) == (wanted["completion_ids"], wanted["seed"], 0)
    np.testing.assert_allclose(alone["logprobs"], wanted["logprobs"], atol=1e-4)  # batched against alone (the contract's)


def test_a_row_s_seed_counts_up_over_its_samples(bench: Bench):
    done = bench.run(rows=[{"q": "a", "s": 7}], sampling={"temperature": 1.0, "n": 3, "columns": {"seed": "s"}})
    assert [record["seed"] for record in done.records] == [7, 8, 9]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", "hot", "sampling.temperature from column 'v': found \"hot\"; expected 0 (greedy), or a number from 0.0001 to 100"),
        ("temperature", -1, "sampling.temperature from column 'v': found -1; expected 0 (greedy), or a number from 0.0001 to 100"),
        ("n", 0, "sampling.n from column 'v': found 0; expected a whole number of at least 1"),
        ("max_tokens", 2.5, "sampling.max_tokens from column 'v': found 2.5; expected a whole number of at least 1"),
        ("min_tokens", 9, "sampling.min_tokens of this row: found 9; expected at most sampling.max_tokens, which is 6"),
        ("stop_token_ids", [9999], "token id 9999 is not below 2048, the model's vocabulary"),
    ],
)
def test_a_bad_value_costs_its_row_alone(bench: Bench, name: str, value: Any, message: str):
    done = bench.run(rows=[{"q": "a", "v": None}, {"q": "b", "v": value}], sampling={"columns": {name: "v"}})
    assert done.code == 3
    assert [record["row"] for record in done.records] == [0]
    place = f" ({bench.root / 'rows.jsonl'}, line 2)"
    assert [(error["row"], error["stage"], error["message"]) for error in done.errors] == [(1, "sampling", message + place)]


def test_text_and_floats_of_other_formats_are_read_as_numbers(bench: Bench):
    csv = bench.root / "rows.csv"
    csv.write_text('q,max,temp,bias,stop\na,2,0.5,"{""300"": 50}",\nb,,,,x\n')
    columns = {"max_tokens": "max", "temperature": "temp", "logit_bias": "bias", "stop": "stop"}
    done = bench.run(data={"path": str(csv)}, sampling={"columns": columns})
    assert done.code == 0
    first, second = done.records
    assert first["completion_ids"] == [300, 300]
    assert second["completion_tokens"] == 6
    # A table's integers are floats where some are missing.
    done = bench.run("--overwrite", rows=[{"q": "a", "max": 2.0}], sampling={"columns": {"max_tokens": "max"}})
    assert done.records[0]["completion_tokens"] == 2


@pytest.mark.parametrize("kind", ["struct", "map"])
def test_a_bias_of_a_table_s_row_is_read(bench: Bench, kind: str):
    """A struct holds null for the ids of other rows; a map is a list of pairs."""
    typed = pa.struct([("300", pa.float64()), ("301", pa.float64())]) if kind == "struct" else pa.map_(pa.string(), pa.float64())
    bias: list[Any] = [{"300": 50.0}, {"301": 50.0}] if kind == "struct" else [[("300", 50.0)], [("301", 50.0)]]
    pq.write_table(pa.table({"q": ["a", "b"], "bias": pa.array(bias, typed)}), bench.root / "rows.parquet")
    done = bench.run(data={"path": str(bench.root / "rows.parquet")}, sampling={"columns": {"logit_bias": "bias"}, "max_tokens": 2})
    assert done.code == 0, done.errors
    assert [record["completion_ids"] for record in done.records] == [[300, 300], [301, 301]]


def test_true_and_false_as_python_writes_them_are_read_from_csv(bench: Bench):
    path = bench.root / "rows.csv"
    path.write_text("q,go_on\na,True\nb,False\n")
    done = bench.run(data={"path": str(path)}, sampling={"columns": {"ignore_eos": "go_on"}})
    assert (done.code, len(done.records)) == (0, 2)

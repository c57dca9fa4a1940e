"""Tests ``--adopt``: a user accepts a change between two starts of a run."""

import json
from typing import Any

import mlx_bulk
import pytest
import yaml
from mlx_bulk.runner.files.checked_lines import read_lines

from ..jobs.support.bench import ROWS, Bench, Record
from ..jobs.support.drifted_runs import bench as bench
from ..jobs.support.drifted_runs import kept, requantized
from ..jobs.support.drifted_runs import made as made


def test_a_user_can_vouch_for_a_change_once(bench: Bench):
    before = kept(bench)
    requantized(bench.model)
    assert bench.run().code == 4
    adopted = bench.run("--adopt", "model.weights")
    assert adopted.code == 0
    assert f"mlx-bulk: {adopted.output}: adopted: model.weights: the run has sha256 " in adopted.stderr
    assert "complete already: 5 of 5 rows" in adopted.last_line
    again = bench.run("--adopt", "model.weights")  # the same command may be given again
    assert (again.code, "adopted" in again.stderr, bench.run().code) == (0, False, 0)
    assert [line["key"] for line in read_lines(adopted.output / "sessions.jsonl") if line["event"] == "adopted"] == ["model.weights"]
    assert kept(bench)["part-00000000.arrow"] == before["part-00000000.arrow"]


def test_rows_after_an_adopted_change_use_the_new_settings(bench: Bench):
    rows = [*ROWS, {"id": "f", "q": "more"}]
    short = {"max_tokens": 3}
    assert bench.run(rows=rows, sampling=short).code == 4
    done = bench.run("--adopt", "sampling.max_tokens", rows=rows, sampling=short)
    assert done.code == 0
    assert [record["completion_tokens"] for record in done.records] == [6] * 5 + [3]


def test_rows_that_were_in_flight_are_done_by_the_input_that_was_adopted(bench: Bench):
    rows: list[Record] = [*ROWS[:4], {"id": "e", "q": None}]
    assert bench.run("--overwrite", rows=rows, on_error="fail", output={"fsync_seconds": 0}).code == 5
    shorter = bench.run("--adopt", "data.path", rows=ROWS[1:3])
    assert (shorter.code, [record["prompt"] for record in shorter.records]) == (0, [row["q"] for row in ROWS[1:3]])


def test_another_input_is_taken_where_the_user_vouches_for_it(bench: Bench):
    mended = [{**ROWS[0], "q": "What is 2 + 2 ?"}, *ROWS[1:]]
    before = kept(bench)
    done = bench.run("--adopt", "data.path", rows=mended)
    assert done.code == 0
    assert kept(bench)["part-00000000.arrow"] == before["part-00000000.arrow"]
    assert bench.run(rows=mended).code == 0
    assert bench.run(rows=ROWS).code == 4
    shorter = bench.run("--adopt", "data.path", rows=mended[1:])
    assert shorter.code == 4
    assert "committed with 5 rows, the input now gives it 4" in shorter.last_line


KEYED: dict[str, Any] = {"data": {"key": "id"}, "output": {"fsync_seconds": 0}}
NEW: Record = {"id": "new", "q": "Who is there?"}


@pytest.mark.parametrize(
    ("rows", "row", "now", "finished"),
    [
        ([NEW, *ROWS], 0, '"new"', '"a"'),
        ([*ROWS[1:], NEW], 0, '"b"', '"a"'),
        ([ROWS[0], *ROWS[:0:-1]], 1, '"e"', '"b"'),
        ([*ROWS[:3], {"q": "no key"}, ROWS[4]], 3, None, '"d"'),
    ],
    ids=["a row before the others", "the first row gone", "another order", "a row without its key"],
)
def test_keyed_rows_are_adopted_in_their_places_alone(bench: Bench, rows: list[Record], row: int, now: str | None, finished: str):
    assert bench.run("--overwrite", rows=ROWS, **KEYED).code == 0
    before, run = kept(bench), (bench.root / "run" / "run.json").read_bytes()
    done = bench.run("--adopt", "data.path", rows=rows, **KEYED)
    assert done.code == 4
    has = (
        f"cannot be read ({bench.root}/rows.jsonl, line 4: the key 'id' is null or missing; a string or a number is expected)"
        if now is None
        else f"has the key {now}"
    )
    assert (
        f"--adopt data.path: row {row} of the input {has}, and what is finished in its place is of {finished}. Keep the" in done.last_line
    )
    assert (kept(bench), (bench.root / "run" / "run.json").read_bytes()) == (before, run)
    mended = [{**ROWS[0], "q": "What is 2 + 2 ?"}, *ROWS[1:], NEW]
    grown = bench.run("--adopt", "data.path", rows=mended, **KEYED)
    assert (grown.code, [record["key"] for record in grown.records]) == (0, ["a", "b", "c", "d", "e", "new"])


def test_keys_of_failures_count_unless_these_are_done_again(bench: Bench):
    rows: list[Record] = [{"id": "bad", "q": None}, *ROWS[:2]]
    stopped = bench.run("--overwrite", rows=rows, **KEYED)
    assert (stopped.code, stopped.errors[0]["key"]) == (3, "bad")
    mended: list[Record] = [{"id": "good", "q": "Good."}, *rows[1:]]
    refused = bench.run("--adopt", "data.path", rows=mended, **KEYED).last_line
    assert 'row 0 of the input has the key "good", and what failed in its place is of "bad". Where you have mended failed rows, ' in refused
    assert "--retry-errors beside it does them again. Else keep the finished rows in front" in refused
    done = bench.run("--adopt", "data.path", "--retry-errors", rows=mended, **KEYED)
    assert (done.code, [record["key"] for record in done.records]) == (0, ["good", "a", "b"])


def test_columns_keep_the_order_that_the_run_has(bench: Bench):
    batch = {"rows_per_shard": 4}
    before = bench.run("--overwrite", rows=ROWS, batch=batch, **KEYED)
    assert [child.name for child in before.table.schema.field("input").type] == ["id", "q"]
    turned: list[Record] = [dict(reversed(row.items())) for row in [*ROWS, NEW]]
    done = bench.run("--adopt", "data.path", rows=turned, batch=batch, **KEYED)
    assert (done.code, "has columns that are not the run's" in done.stderr) == (0, False)
    assert mlx_bulk.results(done.output).to_pylist()[:5] == before.records
    assert [record["input"] for record in done.records] == [*ROWS, NEW]
    assert {path.name for path in (done.output / "results").iterdir()} == {"part-00000000.arrow", "part-00000001.g2.arrow"}
    more = bench.run("--adopt", "data.path", rows=[{**row, "more": 1} for row in turned], batch=batch, **KEYED)
    assert (more.code, "column input.more" in more.stderr) == (4, True)


def test_fields_within_columns_keep_the_order_that_the_run_has(bench: Bench):
    """As where the keys of all objects are sorted."""
    tags = {"b": 1, "a": [{"d": 1, "c": 2}]}
    chats: list[Record] = [{"id": name, "chat": [{"role": "user", "content": f"{name}?", "tags": tags}]} for name in "ab"]
    prompt = {"text": "{{ chat[0].content }}"}
    before = bench.run("--overwrite", rows=chats, prompt=prompt, **KEYED)
    turned: list[Record] = [json.loads(json.dumps(row, sort_keys=True)) for row in [*chats, {**chats[0], "id": "c"}]]
    done = bench.run("--adopt", "data.path", rows=turned, prompt=prompt, **KEYED)
    assert (done.code, done.table.schema) == (0, before.table.schema)
    assert [record["input"] for record in done.records] == [*chats, {**chats[0], "id": "c"}]


def test_columns_keep_their_order_where_the_description_is_damaged(bench: Bench):
    """The records say what it is."""
    rows: list[Record] = [{"id": row["id"], "q": row["q"], "z": 1} for row in ROWS]
    small: dict[str, Any] = {"batch": {"rows_per_shard": 5}, **KEYED}
    before = bench.run("--overwrite", rows=rows, **small)
    description = before.output / "run.json"
    description.write_bytes(description.read_bytes().replace(b'"column input.id"', b'"column input.ie"'))
    assert "run.json: was damaged" in bench.run(rows=rows, **small).stderr
    more: list[Record] = [*rows, {**NEW, "z": 2}]
    done = bench.run(rows=more, **small)
    assert (done.code, done.table.schema, len(done.records)) == (0, before.table.schema, 6)
    assert mlx_bulk.results(done.output).num_rows == 6


def test_rows_whose_log_is_lost_are_found_before_another_input_is_adopted(bench: Bench):
    before = bench.run("--overwrite", rows=ROWS, **KEYED)
    (before.output / "commits.jsonl").unlink()
    refused = bench.run("--adopt", "data.path", rows=[NEW, *ROWS], **KEYED)
    assert (refused.code, "holds finished rows that commits.jsonl does not name" in refused.last_line) == (4, True)
    assert bench.run(rows=ROWS, **KEYED).records == before.records
    assert 'has the key "new"' in bench.run("--adopt", "data.path", rows=[NEW, *ROWS], **KEYED).last_line


def test_keys_are_adopted_where_finished_rows_have_the_same(bench: Bench):
    rows: list[Record] = [{**row, "uid": row["id"], "other": row["q"]} for row in ROWS]
    assert bench.run("--overwrite", rows=rows, **KEYED).code == 0
    assert "cannot be adopted" not in bench.run(rows=rows, data={"key": "uid"}).stderr
    assert bench.run("--adopt", "data.key", rows=rows, data={"key": "uid"}).code == 0
    other = bench.run("--adopt", "data.key", rows=rows, data={"key": "other"})
    assert (other.code, '--adopt data.key: row 0 of the input has the key "What is 2 + 2?"' in other.last_line) == (4, True)
    without = bench.run("--adopt", "data.key", rows=rows)
    assert (without.code, "finished rows have values of a column as keys, and would stay so" in without.stderr) == (4, True)
    assert "--adopt data.key" not in without.stderr


def test_a_damaged_part_does_not_stand_in_the_way_of_an_adopted_input(bench: Bench):
    assert bench.run("--overwrite", rows=ROWS, **KEYED).code == 0
    (part,) = (bench.root / "run" / "results").glob("*.arrow")
    part.write_bytes(b"")
    done = bench.run("--adopt", "data.path", rows=[NEW, *ROWS], **KEYED)
    assert (done.code, [record["key"] for record in done.records]) == (0, ["new", "a", "b", "c", "d", "e"])


def test_a_sweeps_cells_adopt_the_change_each(bench: Bench):
    config = yaml.safe_load(bench.write_config().read_text(encoding="utf-8"))
    del config["output"]
    sweep = {"job": "sweep", "base": config, "matrix": {"sampling.max_tokens": [2, 3]}, "output": {"path": str(bench.root / "out")}}
    path = bench.root / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    assert bench.command(path).code == 0
    requantized(bench.model)
    assert bench.command(path).code == 4
    assert bench.command(path, "--adopt", "model.weights").code == 0
    assert bench.command(path).code == 0


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sampling.sed", "--adopt sampling.sed: is no key of this run's identity; did you mean sampling.seed"),
        ("weights", "--adopt weights: is no key of this run's identity; did you mean model.weights"),
        ("batch.memory", "--adopt batch.memory: is no key of this run's identity"),
    ],
)
def test_an_unknown_key_is_a_usage_error(bench: Bench, key: str, said: str):
    before = kept(bench)
    done = bench.run("--adopt", key)
    assert done.code == 2
    assert said in done.last_line
    assert kept(bench) == before

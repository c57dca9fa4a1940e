"""Tests the results of a sweep's cells: sweep.arrow, and the table at its end."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.jobs.sweep.results_table import closing_table, sweep_table
from mlx_bulk.jobs.sweep.sweep import CellOutcome
from mlx_bulk.runner.pipeline import session

from ...checkpoints import LLAMA, write_checkpoint
from ...runner.support.sessions import flip
from ..support.bench import ROWS, Bench, Done, Record
from ..support.sweep_runs import base_of, opened, run, table, written


def scoring(bench: Bench, rows: list[Record] | None = None, **score: Any) -> dict[str, Any]:
    base = base_of(bench, rows)
    del base["prompt"], base["sampling"]
    return {**base, "job": "score", "score": {"text": "{{ q }}", **score}}


@pytest.mark.slow
def test_the_table_has_settings_by_their_types_and_statistics_by_group(bench: Bench):
    rows = [{"q": "The king is dead.", "g": "x"}, {"q": "Enter a messenger.", "g": "y"}, {"q": "O", "g": "x"}]
    base = scoring(bench, rows, group_by="g")
    matrix = {"score.context": ["auto", 16], "score.prefix": ["bos", "none"], "data.limit": [2, None]}
    assert run(bench, base=base, matrix=matrix).code == 0
    found = table(bench)
    types = {name: found.schema.field(name).type for name in matrix}
    assert types == {"score.context": pa.string(), "score.prefix": pa.string(), "data.limit": pa.int64()}
    assert found.column("score.context").to_pylist()[::12] == ['"auto"', "16"]  # of several types: as JSON
    assert found.column("group").to_pylist() == ["all", "x", "y"] * 8
    first = found.slice(0, 1).to_pylist()[0]
    stats = bench.root / "out" / first["cell"] / "stats.arrow"
    with pa.memory_map(str(stats)) as file:
        own = pa.ipc.open_file(file).read_all().slice(0, 1).to_pylist()[0]
    assert {name: first[name] for name in own} == own
    assert first["seconds"] > 0


def test_the_table_takes_no_damaged_statistics(bench: Bench):
    assert run(bench, matrix={"sampling.max_tokens": [2, 3]}).code == 0
    ended = [CellOutcome(cell, "complete") for cell in opened(bench.root / "sweep.yaml")]
    assert sweep_table(ended).column("rows").null_count == 0
    flip(bench.root / "out" / ended[0].cell.name / "stats.arrow")
    assert sweep_table(ended).column("rows").to_pylist() == [None, len(ROWS)]
    _, damaged, whole, note = closing_table(ended).splitlines()
    assert damaged.split() == ["2", "figures", "damaged"]
    assert whole.split()[0] == "3"
    assert "damaged" not in whole
    assert note.startswith("figures damaged: stats.arrow or summary.json of the cell is gone or not as it was written")


@pytest.mark.slow
def test_groups_that_were_dropped_are_shown_beside_the_reward_of_the_others(bench: Bench):
    """With two samples and a reward of 0 or 1, the groups that are kept have a mean of 0.5, whatever the model does."""
    source = bench.root / "mine.py"
    source.write_text("def odd(completions, q, **_):\n    return [float(i and len(q[0]) > 1) for i in range(len(completions))]\n")
    base: dict[str, Any] = {**base_of(bench, ROWS), "job": "rollout", "rewards": [{"fn": f"{source}:odd"}], "drop_degenerate": True}
    base["sampling"] |= {"n": 2, "temperature": 1.0}
    done = run(bench, base=base, matrix={"sampling.max_tokens": [2, 3]})
    assert done.code == 0, done.stderr
    lines = done.stderr.splitlines()
    heading, *cells, note, _ = lines[next(i for i, line in enumerate(lines) if line.startswith("sampling.max_tokens")) :]
    assert heading.split()[:4] == ["sampling.max_tokens", "reward", "groups", "dropped"]
    assert [cell.split()[1:6] for cell in cells] == [["0.5000", "±", "0", "4", "1"]] * 2
    assert note == "Rewards are of the groups that were kept: dropped ones are in no other figure."


@pytest.mark.slow
def test_a_setting_that_a_cell_leaves_is_the_bases(bench: Bench):
    include = [{"sampling.max_tokens": 2}, {"data.limit": 1}, {"sampling.temperature": 0.5}]
    assert run(bench, include=include).code == 0
    found = table(bench)
    assert found.column("sampling.max_tokens").to_pylist() == [2, 6, 6]
    assert found.column("data.limit").to_pylist() == [None, 1, None]
    assert found.column("sampling.temperature").to_pylist() == [0.0, 0.0, 0.5]


def test_the_closing_table_fits_a_terminal_and_shows_errors_beside_figures(bench: Bench):
    names = [f"{'a-long-name-' * 6}{i}" for i in range(2)]
    include = [{"data.path": str(bench.write_rows(ROWS, f"{name}.jsonl")), "score.context": 12} for name in names]
    done = run(bench, base=scoring(bench), include=include, matrix={"score.context": [8]})
    assert done.code == 0
    lines = done.stderr.splitlines()
    shown = lines[next(i for i, line in enumerate(lines) if line.startswith("context")) : -1]
    assert shown.pop() == "± is the standard error, clustered by document."
    assert len(shown) == 4
    assert all(len(line) <= 110 for line in shown)
    assert ["a-long-name-0.jsonl" in shown[2], "a-long-name-1.jsonl" in shown[3]] == [True, True]  # paths differ at their end
    assert "token ppl" in shown[0]
    assert all(" ± " in line for line in shown[1:])


def block(done: Done) -> list[str]:
    """The closing table's lines, without the sweep's last line."""
    lines = done.stderr.splitlines()
    before = ("mlx-bulk: complete", "mlx-bulk: cell", "mlx-bulk: report")
    return lines[max(i for i, line in enumerate(lines) if line.startswith(before)) + 1 : -1]


def test_unscored_first_tokens_are_marked_in_the_cells_that_have_them(bench: Bench):
    done = run(bench, base=scoring(bench), matrix={"score.prefix": ["bos", "none"]})
    heading, bos, none, *noted = block(done)
    assert "bits/byte" in heading
    assert "*" not in heading
    assert ("*" in bos, none.count("*")) == (False, 2)  # bits and perplexity of bytes
    assert "± is the standard error, clustered by document." in noted
    assert any(line.startswith("* First tokens with nothing before them, or that begin in the prompt, are") for line in noted)
    assert any(line.startswith("score.prefix=none: 1 document has nothing to score") for line in noted)  # of one letter


def test_quarantined_rows_and_what_was_cut_are_said_of_their_cells(bench: Bench):
    base = scoring(bench, [{"q": "The king is dead."}, {"q": None}, {"q": "Enter a messenger."}], completion="{{ q }}", text=None)
    base |= {"prompt": {"text": "{{ q }}", "too_long": "truncate_left"}}
    done = run(bench, base=base, matrix={"score.context": [8, 64]})
    assert done.code == 3
    heading, short, long, *noted = block(done)
    at = heading.index("quarantined") + len("quarantined") - 1
    assert (short[at], long[at]) == ("1", "1")
    assert "score.context=8: 2 documents were cut to the context." in noted
    assert table(bench).column("exit_code").to_pylist() == [3, 3]


@pytest.mark.slow
def test_contexts_that_models_bring_are_shown_where_they_differ(bench: Bench, model: Path):
    other = write_checkpoint(bench.root / "other", LLAMA | {"max_position_embeddings": 32})
    matrix = {"model.path": [str(model), str(other)]}
    assert "context" in block(run(bench, base=scoring(bench), matrix=matrix))[0]
    assert "context" not in block(run(bench, "--overwrite", base=scoring(bench, context=16), matrix=matrix))[0]
    explicit = run(bench, base=scoring(bench), matrix={"score.context": [16, 32]})
    assert block(explicit)[0].split().count("context") == 0  # it is a setting: by its whole key


def test_reference_columns_come_before_perplexity(bench: Bench):
    heading, alone, beside, *_ = block(run(bench, base=scoring(bench), matrix={"score.reference": [None, "demo"]}))
    assert heading.index("token ppl") < heading.index("mean KL, nats") < heading.index("perplexity ratio")
    assert len(alone.split(" ± ")) < len(beside.split(" ± "))


def test_each_cell_leaves_a_table_of_how_far_all_are(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[tuple[str, int | None]]] = []
    real = session.run_job

    def looked(*arguments: Any) -> Any:
        if (bench.root / "out/sweep.arrow").exists():
            found = table(bench)
            seen.append(list(zip(found.column("state").to_pylist(), found.column("exit_code").to_pylist(), strict=True)))
        return real(*arguments)

    monkeypatch.setattr(session, "run_job", looked)
    assert run(bench, matrix={"data.limit": [1, 2, 3]}).code == 0
    waiting, complete = ("waiting", None), ("complete", 0)
    assert seen == [[complete, waiting, waiting], [complete, complete, waiting]]


def test_a_value_of_several_lines_takes_one(bench: Bench):
    done = run(bench, matrix={"prompt.text": ["{{ q }}", "Say:\n\n{{ q }}"]})
    assert done.code == 0
    assert 'cell 2 of 2: prompt.text="Say:\\n\\n{{ q }}"\n' in done.stderr
    assert [line.split("  ")[0] for line in done.stderr.splitlines()[-4:-1]] == ["prompt.text", "{{ q }}", "Say: {{ q }}"]


def test_a_failed_cells_row_needs_no_other(bench: Bench):
    (cell,) = opened(written(bench, base_of(bench), matrix={"data.limit": [1]}))
    ended = [CellOutcome(cell, "failed", None, 5, "no luck")]
    found = sweep_table(ended)
    assert found.num_rows == 1
    assert closing_table(ended).splitlines()[1:] == ["1           failed [1]", "[1] no luck (exit code 5)"]

"""Sweeps through the real command: cells are ordinary runs, models load once, and what fails stops nothing else."""

import itertools
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.configs.cells import Cell
from mlx_bulk.configs.cells import cells as cells_of
from mlx_bulk.configs.load import load
from mlx_bulk.configs.sweep import SweepConfig
from mlx_bulk.jobs import sweep
from mlx_bulk.jobs.cli import cli
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.sweep import Ended, in_loading_order
from mlx_bulk.jobs.sweep_table import closing_table, sweep_table
from mlx_bulk.runner import loaded, pipeline
from mlx_bulk.runner.locking import lock
from mlx_bulk.runner.manifest import Start
from mlx_bulk.runner.outside import Outside

from ..checkpoints import LLAMA, write_checkpoint
from ..runner.sessions import flip
from .bench import ROWS, Bench, Done, Record, table_of


def base_of(bench: Bench, rows: list[Record] | None = None, **sections: Any) -> dict[str, Any]:
    base = yaml.safe_load(bench.write_config(rows, **sections).read_text(encoding="utf-8"))
    del base["output"]
    return base


def scoring(bench: Bench, rows: list[Record] | None = None, **score: Any) -> dict[str, Any]:
    base = base_of(bench, rows)
    del base["prompt"], base["sampling"]
    return {**base, "job": "score", "score": {"text": "{{ q }}", **score}}


def written(bench: Bench, base: dict[str, Any], **sections: Any) -> Path:
    path = bench.root / "sweep.yaml"
    config = {"job": "sweep", "base": base, "output": {"path": str(bench.root / "out")}, **sections}
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def run(bench: Bench, *options: str, base: dict[str, Any] | None = None, **sections: Any) -> Done:
    return bench.command(written(bench, base_of(bench) if base is None else base, **sections), *options)


def opened(path: Path) -> list[Cell]:
    config = load(path)
    assert isinstance(config, SweepConfig)
    return cells_of(config, str(path))


def table(bench: Bench, folder: str = "out") -> pa.Table:
    with pa.memory_map(str(bench.root / folder / "sweep.arrow")) as file:
        return pa.ipc.open_file(file).read_all()


def listed(bench: Bench) -> list[dict[str, Any]]:
    return json.loads((bench.root / "out/sweep.json").read_text())["cells"]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is loaded from here on, by path and precision."""
    seen: list[str] = []
    real = loaded.load

    def counted(config: Any, checkpoint: Any, memory: int) -> Any:
        seen.append(f"{Path(config.path).name} {config.dtype}")
        return real(config, checkpoint, memory)

    monkeypatch.setattr(loaded, "load", counted)
    return seen


# ------------------------------------------------------------------------------------------------- cells and their runs


def test_each_cell_is_the_run_that_its_settings_make_alone(bench: Bench):
    done = run(bench, matrix={"sampling.max_tokens": [2, 4], "data.limit": [2, 3]})
    assert done.code == 0
    assert done.last_line == f"sweep: 4 of 4 cells complete -> {bench.root}/out"
    assert [cell["overrides"] for cell in listed(bench)] == [
        {"sampling.max_tokens": tokens, "data.limit": limit} for tokens in (2, 4) for limit in (2, 3)
    ]
    for cell in listed(bench):
        alone = bench.run("--overwrite", *(f"--set={key}={value}" for key, value in cell["overrides"].items()))
        # The same requests in the same batches: not a bit differs.
        assert table_of(bench.root / "out" / cell["name"] / "results").equals(alone.table)


def test_the_same_command_continues_and_complete_cells_are_left(bench: Bench):
    assert run(bench, matrix={"data.limit": [2, 3]}).code == 0
    parts = {path: path.stat().st_mtime_ns for path in (bench.root / "out").rglob("part-*.arrow")}
    before = table(bench)
    done = run(bench, matrix={"data.limit": [2, 3, 4]})
    assert done.code == 0
    assert done.stderr.count("complete already") == 2
    assert len(table(bench)) == 3
    assert table(bench).slice(0, 2).equals(before)  # the seconds too: they are those of the start that did the work
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in parts.items())
    assert run(bench, "--overwrite", matrix={"data.limit": [2, 3, 4]}).stderr.count("complete already") == 0


def test_models_are_loaded_once_each(bench: Bench, model: Path, loads: list[str]):
    other = write_checkpoint(bench.root / "other", LLAMA | {"num_hidden_layers": 1})
    matrix = {"data.limit": [1, 2], "model.path": [str(model), str(other)], "sampling.max_tokens": [1, 2]}
    assert run(bench, matrix=matrix).code == 0
    assert loads == [f"{model.name} auto", "other auto"]
    loads.clear()
    assert run(bench, matrix=matrix | {"sampling.max_tokens": [1, 2, 3]}).code == 0  # complete cells need none
    assert loads == [f"{model.name} auto", "other auto"]


def loads_of(cells: Sequence[Cell]) -> int:
    """How many models are loaded where each cell keeps only what it needs."""
    held, count = set[str](), 0
    for cell in cells:
        needed = {cell.config.model.path} | ({cell.config.reference.path} if cell.config.reference else set())
        count += len(needed - held)
        held = needed
    return count


@pytest.mark.parametrize("models", [["a", "b"], ["a", "b", "c"], ["a", "r"]])
@pytest.mark.parametrize("references", [["r"], ["r", None], [None, "r"], ["r", "s"]])
def test_no_order_of_cells_with_references_loads_fewer_models(models: list[str], references: list[str | None]):
    base = {"job": "score", "model": {"path": "demo"}, "data": {"path": "x"}, "score": {"text": "x"}}
    matrix: dict[str, Any] = {"score.reference": references, "model.path": models}
    config = SweepConfig.model_validate({"job": "sweep", "base": base, "matrix": matrix, "output": {"path": "out"}})
    cells = cells_of(config, "x")
    ordered = in_loading_order(cells)
    assert sorted(cell.name for cell in ordered) == sorted(cell.name for cell in cells)
    assert loads_of(ordered) == min(map(loads_of, itertools.permutations(cells)))


def test_cells_of_the_same_models_keep_their_order(bench: Bench):
    cells = opened(written(bench, base_of(bench), matrix={"data.limit": [5, 1, 3]}))
    assert in_loading_order(cells) == cells


def test_options_reach_base_and_folder(bench: Bench, model: Path):
    base = base_of(bench) | {"model": {"path": "/nowhere"}, "data": {"path": "/nowhere.jsonl"}}
    rows = bench.write_rows([{"q": "x"}, {"q": "y"}], "other.jsonl")
    options = ("--model", str(model), "--data", str(rows), "--output", str(bench.root / "there"), "--set", "base.data.limit=1")
    done = run(bench, *options, base=base, matrix={"sampling.n": [1, 2]})
    assert done.code == 0
    assert table(bench, "there").column("records").to_pylist() == [1, 2]
    assert not (bench.root / "out").exists()


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_a_failed_cell_stops_no_other_and_is_tried_again(bench: Bench):
    matrix = {"data.path": [str(bench.root / "late.jsonl"), str(bench.root / "rows.jsonl")]}
    done = run(bench, matrix=matrix)
    assert done.code == 5
    assert done.last_line == f"sweep: 1 of 2 cells complete, 1 failed; the same command continues -> {bench.root}/out"
    assert "[1] data.path: " in done.stderr
    assert "late.jsonl does not exist" in done.stderr.splitlines()[-2]
    failed, complete = table(bench).to_pylist()
    assert (failed["state"], failed["exit_code"], failed["rows"], complete["state"], complete["rows"]) == ("failed", 5, None, "complete", 5)
    assert "late.jsonl does not exist" in failed["error"]
    bench.write_rows(ROWS[:2], "late.jsonl")
    assert run(bench, matrix=matrix).code == 0
    assert table(bench).column("rows").to_pylist() == [2, 5]


def test_a_cell_whose_base_changed_is_that_cells_failure_alone(bench: Bench):
    assert run(bench, matrix={"data.limit": [2]}).code == 0
    changed = base_of(bench, sampling={"max_tokens": 7})
    done = run(bench, base=changed, matrix={"data.limit": [2, 3]})
    assert done.code == 4
    assert "sampling.max_tokens: the run has 6, the config now says 7" in done.stderr
    drifted, fresh = table(bench).to_pylist()
    # What the folder's old statistics say is of another config.
    assert (drifted["state"], drifted["exit_code"], drifted["completion_perplexity"]) == ("failed", 4, None)
    assert (fresh["state"], fresh["rows"]) == ("complete", 3)
    # Failures of several kinds have no one code.
    missing = {"data.path": str(bench.root / "gone.jsonl"), "data.limit": 1}
    assert run(bench, base=changed, matrix={"data.limit": [2, 3]}, include=[missing]).code == 5


def test_any_exception_is_the_cells_own(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    real = pipeline.run

    def broken(config: Any, *rest: Any) -> Any:
        if config.data.limit == 1:
            raise RuntimeError("a library's fault")
        return real(config, *rest)

    monkeypatch.setattr(pipeline, "run", broken)
    done = run(bench, matrix={"data.limit": [1, 2]})
    assert done.code == 5
    assert "[1] RuntimeError: a library's fault (exit code 5)" in done.stderr
    assert table(bench).column("state").to_pylist() == ["failed", "complete"]


def test_quarantined_rows_are_counted(bench: Bench):
    done = run(bench, base=base_of(bench, [{"q": "a"}, {"q": None}, {"q": "c"}]), matrix={"data.limit": [1, 3]})
    assert done.code == 3
    assert done.last_line == f"sweep: 2 of 2 cells complete, 1 rows quarantined -> {bench.root}/out"
    assert table(bench).column("quarantined").to_pylist() == [0, 1]


def test_nothing_starts_where_a_cell_is_no_job(bench: Bench):
    done = run(bench, matrix={"data.limit": [1, 0]})
    assert done.code == 2
    assert 'the cell {"data.limit": 0}: data.limit: found 0; expected a whole number of at least 1, or null' in done.stderr
    done = run(bench, matrix={"prompt.text": ["{{ q }}", "{{ q"]})
    assert done.code == 2
    assert "the cell prompt.text={{ q: prompt.text, line 1: the template cannot be parsed" in done.stderr
    assert not (bench.root / "out").exists()


def test_a_folder_that_is_no_sweep_stays_untouched(bench: Bench):
    (bench.root / "out").mkdir()
    (bench.root / "out/thesis.txt").write_text("all of it")
    done = run(bench, matrix={"data.limit": [1]})
    assert done.code == 5
    assert "out: is not an mlx-bulk sweep, it holds thesis.txt. Choose another --output, or an empty folder." in done.stderr
    assert [path.name for path in (bench.root / "out").iterdir()] == ["thesis.txt"]


def test_runs_and_sweeps_do_not_share_a_folder(bench: Bench):
    assert run(bench, matrix={"data.limit": [1]}).code == 0
    assert "is not an mlx-bulk run, it holds" in bench.run("--output", str(bench.root / "out")).stderr
    assert bench.run("--output", str(bench.root / "run")).code == 0
    done = run(bench, "--output", str(bench.root / "run"), matrix={"data.limit": [1]})
    assert (done.code, "is not an mlx-bulk sweep, it holds" in done.stderr) == (5, True)


def test_two_processes_do_not_sweep_in_one_folder(bench: Bench):
    (bench.root / "out").mkdir()
    descriptor = lock(bench.root / "out", "mlx-bulk sweep")
    try:
        done = run(bench, matrix={"data.limit": [1]})
    finally:
        os.close(descriptor)
    assert done.code == 5
    assert f"process {os.getpid()} on " in done.stderr


# ---------------------------------------------------------------------------------------------------------- interrupted


def test_a_stop_leaves_the_rest_for_the_same_command(bench: Bench):
    path = written(bench, base_of(bench, batch={"rows": 1}), matrix={"sampling.max_tokens": [2, 3, 4]})
    cells = opened(path)
    asked = 0

    def stopped() -> bool:  # in the middle of the second cell
        nonlocal asked
        asked += (bench.root / "out" / cells[1].name).exists()
        return asked > 3

    ended = sweep.run(cells, KINDS, bench.root / "out", Start(), Outside(stopped), True, lambda ended: None)
    assert [each.state for each in ended] == ["complete", "stopped", "waiting"]
    assert sweep.closing_line(ended, Path("out"), "this") == "sweep: 1 of 3 cells complete, 2 left; this continues -> out"
    assert sweep.exit_code(ended) is None
    shown = closing_table(ended).splitlines()
    assert [line.split()[0] for line in shown] == ["sampling.max_tokens", "2", "3", "4"]
    assert "stopped at " in shown[2]
    assert "not begun" in shown[3]
    assert bench.command(path).code == 0
    assert table(bench).column("completion_tokens").to_pylist() == [10, 15, 20]


def test_sigint_ends_the_sweep_with_its_code(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    real = pipeline.run

    def interrupted(config: Any, kind: Any, start: Any, stopped: Any, quiet: bool, models: Any) -> Any:
        summary = real(config, kind, start, stopped, quiet, models)
        os.kill(os.getpid(), signal.SIGINT)
        return summary

    monkeypatch.setattr(pipeline, "run", interrupted)
    path = written(bench, base_of(bench), matrix={"data.limit": [1, 2, 3]})
    result = CliRunner().invoke(cli, ["run", str(path), "--no-supervised"])
    assert result.exit_code == 130
    assert "sweep: 1 of 3 cells complete, 2 left; the same command continues" in result.stderr
    monkeypatch.undo()
    assert bench.command(path).code == 0


# -------------------------------------------------------------------------------------------------------- sweep.arrow


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
    ended = [Ended(cell, "complete") for cell in opened(bench.root / "sweep.yaml")]
    assert sweep_table(ended).column("rows").null_count == 0
    flip(bench.root / "out" / ended[0].cell.name / "stats.arrow")
    assert sweep_table(ended).column("rows").to_pylist() == [None, len(ROWS)]


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
    return lines[max(i for i, line in enumerate(lines) if line.startswith(("mlx-bulk: complete", "mlx-bulk: cell"))) + 1 : -1]


def test_unscored_first_tokens_are_marked_in_the_cells_that_have_them(bench: Bench):
    done = run(bench, base=scoring(bench), matrix={"score.prefix": ["bos", "none"]})
    heading, bos, none, *noted = block(done)
    assert "bits/byte" in heading
    assert "*" not in heading
    assert ("*" in bos, none.count("*")) == (False, 2)  # bits and perplexity of bytes
    assert "± is the standard error, clustered by document." in noted
    assert any(line.startswith("* First tokens with nothing before them are not scored") for line in noted)
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


def test_contexts_that_models_bring_are_shown_where_they_differ(bench: Bench, model: Path):
    other = write_checkpoint(bench.root / "other", LLAMA | {"max_position_embeddings": 32})
    matrix = {"model.path": [str(model), str(other)]}
    assert "context" in block(run(bench, base=scoring(bench), matrix=matrix))[0]
    assert "context" not in block(run(bench, "--overwrite", base=scoring(bench, context=16), matrix=matrix))[0]
    explicit = run(bench, base=scoring(bench), matrix={"score.context": [16, 32]})
    assert block(explicit)[0].split().count("context") == 0  # it is a setting: by its whole key


def test_what_a_reference_says_stands_before_what_follows_from_perplexity(bench: Bench):
    heading, alone, beside, *_ = block(run(bench, base=scoring(bench), matrix={"score.reference": [None, "demo"]}))
    assert heading.index("token ppl") < heading.index("mean KL, nats") < heading.index("perplexity ratio")
    assert len(alone.split(" ± ")) < len(beside.split(" ± "))


def test_each_cell_leaves_a_table_of_how_far_all_are(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[tuple[str, int | None]]] = []
    real = pipeline.run

    def looked(*arguments: Any) -> Any:
        if (bench.root / "out/sweep.arrow").exists():
            found = table(bench)
            seen.append(list(zip(found.column("state").to_pylist(), found.column("exit_code").to_pylist(), strict=True)))
        return real(*arguments)

    monkeypatch.setattr(pipeline, "run", looked)
    assert run(bench, matrix={"data.limit": [1, 2, 3]}).code == 0
    waiting, complete = ("waiting", None), ("complete", 0)
    assert seen == [[complete, waiting, waiting], [complete, complete, waiting]]


def test_paths_that_are_missing_are_told_before_the_first_cell(bench: Bench, model: Path):
    gone = str(bench.root / "gone")
    done = run(bench, matrix={"model.path": [gone, str(model)], "data.path": [f"{gone}.jsonl", str(bench.root / "rows.jsonl")]})
    assert done.stderr.splitlines()[:2] == [
        f"mlx-bulk: model.path: {gone} does not exist; 2 of 4 cells will fail",
        f"mlx-bulk: data.path: {gone}.jsonl does not exist; 2 of 4 cells will fail",
    ]
    assert done.code == 5
    assert table(bench).column("state").to_pylist().count("complete") == 1


def test_a_value_of_several_lines_takes_one(bench: Bench):
    done = run(bench, matrix={"prompt.text": ["{{ q }}", "Say:\n\n{{ q }}"]})
    assert done.code == 0
    assert 'cell 2 of 2: prompt.text="Say:\\n\\n{{ q }}"\n' in done.stderr
    assert [line.split("  ")[0] for line in done.stderr.splitlines()[-4:-1]] == ["prompt.text", "{{ q }}", "Say: {{ q }}"]


def test_a_failed_cells_row_needs_no_other(bench: Bench):
    (cell,) = opened(written(bench, base_of(bench), matrix={"data.limit": [1]}))
    ended = [Ended(cell, "failed", None, 5, "no luck")]
    found = sweep_table(ended)
    assert found.num_rows == 1
    assert closing_table(ended).splitlines()[1:] == ["1           failed [1]", "[1] no luck (exit code 5)"]

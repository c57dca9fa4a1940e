"""Tests ``run``, ``sweep``, ``results`` and ``dataset``: the runs of the command, and their records as Arrow."""

from pathlib import Path
from typing import Any

import mlx_bulk
import pyarrow as pa
import pytest
import yaml
from mlx_bulk.configs.rollout import RolloutConfig

from ..jobs.support.bench import Bench, table_of


def values(config: Path) -> dict[str, Any]:
    return yaml.safe_load(config.read_text(encoding="utf-8"))


def test_a_run_is_the_commands(bench: Bench) -> None:
    done = bench.run("--output", str(bench.root / "command"))
    summary = mlx_bulk.run(bench.root / "config.yaml", progress="nothing")
    assert (done.code, summary.complete, summary.worked, summary.rows, summary.records, summary.errors) == (0, True, True, 5, 5, 0)
    assert summary.output == bench.root / "run"
    assert table_of(summary.output / "results").equals(done.table)
    assert not mlx_bulk.run(str(bench.root / "config.yaml"), progress="nothing").worked  # it goes on where it left off


def test_a_config_is_a_path_a_mapping_or_parsed(bench: Bench) -> None:
    path = bench.write_config()
    settings = values(path)
    settings["model"]["path"], settings["data"]["path"] = bench.model, (bench.root / "rows.jsonl",)
    tables: list[pa.Table] = []
    for name, config in (("path", path), ("mapping", settings), ("parsed", mlx_bulk.load_config(path))):
        summary = mlx_bulk.run(config, ["data.limit=3", f"output.path={bench.root / name}"], progress="nothing")
        assert (summary.rows, summary.output) == (3, bench.root / name)
        tables.append(mlx_bulk.results(summary.output))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    assert settings["data"]["path"] == (bench.root / "rows.jsonl",)  # the caller's mapping is as it was
    assert mlx_bulk.run(path, f"output.path={bench.root / 'one'}", progress="nothing").output == bench.root / "one"


def test_an_error_is_the_commands(bench: Bench) -> None:
    path = bench.write_config()
    with pytest.raises(mlx_bulk.BulkError, match=r"nothing\.jsonl does not exist") as missing:
        mlx_bulk.run(path, ["data.path=nothing.jsonl"], progress="nothing")
    assert missing.value.exit_code == bench.command(path, "--data", "nothing.jsonl").code == 5
    with pytest.raises(mlx_bulk.BulkError, match=r"the config: sampling\.n: found 0") as wrong:
        mlx_bulk.run(values(path) | {"sampling": {"n": 0}})
    assert wrong.value.exit_code == 2
    mlx_bulk.run(path, progress="nothing")
    with pytest.raises(mlx_bulk.BulkError, match=r"sampling\.max_tokens") as drift:
        mlx_bulk.run(path, ["sampling.max_tokens=7"], progress="nothing")
    assert drift.value.exit_code == 4
    assert mlx_bulk.run(path, ["sampling.max_tokens=7"], progress="nothing", overwrite=True).worked


def test_rows_that_fail_are_counted_and_tried_again(bench: Bench) -> None:
    path = bench.write_config(rows=[{"q": "O"}, {"q": "long " * 200}])
    summary = mlx_bulk.run(path, progress="nothing")
    assert (summary.complete, summary.rows, summary.errors) == (True, 2, 1)
    assert "too_long" in summary.reasons[0]
    assert mlx_bulk.results(summary.output, ["row"]).to_pylist() == [{"row": 0}]
    (error,) = mlx_bulk.results(summary.output, errors=True).to_pylist()
    assert (error["row"], error["stage"]) == (1, "too_long")
    again = mlx_bulk.run(path, ["prompt.too_long=truncate_left"], progress="nothing", retry_errors=True, adopt=["prompt.too_long"])
    assert (again.rows, again.errors, again.records) == (2, 0, 2)


def test_a_run_ends_early_when_it_is_told_to(bench: Bench) -> None:
    path = bench.write_config()
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(0)
        return len(asked) > 3

    summary = mlx_bulk.run(path, progress="nothing", stopped=stopped)
    assert not summary.complete
    assert mlx_bulk.run(path, progress="nothing").complete


@pytest.mark.slow
@pytest.mark.draws
def test_a_complete_run_gets_its_report(bench: Bench) -> None:
    summary = mlx_bulk.run(bench.write_config(), progress="nothing")
    page = summary.output / "report.html"
    drawn = page.stat().st_mtime_ns
    mlx_bulk.run(bench.root / "config.yaml", progress="nothing")
    assert page.stat().st_mtime_ns == drawn
    page.unlink()
    mlx_bulk.run(bench.root / "config.yaml", progress="nothing")
    assert page.exists()


def test_results_are_the_committed_records(bench: Bench) -> None:
    done = bench.run(batch={"rows_per_shard": 2})
    assert mlx_bulk.results(done.output).equals(done.table)
    some = mlx_bulk.results(str(done.output), columns=["completion", "row"])
    assert some.column_names == ["row", "completion"]  # the files' order
    lazy = mlx_bulk.dataset(done.output)
    assert lazy.to_table().equals(done.table)
    assert lazy.to_table(columns=["completion"]).num_rows == 5
    assert mlx_bulk.results(done.output, errors=True).num_rows == mlx_bulk.dataset(done.output, errors=True).count_rows() == 0
    with pytest.raises(mlx_bulk.BulkError, match=r"no column \['text'\]; it has row, key"):
        mlx_bulk.results(done.output, ["text"])


def test_uncommitted_records_are_not_read(bench: Bench) -> None:
    done = bench.run(batch={"rows_per_shard": 2})
    commits = done.output / "commits.jsonl"
    lines = commits.read_text(encoding="utf-8").splitlines(keepends=True)
    commits.write_text("".join(lines[:1]), encoding="utf-8")
    shard = mlx_bulk.results(done.output)
    assert len({row // 2 for row in shard["row"].to_pylist()}) == 1
    assert mlx_bulk.dataset(done.output).to_table().equals(shard)
    commits.write_text("", encoding="utf-8")
    assert mlx_bulk.results(done.output).num_rows == mlx_bulk.dataset(done.output).count_rows() == 0


def test_a_damaged_part_is_not_read(bench: Bench) -> None:
    done = bench.run()
    part = next((done.output / "results").glob("part-*.arrow"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    for read in (mlx_bulk.results, mlx_bulk.dataset):
        with pytest.raises(mlx_bulk.BulkError, match="is damaged"):
            read(done.output)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for read in (mlx_bulk.results, mlx_bulk.dataset):
        with pytest.raises(mlx_bulk.BulkError, match="is not a run directory"):
            read(tmp_path)


def sweep_of(bench: Bench, **more: Any) -> dict[str, Any]:
    base = {name: section for name, section in values(bench.write_config()).items() if name != "output"}
    return {"job": "sweep", "base": base, "matrix": {"sampling.max_tokens": [1, 2]}, "output": {"path": bench.root / "sweep"}, **more}


def test_a_sweep_says_how_each_cell_ended(bench: Bench) -> None:
    cells = mlx_bulk.sweep(sweep_of(bench, include=[{"data.path": "nothing.jsonl"}]), progress="nothing")
    assert [cell.state for cell in cells] == ["complete", "complete", "failed"]
    assert [cell.exit_code for cell in cells] == [0, 0, 5]
    assert [cell.settings["sampling.max_tokens"] for cell in cells[:2]] == [1, 2]
    assert cells[1].summary is not None
    assert (cells[1].summary.generated_tokens, cells[1].summary.output) == (10, cells[1].output)
    assert "nothing.jsonl does not exist" in cells[2].message
    assert mlx_bulk.results(cells[0].output).num_rows == 5
    assert (bench.root / "sweep" / "sweep.arrow").exists() or any((bench.root / "sweep").glob("*.arrow"))


def test_run_and_sweep_name_each_other(bench: Bench) -> None:
    with pytest.raises(
        mlx_bulk.BulkError, match=r"found sweep; expected generate, score, rollout, embed or classify: mlx_bulk\.sweep runs a sweep"
    ):
        mlx_bulk.run(sweep_of(bench))
    with pytest.raises(mlx_bulk.BulkError, match=r"found generate; expected sweep: mlx_bulk\.run runs one job"):
        mlx_bulk.sweep(bench.root / "config.yaml")


def test_rollouts_take_what_run_takes(bench: Bench) -> None:
    settings = values(bench.write_config()) | {
        "job": "rollout",
        "sampling": {"n": 2, "max_tokens": 2},
        "data": {"path": bench.root / "rows.jsonl"},
    }
    assert isinstance(mlx_bulk.load_config(settings), RolloutConfig)
    with mlx_bulk.Rollouts(settings, ["data.limit=1"]) as rollouts:
        assert [group.num_rows for group in rollouts] == [2]
    with pytest.raises(mlx_bulk.BulkError, match="job: found generate; expected rollout"):
        mlx_bulk.Rollouts(bench.root / "config.yaml")

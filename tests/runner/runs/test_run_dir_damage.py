"""Tests damage to a run's identity and history: rebuilt where that is certain, else refused."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.core.errors import RunDirError
from mlx_bulk.runner.files.checked_json import read_document
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.runs.run_dir import RunDir

from ..support.run_dirs import LONGER, OTHER, RUN, tree
from ..support.run_dirs import finished as finished


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("broken", [damage, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"{}")])
def test_a_damaged_run_json_is_rebuilt_where_sessions_show_the_same_run(
    finished: Path, broken: Callable[[Path], None], caplog: pytest.LogCaptureFixture
):
    broken(finished / "run.json")
    with RunDir.open(finished) as run, caplog.at_level(logging.WARNING, "mlx_bulk"):
        run.bind(RUN)
        assert read_document(run.run) == {"schema_version": 2, **RUN}
    assert caplog.messages == [f"{finished}/run.json: was damaged; it is rebuilt, as sessions.jsonl shows that this is the same run"]


@pytest.mark.parametrize("other", [{"identity": {"sampling.temperature": 0.7}}, {"inputs": OTHER}, {"inputs": LONGER}])
def test_a_damaged_run_json_binds_no_other_run(finished: Path, other: dict[str, Any]):
    damage(finished / "run.json")
    with RunDir.open(finished) as run:
        with pytest.raises(RunDirError, match=r"run\.json: is damaged, and by sessions\.jsonl this config, model or input is not what"):
            run.bind({**RUN, **other})
        run.bind(RUN)


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_a_damaged_run_json_is_rebuilt_for_the_same_rounds_alone(finished: Path, rounds: int):
    with RunDir.open(finished) as run:
        run.bind({**RUN, "config": {"rounds": 3}})
    damage(finished / "run.json")
    with RunDir.open(finished) as run:
        if rounds != 3:
            with pytest.raises(RunDirError, match="is damaged"):
                run.bind({**RUN, "config": {"rounds": rounds}})
        run.bind({**RUN, "config": {"rounds": 3}})
        assert read_document(run.run)["config"] == {"rounds": 3}


def test_a_damaged_run_json_is_rebuilt_as_it_was_extended_and_adopted_last(finished: Path):
    last = {**RUN, "identity": {"sampling.temperature": 0.7, "sampling.seed": 0}, "inputs": LONGER}
    with RunDir.open(finished) as run:
        run.bind(last, ("sampling.temperature",))
        damage(run.run)
        with pytest.raises(RunDirError, match="is damaged"):
            run.bind(RUN)
        run.bind(last)


def test_a_damaged_run_json_with_nothing_that_says_whose_is_refused_until_overwritten(finished: Path):
    damage(finished / "run.json")
    (finished / "sessions.jsonl").unlink()
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match="nothing there says what run this is"):
        run.bind(RUN)
    with RunDir.open(finished) as run:
        run.replace(RUN)
        assert read_document(run.run)["identity"] == RUN["identity"]


def test_a_damaged_run_json_of_a_run_without_work_is_written_again(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        run.bind(RUN)
        damage(run.run)
        run.bind(RUN)
        assert read_document(run.run)["identity"] == RUN["identity"]


def test_damaged_notes_stop_no_run(finished: Path):
    for name in ("sessions.jsonl", "metrics.jsonl"):
        damage(finished / name)
    with RunDir.open(finished) as run:
        run.bind(RUN)
        run.add_metrics({"rows": 2})
        assert [line["rows"] for line in read_lines(run.metrics)] == [2]
    assert {"sessions.jsonl.damaged", "metrics.jsonl.damaged"} <= tree(finished).keys()


def test_a_damaged_summary_counts_as_missing(finished: Path):
    with RunDir.open(finished) as run:
        assert run.stored_summary() == {"rows": 1}
        damage(run.summary)
        assert run.stored_summary() is None
        run.summary.unlink()
        assert run.stored_summary() is None


def test_results_without_run_json_are_not_adopted(finished: Path):
    (finished / "run.json").unlink()
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match=r"no run\.json"):
        run.bind(RUN)

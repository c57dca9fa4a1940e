"""``mlx-bulk eval`` on the small tasks of this folder, which need no network; and a count of what it computes."""

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.evals.run import EvalRun

TASKS = Path(__file__).parent / "tasks"
Row = tuple[str, int]


def offline(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Makes lm-eval read these tasks alone: its own 14,000 take seconds, and their data is not here."""
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    monkeypatch.chdir(TASKS)  # the tasks' data files are relative to it
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache / "datasets")
    monkeypatch.setattr("lm_eval.tasks.TaskManager", functools.partial(TaskManager, include_defaults=False))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # asks pip for a second, each time


def eval_config(folder: Path, model: Path | str, **settings: Any) -> Path:
    """Writes a config of all three tasks; its run goes to ``out`` in ``folder``."""
    written: dict[str, Any] = {
        "job": "eval",
        "model": {"path": str(model)},
        "tasks": ["questions", "plays", "sums"],
        "include_path": str(TASKS),
        "output": {"path": str(folder / "out"), "fsync_seconds": 0},
        "batch": {"rows": 4, "rows_per_shard": 8},
        "gen_kwargs": {"max_gen_toks": 4},
    }
    folder.mkdir(exist_ok=True)
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump({**written, **settings}))
    return path


def bulk(*words: Any) -> Result:
    """The result of a command."""
    return CliRunner().invoke(cli, [str(word) for word in words])


@contextmanager
def computed(stop_at: int | None = None, at_stop: Callable[[], None] = lambda: None) -> Generator[list[int]]:
    """Rows whose answers the block computes, in order. Behind ``stop_at`` of them the process is interrupted as by Ctrl-C."""
    rows: list[int] = []
    add = EvalRun.add

    def noted(self: EvalRun, place: int, outcome: Any, answer: Any) -> None:
        add(self, place, outcome, answer)
        rows.append(self._call[place])  # pyright: ignore[reportPrivateUsage]
        if len(rows) == stop_at:
            at_stop()
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvalRun, "add", noted)
        yield rows

"""Tests how a run follows its supervisor's orders after deaths of earlier processes, and what it reports to the supervisor."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.host_process import HostProcess, Orders, Supervisor
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline import run_spec, session
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.runs.summary import Summary

from ..jobs.support.bench import Bench, Record, table_of

ROWS: list[Record] = [{"q": "word " * (1 + row % 5)} for row in range(10)]
BATCH: dict[str, Any] = {"rows": 4, "rows_per_shard": 8}


class Knowing(Supervisor):
    """A supervisor that gives these orders, and keeps what it is told."""

    def __init__(self, orders: Orders):
        self.given = orders
        self.reading: list[Path] = []
        self.begun: list[tuple[Path, bool, int]] = []
        self.flights: list[set[int]] = []

    def orders(self, run: Path) -> Orders:
        return self.given

    def reading_stdin(self, run: Path) -> None:
        self.reading.append(run)

    def begin(self, run: Path, frozen: bool, positions: int) -> None:
        self.begun.append((run, frozen, positions))

    def note_in_flight(self, rows: Iterable[int]) -> None:
        self.flights.append(set(rows))


def run(bench: Bench, orders: Orders, start: Start, **sections: Any) -> tuple[Summary, Knowing]:
    config: Any = load_config(bench.write_config(rows=ROWS, **sections))
    supervisor = Knowing(orders)
    return session.run_job(
        config, KINDS["generate"], start, HostProcess(supervisor=supervisor), "nothing", ModelWork(ModelPool())
    ), supervisor


def parts(bench: Bench) -> list[bytes]:
    return [path.read_bytes() for path in sorted((bench.root / "run/results").iterdir())]


def test_suspects_run_alone_before_all_others(bench: Bench):
    orders = Orders(suspect_groups=((9,), (2, 3, 5)), fatal_rows={4: "the process died of it"})
    summary, supervisor = run(bench, orders, Start(), batch=BATCH)
    assert (summary.complete, summary.rows, summary.errors) == (True, 10, 1)
    assert supervisor.begun == [(bench.root / "run", False, 16)]  # 10 rows, 8 a shard
    assert supervisor.flights[:2] == [{9}, {2, 3, 5}]
    assert set().union(*supervisor.flights[2:]) == {0, 1, 6, 7, 8}
    assert supervisor.flights[-1] == set()  # whatever dies now, no row is to blame
    (failure,) = table_of(bench.root / "run/errors").to_pylist()
    assert (failure["row"], failure["stage"], failure["error"]) == (4, "generate", "EngineAborted")
    assert [record["row"] for record in table_of(bench.root / "run/results").to_pylist()] == [row for row in range(10) if row != 4]


def test_batches_are_halved_as_often_as_ordered(bench: Bench):
    _, supervisor = run(bench, Orders(batch_halvings=1), Start(), batch={**BATCH, "rows": 8})
    assert max(map(len, supervisor.flights)) == 4
    assert set().union(*supervisor.flights) == set(range(10))
    (start,) = (line for line in read_lines(bench.root / "run/sessions.jsonl") if line["event"] == "start")
    assert start["halved"] == 1


def test_frozen_batches_are_not_split(bench: Bench):
    batch = {**BATCH, "deterministic": True}
    _, alone = run(bench, Orders(), Start(), batch=batch)
    whole = parts(bench)
    _, supervisor = run(bench, Orders(suspect_groups=((9,), (8,))), Start(overwrite=True), batch=batch)
    assert supervisor.begun == [(bench.root / "run", True, 16)]
    assert supervisor.flights == alone.flights
    assert parts(bench) == whole


def test_start_options_have_their_effect_once(bench: Bench):
    run(bench, Orders(), Start(), batch=BATCH)
    again, _ = run(bench, Orders(started=True), Start(overwrite=True, retry_errors=True), batch=BATCH)
    assert not again.worked
    again, _ = run(bench, Orders(), Start(overwrite=True), batch=BATCH)
    assert again.worked


def test_rows_from_stdin_are_told_before_any_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    _, supervisor = run(bench, Orders(), Start(), data={"limit": 1})
    assert supervisor.reading == []
    supervisor = Knowing(Orders())
    told: list[list[Path]] = []

    def scanned(*_: object) -> None:
        told.append(list(supervisor.reading))
        raise DataError("read enough")

    monkeypatch.setattr(run_spec, "scan", scanned)
    config: Any = load_config(bench.write_config(data={"path": ["-"]}))
    with pytest.raises(DataError, match="read enough"):
        session.run_job(config, KINDS["generate"], Start(), HostProcess(supervisor=supervisor), "nothing", ModelWork(ModelPool()))
    assert told == [[bench.root / "run"]]


def test_a_caller_who_asks_for_another_way_of_showing_is_told_so(bench: Bench):
    config: Any = load_config(bench.write_config(rows=ROWS))
    wrong: Any = True
    with pytest.raises(ValueError, match="show: found True; expected one of 'progress', 'json', 'nothing'"):
        session.run_job(config, KINDS["generate"], Start(), HostProcess(), wrong, ModelWork(ModelPool()))
    assert not (bench.root / "run").exists()

"""Tests that a dead process starts again, runs suspects by themselves until the killer row is found, and gets each signal once.

Most tests use a process without a model, which starts at once; those about runs use the command with a model that aborts.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.jobs.supervision import supervisor as supervising
from mlx_bulk.jobs.supervision.supervisor import supervise
from mlx_bulk.runner.core.errors import ModelError

from ...runner.pipeline.test_progress_display import heard
from ..support.bench import Bench, Record, table_of

PATIENCE = 60.0  # seconds after which a test that waits for a process has failed
SIMULATED, ABORTING = (str(Path(__file__).parents[1] / "support" / name) for name in ("simulated_scores.py", "aborting_jobs.py"))
# Supervises the command behind it, in a process that signals can be sent to.
SUPERVISOR = "import sys; from mlx_bulk.jobs.supervision.supervisor import supervise; sys.exit(supervise(sys.argv[1:]))"
ROWS: list[Record] = [{"q": "word " * (1 + row % 5)} for row in range(10)]


def simulated(folder: Path, rows: int = 16, batch: int = 8, **script: Any) -> list[str]:
    return [sys.executable, SIMULATED, str(folder), str(rows), str(batch), json.dumps(script)]


def starts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "starts").read_text().splitlines()]


def done(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("[0-9]*")}


@pytest.fixture(autouse=True)
def nothing_piped_in(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(supervising.sys, "stdin", nothing)
        yield


# ------------------------------------------------------------------------------------------------- without a model


def test_the_exit_code_is_that_of_the_process(tmp_path: Path):
    assert supervise(simulated(tmp_path, code=3)) == 3
    assert done(tmp_path) == set(range(16))
    assert starts(tmp_path) == [{"started": False, "suspect_groups": [], "fatal_rows": [], "batch_halvings": 0}]


def test_the_row_that_kills_is_found_by_halves(tmp_path: Path):
    with heard() as handler:
        assert supervise(simulated(tmp_path, killers=[10])) == 0
    assert done(tmp_path) == set(range(16)) - {10}
    told = starts(tmp_path)
    assert [start["suspect_groups"] for start in told] == [
        [],
        [[8, 9, 10, 11], [12, 13, 14, 15]],
        [[8, 9], [10, 11], [12, 13, 14, 15]],
        [[10], [11], [12, 13, 14, 15]],
        [[11], [12, 13, 14, 15]],
    ]
    assert told[-1]["fatal_rows"] == [10]
    assert [start["started"] for start in told] == [False, True, True, True, True]
    assert handler.messages[-1] == "the process died of SIGABRT again with row 10 alone in the model: it goes to errors/"


@pytest.mark.slow
def test_batches_that_are_too_large_are_halved_until_they_are_not(tmp_path: Path):
    with heard() as handler:
        assert supervise(simulated(tmp_path, rows=64, batch=16, most=4, signal=int(signal.SIGKILL))) == 0
    assert done(tmp_path) == set(range(64))
    told = starts(tmp_path)
    # 16 rows die, then either half of them; four at a time get through. The next 16 show that no row was to blame, then the next 8.
    assert [start["batch_halvings"] for start in told] == [0, 0, 0, 0, 1, 1, 1, 2]
    assert all(start["fatal_rows"] == [] for start in told)
    assert handler.messages[3].endswith("are halved from here on")


def test_a_single_death_costs_one_start(tmp_path: Path):
    assert supervise(simulated(tmp_path, killers=[10], times=1, signal=int(signal.SIGKILL))) == 0
    assert done(tmp_path) == set(range(16))
    assert len(starts(tmp_path)) == 2


FORKED = """
import os, signal, sys
from pathlib import Path
from mlx_bulk.jobs.supervision.supervisor_link import Link

link = Link.inherited()
orders = link.orders(Path("run"))
if orders.started:
    sys.exit(0 if orders.suspect_groups == ((1, 2), (3,)) else 9)
link.begin(Path("run"), False, 10)
link.note_in_flight([1, 2, 3])
if os.fork() == 0:
    link.note_in_flight([7])
    link.ending(5)
    os.write(link._connection.fileno(), b"no message\\n[1]\\n")
    os._exit(0)
os.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_copy_of_the_process_says_nothing_for_it():
    """It neither ends the command with its own exit code, nor changes which rows are suspected."""
    assert supervise([sys.executable, "-c", FORKED]) == 0


def test_dying_before_the_first_row_twice_is_given_up(tmp_path: Path):
    with pytest.raises(ModelError, match="died of SIGSEGV 2 times before the model had any row"):
        supervise(simulated(tmp_path, idle=True, signal=int(signal.SIGSEGV)))
    assert len(starts(tmp_path)) == 2


@pytest.fixture
def piped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    (tmp_path / "rows").write_text("{}")
    with (tmp_path / "rows").open() as rows:
        monkeypatch.setattr(supervising.sys, "stdin", rows)
        yield


@pytest.mark.usefixtures("piped_in")
def test_a_process_that_may_have_read_stdin_is_not_started_again(tmp_path: Path):
    with pytest.raises(ModelError) as caught:
        supervise(simulated(tmp_path, stdin=True, idle=True, signal=int(signal.SIGKILL)))
    assert str(caught.value) == (
        "the process died of SIGKILL (the system may have been short of memory: lower batch.memory, batch.rows or batch.tokens) "
        "before the model had any row; stdin may have been read in part: run the same command again"
    )
    assert supervise(simulated(tmp_path, stdin=True, killers=[1], times=2)) == 0  # it had begun: its copy is in the run's folder


@pytest.mark.usefixtures("piped_in")
def test_a_process_that_does_not_read_stdin_restarts_whatever_stdin_holds(tmp_path: Path):
    assert supervise(simulated(tmp_path, idle=True, times=1)) == 0
    assert len(starts(tmp_path)) == 2


def test_dying_when_all_is_done_is_no_matter(tmp_path: Path):
    assert supervise(simulated(tmp_path, code=3, after=True)) == 3
    assert len(starts(tmp_path)) == 1


def test_another_signal_is_no_reason_to_start_again(tmp_path: Path):
    assert supervise(simulated(tmp_path, killers=[1], signal=int(signal.SIGHUP))) == 128 + signal.SIGHUP
    assert len(starts(tmp_path)) == 1


def in_its_batch(command: list[str]) -> "subprocess.Popen[str]":
    """Starts a supervisor in its own process group; its process waits for a signal with rows in the model."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_a_signal_to_the_supervisor_is_sent_on(tmp_path: Path, number: int, code: int):
    process = in_its_batch(simulated(tmp_path, wait=True))
    process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (code, f"signal {number}\n")


def test_a_signal_to_all_of_them_is_not_sent_on(tmp_path: Path):
    process = in_its_batch(simulated(tmp_path, wait=True))
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (130, "signal 2\n")
    assert len(starts(tmp_path)) == 1


def test_a_process_that_does_not_end_is_ended(tmp_path: Path):
    slow = SUPERVISOR.replace(
        "sys.exit(", "import mlx_bulk.jobs.supervision.supervisor as s; s.FORWARD_SECONDS = s.END_SECONDS = 0.1; sys.exit("
    )
    command = [sys.executable, "-c", slow, *simulated(tmp_path, wait=True, deaf=True)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 143


def test_without_its_supervisor_the_process_ends_as_well(tmp_path: Path):
    process = in_its_batch(simulated(tmp_path, wait=True))
    process.kill()
    said, _ = process.communicate(timeout=PATIENCE)  # until the process has let go of the pipe as well
    assert said == f"signal {signal.SIGTERM}\n"


def test_the_supervisor_stays_small():
    code = "import resource, sys; import mlx_bulk.jobs.cli.main, mlx_bulk.jobs.supervision.supervisor; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mlx.core", "mlx_lm", "transformers", "datasets", "pyarrow", "numpy", "pydantic"} & set(loaded)


# ----------------------------------------------------------------------------------------------------- with a model


def aborting(config: Path, killer: int, times: int, *options: str) -> list[str]:
    return [sys.executable, ABORTING, str(killer), str(times), "run", str(config), *options]


@pytest.mark.slow
def test_a_row_that_aborts_the_engine_goes_to_the_errors(bench: Bench, capfd: pytest.CaptureFixture[str]):
    batch: dict[str, Any] = {"rows": 2, "rows_per_shard": 4}
    whole = bench.run(rows=ROWS, batch=batch)
    config = bench.write_config(rows=ROWS, batch=batch, output={"fsync_seconds": 3600})
    assert supervise(aborting(config, 6, 1000, "--overwrite")) == 3  # what is done after a death is not overwritten again
    assert len((bench.root / "deaths").read_text()) == 2  # in a batch of two, alone
    records, (failure,) = table_of(bench.root / "run/results").to_pylist(), table_of(bench.root / "run/errors").to_pylist()
    assert [record["row"] for record in records] == [row for row in range(10) if row != 6]
    for mine, theirs in zip(records, (record for record in whole.records if record["row"] != 6), strict=True):
        assert mine["completion"] == theirs["completion"]
    assert (failure["row"], failure["stage"], failure["error"]) == (6, "generate", "EngineAborted")
    assert failure["message"].startswith("the process died of SIGABRT twice with this row in the model, the second time with no other (")
    assert json.loads(failure["input"]) == ROWS[6]
    assert "1 quarantined in errors/" in capfd.readouterr().err
    again = bench.run("--retry-errors", rows=ROWS, batch=batch)
    assert (again.code, len(again.records)) == (0, 10)


@pytest.mark.slow
def test_a_text_that_aborts_the_pooler_goes_to_the_errors(bench: Bench):
    rows = [{"q": "word " * (1 + row)} for row in range(10)]
    sections: dict[str, Any] = {"job": "embed", "embed": {"pooling": "mean"}, "prompt": {"text": "{{ q }}"}}
    config = bench.write_config(rows=rows, **sections, batch={"rows": 4}, sampling={})
    written = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({name: section for name, section in written.items() if name != "sampling"}))
    assert supervise(aborting(config, 6, 1000)) == 3
    records, (failure,) = table_of(bench.root / "run/results").to_pylist(), table_of(bench.root / "run/errors").to_pylist()
    assert [record["row"] for record in records] == [row for row in range(10) if row != 6]
    assert (failure["row"], failure["error"]) == (6, "EngineAborted")
    assert failure["message"].startswith("the process died of SIGABRT twice with this row in the model")


@pytest.mark.slow
def test_an_abort_of_the_scorer_that_happens_once_in_a_sweep(bench: Bench):
    rows: list[Record] = [{"t": "word " * (1 + row % 5)} for row in range(10)]
    base = {
        "job": "score",
        "model": {"path": str(bench.model)},
        "data": {"path": str(bench.write_rows(rows))},
        "score": {"text": "{{ t }}"},
    }
    sweep = {"job": "sweep", "base": base, "matrix": {"data.limit": [4, 10]}, "output": {"path": str(bench.root / "out")}}
    (bench.root / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with heard() as handler:
        assert supervise(aborting(bench.root / "sweep.yaml", 7, 1, "--overwrite")) == 0
    cells = [next((bench.root / "out").glob(f"data.limit={limit}-*")) for limit in (4, 10)]
    assert [table_of(cell / "results").num_rows for cell in cells] == [4, 10]
    assert handler.messages == [
        "the process died of SIGABRT with 10 rows in the model: it starts again and runs them apart, at most 5 at once"
    ]
    assert [(cell / "sessions.jsonl").read_text().count('"event":"start"') for cell in cells] == [1, 2]


def test_the_command_supervises_itself(bench: Bench):
    command = [sys.executable, "-m", "mlx_bulk.jobs", "run", str(bench.root / "gone.yaml"), "--supervised", "--log-level", "debug"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd=bench.root)
    assert child.returncode == 2
    assert len(re.findall(r"^mlx-bulk: process \d+ runs the model; this one watches it$", child.stderr, re.MULTILINE)) == 1
    assert child.stderr.splitlines()[-1].startswith(f"mlx-bulk: {bench.root}/gone.yaml: no such file")

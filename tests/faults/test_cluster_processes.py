"""Rows of stdin, and the cells of a sweep, over workers in processes of their own, some of which are killed: the bytes of a plain run.

A row that kills each worker that has it costs no other row.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from math import log2
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from ..jobs.support.bench import table_of

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "configs" / "demo"
COMMAND = [sys.executable, "-m", "mlx_bulk.jobs"]
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
ROWS = "".join(json.dumps({"q": f"Tell me about {'things ' * (1 + row % 7)}{row}"}) + "\n" for row in range(600))
JOB: dict[str, Any] = {
    "job": "generate",
    "model": {"path": str(DEMO)},
    "prompt": {"text": "{{ q }}"},
    "sampling": {"max_tokens": 12, "temperature": 0},
    "batch": {"rows": 16, "rows_per_shard": 32, "deterministic": True},
}
PATIENCE = 200.0  # seconds
FATAL, SAMPLES = 77, 2
KILLS_ITS_AGENT = """
import psutil

def fatal(completions, number, **others):
    above = [each for each in psutil.Process().parents() if "worker" in each.cmdline()]
    if number[0] == %d and above:
        with open(%r, "a") as log:
            print(above[0].pid, file=log)
        above[0].kill()
    return [0.0] * len(completions)
"""


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def engines(driver: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    for child in psutil.Process(driver.pid).children(recursive=True):
        # One that was killed has no command line, whether or not its agent has waited for it.
        with suppress(psutil.NoSuchProcess):
            if "worker-engine" in child.cmdline():
                yield child


def done(config: Path, output: Path, rows: Path | None = None) -> None:
    """Does a run without workers."""
    with (Path(os.devnull) if rows is None else rows).open("rb") as given:
        subprocess.run([*COMMAND, "run", str(config), "--output", str(output), "--quiet"], env=ENVIRONMENT, stdin=given, check=True)


def done_with_kills(config: Path, output: Path, rows: Path | None = None) -> int:
    """Does a run over two workers. Kills an agent and an engine once records have come; returns how many were killed."""
    command = [*COMMAND, "run", str(config), "--output", str(output), "--workers", "2", "--quiet"]
    with (Path(os.devnull) if rows is None else rows).open("rb") as given:
        driver = subprocess.Popen(command, env=ENVIRONMENT, stdin=given, stderr=subprocess.DEVNULL)
    killed, deadline = 0, monotonic() + PATIENCE
    try:
        while driver.poll() is None and monotonic() < deadline:
            if killed < 2 and len(list(output.glob("**/results/*"))) > 2 * killed and (found := list(engines(driver))):
                with suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile: the next look finds another
                    victim = found[0].parent() if killed else found[0]
                    if victim is not None:
                        victim.kill()
                        killed += 1
            sleep(0.02)
        assert driver.poll() == 0
    finally:
        driver.kill()
    return killed


def parts(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)).split(".")[0]: path.read_bytes() for path in sorted(folder.glob("**/results/*"))}
    assert found
    return found


def require_sound(run: Path, code: int = 0) -> None:
    verified = subprocess.run([*COMMAND, "verify", str(run)], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert verified.returncode == code, verified.stdout + verified.stderr


def test_rows_of_stdin_survive_killed_workers(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROWS)
    config = written(tmp_path, {**JOB, "data": {"path": "-"}, "output": {"path": str(tmp_path / "unused")}})
    done(config, tmp_path / "plain", rows)
    assert done_with_kills(config, tmp_path / "cluster", rows) == 2
    assert parts(tmp_path / "cluster") == parts(tmp_path / "plain")
    require_sound(tmp_path / "cluster")


def test_cells_of_a_sweep_survive_killed_workers(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROWS)
    base = {**JOB, "data": {"path": str(rows), "limit": 300}}
    sweep = {"job": "sweep", "base": base, "matrix": {"sampling.max_tokens": [8, 12]}, "output": {"path": str(tmp_path / "unused")}}
    config = written(tmp_path, sweep)
    done(config, tmp_path / "plain")
    assert done_with_kills(config, tmp_path / "cluster") == 2
    assert parts(tmp_path / "cluster") == parts(tmp_path / "plain")
    for cell in (path.parent for path in (tmp_path / "cluster").glob("*/results")):
        require_sound(cell)


def test_a_row_that_kills_its_agent_ends_alone_in_the_errors(tmp_path: Path):
    lines, function, deaths = ROWS.splitlines()[:256], tmp_path / "rewards.py", tmp_path / "deaths"
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(json.loads(line) | {"number": number}) + "\n" for number, line in enumerate(lines)))
    function.write_text(KILLS_ITS_AGENT % (FATAL, str(deaths)))
    job = {"job": "rollout", "data": {"path": str(rows)}, "rewards": [{"fn": f"{function}:fatal"}]}
    sampling = {"n": SAMPLES, "max_tokens": 12, "temperature": 1.0}
    config = written(tmp_path, {**JOB, **job, "sampling": sampling, "batch": {"rows": 16, "rows_per_shard": 32}})
    command = [*COMMAND, "run", str(config), "--output", str(tmp_path / "run"), "--workers", "3"]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == 3, ended.stderr  # complete, with errors
    failures = table_of(tmp_path / "run/errors").to_pylist()
    assert [(each["row"], each["error"]) for each in failures] == [(FATAL, "EngineAborted")]  # a group fails as a whole
    assert "workers died while they had this row" in failures[0]["message"]
    found = table_of(tmp_path / "run/results")
    places = list(zip(found["row"].to_pylist(), found["sample"].to_pylist(), strict=True))
    assert places == [(row, sample) for row in range(len(lines)) if row != FATAL for sample in range(SAMPLES)]
    assert len(set(deaths.read_text().split())) <= log2(len(lines)) + 3
    require_sound(tmp_path / "run", code=3)

"""A night of rollouts, as an operator lives it: begun, killed, its policy updated, a part and a reward worker lost, continued, exported.

Whole commands in processes of their own. A reward function ends the run at a drawn call, so that no test waits for a clock.
"""

import random
import re
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ..adapters import write_adapter
from ..checkpoints import loaded
from ..jobs.support.bench import Bench, Record, table_of
from ..jobs.support.rollout_runs import groups

pytestmark = pytest.mark.slow

ROWS, SAMPLES, ROUNDS = 24, 4, 2
REWARDS = '''
import os, signal, zlib
from pathlib import Path

HERE = Path(__file__).parent

def own(completions, q, **kw):
    """Of its name, its row and its completion alone: a reward that went astray is seen."""
    return [zlib.crc32(f"own {q[0]} {text}".encode()) % 1009 for text in completions]

def wild(completions, q, **kw):
    if os.fork() == 0:
        raise RuntimeError("of the child")
    return [zlib.crc32(f"wild {q[0]} {text}".encode()) % 1009 for text in completions]

def fatal(completions, q, **kw):
    """Ends its process for one row of each round, and the run at the call that ``kill`` names."""
    end = os.open(HERE / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(end, b".")
    calls = os.fstat(end).st_size
    os.close(end)
    if (HERE / "kill").exists() and calls == int((HERE / "kill").read_text()):
        os.kill(int((HERE / "run.pid").read_text()), signal.SIGKILL)
    if q[0] == "row 7":
        os._exit(9)
    return (zlib.crc32(f"fatal {q[0]} {text}".encode()) % 1009 for text in completions)
'''
NAMES = ("own", "wild", "fatal")


def command(bench: Bench, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs ``mlx-bulk`` to its end, in a process of its own whose number is in ``run.pid``."""
    with subprocess.Popen(
        [sys.executable, "-m", "mlx_bulk.jobs", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=bench.root
    ) as process:
        (bench.root / "run.pid").write_text(str(process.pid))
        stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def killed(bench: Bench, config: Path, call: int) -> str:
    """Runs the command until a reward function ends it, at its ``call``-th call since now. Returns what it has said."""
    (bench.root / "calls").write_bytes(b"")
    (bench.root / "kill").write_text(str(call))
    done = command(bench, "run", str(config), "--no-supervised")
    (bench.root / "kill").unlink()
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stderr


def step(bench: Bench, number: int) -> None:
    write_adapter(bench.root / "adapters" / f"step_{number:06d}", loaded(bench.model).network, seed=number)


def expected(name: str, record: Record) -> float | None:
    if name == "fatal" and record["row"] == 7:
        return None
    return zlib.crc32(f"{name} row {record['row']} {record['completion']}".encode()) % 1009


def test_a_night_of_rollouts(bench: Bench):
    draw = random.Random(20)
    (bench.root / "rewards.py").write_text(REWARDS)
    step(bench, 1)
    config = bench.write_config(
        [{"q": f"row {row}"} for row in range(ROWS)],
        job="rollout",
        sampling={"n": SAMPLES, "max_tokens": 5, "temperature": 1.0},
        rewards=[{"fn": f"{bench.root / 'rewards.py'}:{name}"} for name in NAMES],
        policy={"watch": "adapters", "max_staleness": 5},
        rounds=ROUNDS,
        batch={"rows": 4, "rows_per_shard": 3},
        output={"path": "run", "fsync_seconds": 0.01},
    )
    run = bench.root / "run"

    said = killed(bench, config, draw.randint(1, ROWS))
    step(bench, 2)
    said += killed(bench, config, draw.randint(8, ROWS))

    parts = sorted((run / "results").glob("part-*.arrow"))
    assert parts, "nothing was committed before the second kill"
    damaged = draw.choice(parts)
    content = bytearray(damaged.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    damaged.write_bytes(content)
    verified = command(bench, "verify", str(run))
    assert (verified.returncode, damaged.name in verified.stdout + verified.stderr) == (5, True)

    step(bench, 3)
    ended = command(bench, "run", str(config), "--no-supervised")
    assert ended.returncode == 0, ended.stderr
    assert re.search(rf"complete: {ROWS * ROUNDS} of {ROWS * ROUNDS} rows", ended.stderr), ended.stderr
    death = "reward fatal: died: its process ended with exit code 9"
    assert ended.stderr.count(death) <= 1  # said once a run
    assert death in said + ended.stderr  # by the run that met it
    again = command(bench, "run", str(config), "--no-supervised")
    assert (again.returncode, "complete already" in again.stderr) == (0, True)
    verified = command(bench, "verify", str(run))
    assert (verified.returncode, "complete and sound" in verified.stdout) == (0, True), verified.stdout

    records = table_of(run / "results").to_pylist()
    found = groups(records)  # whole, each once, of one policy
    assert found.keys() == {(turn, row) for turn in range(ROUNDS) for row in range(ROWS)}
    assert {len(group) for group in found.values()} == {SAMPLES}
    assert {record["policy_version"] for record in records} >= {3}
    for record in records:
        assert record["rewards"] == {name: expected(name, record) for name in NAMES}
        died = "died: its process ended with exit code 9" if record["row"] == 7 else None
        assert record["reward_errors"] == {"own": None, "wild": None, "fatal": died}
        assert record["reward"] == sum(expected(name, record) or 0 for name in NAMES)

    exported = command(bench, "export", str(run), "--format", "trl", "--to", "trl.parquet")
    assert exported.returncode == 0, exported.stderr
    table = pq.read_table(bench.root / "trl.parquet").to_pylist()
    assert [(row["round"], row["row"], row["sample"]) for row in table] == [(r["round"], r["row"], r["sample"]) for r in records]
    assert [row["reward"] for row in table] == [record["reward"] for record in records]

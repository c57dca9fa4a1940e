"""Tests a run over a group: one model over two processes, which are one worker to the driver."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed")
from mlx_bulk.jobs.worker.hostfile import Hostfile
from mlx_bulk.jobs.worker.other_ranks import OtherRanks

from ..checkpoints import LLAMA, VOCABULARY
from ..jobs.support.bench import table_of
from ..jobs.support.group_runs import ENVIRONMENT, HOSTS, PATIENCE, GroupRun, group_run, parts, plain_run, write_job, write_model

CLUSTER = {"listen": "127.0.0.1:0", "wait": 60, "lease_seconds": 1}

pytestmark = pytest.mark.slow


def test_a_pipeline_of_two_writes_the_bytes_of_one_process(tmp_path: Path):
    write_model(tmp_path / "model")
    plain_run(write_job(tmp_path, "plain", batch={"deterministic": True}))
    with group_run(tmp_path, write_job(tmp_path, "over", batch={"deterministic": True}, cluster=CLUSTER)) as run:
        code, said = run.end()
        assert code == 0, said + run.log.read_text()
    assert run.worker.returncode == 0, run.log.read_text()
    assert parts(tmp_path / "over") == parts(tmp_path / "plain")


SOON, NEVER = 5.0, 100.0  # seconds without a step, after which a group starts again
LONG = {"rows": 64, "sampling": {"max_tokens": 32, "temperature": 1.0}, "batch": {"rows_per_shard": 8}}
LOADED = "batches of up to 8 rows"  # each rank says so


def until(run: GroupRun, reached: Callable[[], bool]) -> float:
    """Waits, at most ``PATIENCE``, and returns the seconds that it took."""
    began = monotonic()
    while not reached():
        assert run.driver.poll() is None, "the run is over"
        assert monotonic() - began < PATIENCE, run.log.read_text()
        sleep(0.02)
    return monotonic() - began


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGKILL, 1), (signal.SIGSTOP, 1), (signal.SIGSTOP, 0)])
def test_a_rank_that_dies_or_hangs_costs_nothing(tmp_path: Path, number: int, rank: int):
    write_model(tmp_path / "model")
    config = write_job(tmp_path, "over", **LONG, cluster=CLUSTER)
    stall = NEVER if number == signal.SIGKILL else SOON
    with group_run(tmp_path, config, ["--stall-seconds", f"{stall:g}"]) as run:
        until(run, lambda: run.log.read_text().count(LOADED) == 2)
        until(run, lambda: any((run.output / "results").glob("*.arrow")))
        run.ranks()[rank].send_signal(number)
        back = until(run, lambda: run.log.read_text().count(LOADED) == 4)
        # A death is seen as such. A rank that hangs is seen by the steps that it does not take. No test times more than that.
        assert back < NEVER if number == signal.SIGKILL else back > SOON
        code, said = run.end()
        assert code == 0, said + run.log.read_text()
    assert ("died of SIGKILL" in said) == (number == signal.SIGKILL)
    assert ("saw no step of the others: its processes start again" in said) == (number == signal.SIGSTOP)
    assert "before the model had any row" not in said
    records = table_of(tmp_path / "over/results").to_pylist()
    assert sorted(record["row"] for record in records) == list(range(64))
    assert not list((tmp_path / "over/errors").glob("*.arrow"))


ENDS = 2 * 4 * VOCABULARY * LLAMA["hidden_size"]  # bytes of the embedding and the head, which each rank holds
PROGRAM = [sys.executable, str(Path(__file__).parents[1] / "runner/support/rank_logits.py")]


@pytest.mark.parametrize(("kind", "way", "bound"), [("qwen2", "pipeline", 0.0), ("llama", "tensor", 1e-5)])
def test_logits_of_two_ranks_are_those_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str, bound: float):
    """A pipeline computes the same sums; a tensor's part sums are added in another order, in float32 of logits of some units."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # bits depend on them
    model = str(write_model(tmp_path / "model", kind))
    hosts = Hostfile.model_validate({"hosts": HOSTS})
    others = OtherRanks(hosts, [*PROGRAM, model, str(tmp_path / "group"), "ring"])
    first = subprocess.Popen([*PROGRAM, model, str(tmp_path / "group"), "ring"], env=others.environment)
    others.watch(first)
    subprocess.run([*PROGRAM, model, str(tmp_path / "one")], env=ENVIRONMENT, check=True, timeout=PATIENCE)
    assert others.end().code == 0
    one, *ranks = (np.load(tmp_path / name) for name in ("one-0.npz", "group-0.npz", "group-1.npz"))
    for rank in ranks:
        assert str(rank["way"]) == way
        assert np.abs(rank["logits"] - one["logits"]).max() <= bound
        assert rank["weights"] - ENDS < 0.6 * (one["weights"] - ENDS)
    assert (ranks[0]["logits"] == ranks[1]["logits"]).all()


SCORED = {"job": "score", "score": {"text": "{{ q }}"}, "prompt": None, "sampling": None}


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_scores_of_a_group_are_those_of_one_process(tmp_path: Path, kind: str):
    write_model(tmp_path / "model", kind)
    plain_run(write_job(tmp_path, "plain", **SCORED))
    with group_run(tmp_path, write_job(tmp_path, "over", **SCORED, cluster=CLUSTER)) as run:
        code, said = run.end()
        assert code == 0, said + run.log.read_text()
    plain, over = (table_of(tmp_path / name / "results").to_pylist() for name in ("plain", "over"))
    assert [each["row"] for each in over] == [each["row"] for each in plain]
    assert np.abs(np.array([a["sum_logprob"] - b["sum_logprob"] for a, b in zip(over, plain, strict=True)])).max() < 1e-3


@pytest.mark.parametrize(
    ("kind", "sections", "message"),
    [
        ("llama", {"batch": {"deterministic": True}}, "splits this model by tensor, whose sums have other bits"),
        ("qwen2", {"batch": {"kv_bits": 8}}, "batch.kv_bits: a group keeps keys and values as they are"),
        ("gemma", {}, r"mlx-lm has no way to split its architecture \(gemma\)"),
    ],
)
def test_what_a_group_cannot_do_is_refused_on_both_sides(tmp_path: Path, kind: str, sections: dict[str, Any], message: str):
    write_model(tmp_path / "model", kind)
    with group_run(tmp_path, write_job(tmp_path, "over", **sections, cluster=CLUSTER | {"wait": 3})) as run:
        code, said = run.end()
    assert code in (5, 75)
    assert re.search(message, said)
    assert re.search(message, run.log.read_text())

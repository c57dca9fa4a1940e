"""A made-up job, interrupted, killed, extended and damaged: every (row, sample) once, and the same bytes as without."""

import errno
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_bulk.runner import writer
from mlx_bulk.runner.commits import read_commits
from mlx_bulk.runner.durable import sha256
from mlx_bulk.runner.errors import OutOfRoom, RunDirError
from mlx_bulk.runner.manifest import RunDir
from mlx_bulk.runner.parts import read_results
from mlx_bulk.runner.records import Failure
from mlx_bulk.runner.writer import Writer

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("key", pa.string()),
        ("input", pa.struct([("text", pa.large_string())])),
        ("sample", pa.int32()),
        ("completion", pa.large_string()),
        ("logprobs", pa.list_(pa.float32())),
        ("top_ids", pa.list_(pa.list_(pa.int32()))),
    ]
)
ROWS, PER_SHARD, SAMPLES = 10, 4, 2
forks = pytest.mark.skipif(sys.platform == "darwin", reason="Apple's frameworks do not survive a fork without exec")
NEVER = 3600.0  # seconds: journals are written by full frames, commits and close alone


def record(row: int, sample: int) -> dict[str, Any]:
    rng = np.random.default_rng((row, sample))
    tokens = int(rng.integers(0, 5))
    return {
        "key": f"k{row}",
        "input": {"text": None if row % 3 == 0 else f"text {row}"},
        "completion": None if sample and row % 4 == 0 else "é" * tokens,
        "logprobs": None if row == 5 else rng.normal(size=tokens).astype(np.float32),
        "top_ids": rng.integers(0, 99, (tokens, 2)).astype(np.int32),
    }


def failure(row: int, sample: int | None = None, message: str = "no") -> Failure:
    return Failure(row, f"k{row}", sample, "generate", "RowError", message, "{}")


def outcomes(rows: int) -> list[tuple[int, int | None]]:
    """What the made-up job gives: row 2 fails whole, and so does sample 1 of row 6; all else are records."""
    made: list[tuple[int, int | None]] = [(row, sample) for row in range(rows) for sample in range(SAMPLES) if row != 2]
    return [*made, (2, None)] if rows > 2 else made


def work(path: Path, rows: int = ROWS, fsync_seconds: float = NEVER, shuffle: int = 0, stop_after: int | None = None) -> None:
    """One session: does what is not done yet, in an order of its own; finishes the run unless it stops before."""
    with RunDir.open(path) as run:
        recovered = run.recover(rows, PER_SHARD, SCHEMA)
        out = Writer(run, SCHEMA, rows, PER_SHARD, recovered, fsync_seconds)
        left = [(row, sample) for row, sample in outcomes(rows) if row // PER_SHARD not in recovered.committed]
        for row in sorted({row for row, _ in left} - {2}):
            out.admit(row, SAMPLES)
        ledgers = recovered.done
        left = [
            (row, sample)
            for row, sample in left
            if row // PER_SHARD not in ledgers
            or not (row in ledgers[row // PER_SHARD].failed if sample is None else ledgers[row // PER_SHARD].has(row, sample))
        ]
        random.Random(shuffle).shuffle(left)
        for row, sample in left[:stop_after]:
            if sample is None or (row, sample) == (6, 1):
                out.fail(failure(row, sample))
            else:
                out.add(row, sample, record(row, sample))
        out.close() if stop_after is not None else out.finish()


def content(path: Path) -> dict[str, str]:
    """The parts' bytes, as their hashes: what differs is then short to print."""
    return {str(file.relative_to(path)): sha256(file) for file in path.rglob("part-*")}


def check(path: Path, rows: int = ROWS) -> None:
    """Every row and sample once, in order, with the values it was given."""
    table = pa.Table.from_batches(read_results(path), SCHEMA)
    expected = [(row, sample) for row, sample in sorted(outcomes(rows), key=str) if sample is not None and (row, sample) != (6, 1)]
    found = list(zip(table["row"].to_pylist(), table["sample"].to_pylist(), strict=True))
    assert found == sorted(expected)
    for line in table.to_pylist():
        made = record(line["row"], line["sample"])
        assert line["completion"] == made["completion"]
        assert line["input"] == made["input"]
        assert line["top_ids"] == made["top_ids"].tolist()
        assert line["logprobs"] == (None if made["logprobs"] is None else made["logprobs"].tolist())
    errors = [line for file in sorted(path.glob("errors/*.arrow")) for line in pa.ipc.open_file(file).read_all().to_pylist()]
    assert [(line["row"], line["sample"], line["stage"]) for line in errors] == [(2, None, "generate"), (6, 1, "generate")][
        : 1 + (rows > 6)
    ]
    log = read_commits(RunDir(path, -1))
    assert log.closing == {"complete": True, "rows": rows, "records": len(expected), "errors": len(errors)}
    assert list(path.glob("journal/*")) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The parts of a run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    work(path)
    check(path)
    return content(path)


@pytest.mark.parametrize("fsync_seconds", [0.0, NEVER])
@pytest.mark.parametrize("shuffle", [1, 2, 3])
def test_neither_order_nor_framing_shows_in_the_parts(tmp_path: Path, whole: dict[str, str], shuffle: int, fsync_seconds: float):
    work(tmp_path / "run", fsync_seconds=fsync_seconds, shuffle=shuffle)
    check(tmp_path / "run")
    assert content(tmp_path / "run") == whole


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(stops=st.lists(st.integers(0, 8), max_size=4), shuffle=st.integers(0, 99))
def test_any_number_of_sessions_makes_the_same_run(
    tmp_path_factory: pytest.TempPathFactory, whole: dict[str, str], stops: list[int], shuffle: int
):
    path = tmp_path_factory.mktemp("sessions") / "run"
    for number, stop in enumerate(stops):
        work(path, shuffle=shuffle + number, stop_after=stop)
    work(path, shuffle=shuffle)
    check(path)
    assert content(path) == whole


def died_at(step: int, session: Callable[[], None]) -> bool:
    """Runs the session in a child that kills itself before its ``step``-th change to the disk; whether it came so far."""
    child = os.fork()
    if child == 0:
        left = step

        def killing(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **keywords)

            return call

        for name in ("fsync", "replace", "rename", "unlink", "ftruncate", "truncate"):
            setattr(os, name, killing(getattr(os, name)))
        real_write = os.write

        def torn_write(descriptor: int, piece: Any) -> int:
            return real_write(descriptor, piece[: max(1, len(piece) // 2)])

        os.write = killing(torn_write)
        try:
            session()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def steps(tmp_path: Path, session: Callable[[Path], None], prepare: Callable[[Path], None]) -> Iterator[Path]:
    """A run directory for each point at which the session can be killed, as the kill left it."""
    step = 1
    while True:
        path = tmp_path / f"run{step}"
        prepare(path)
        if not died_at(step, lambda path=path: session(path)):
            assert step > 20
            return
        yield path
        step += 1


@forks
def test_killed_between_any_two_steps_the_next_session_makes_the_same_run(tmp_path: Path, whole: dict[str, str]):
    for path in steps(tmp_path, lambda path: work(path, shuffle=5), lambda path: None):
        work(path, shuffle=6)
        check(path)
        assert content(path) == whole


@forks
def test_killed_between_any_two_steps_of_an_extension(tmp_path: Path, whole: dict[str, str]):
    for path in steps(tmp_path, lambda path: work(path, shuffle=5), lambda path: work(path, rows=6)):
        work(path, shuffle=6)
        check(path)
        assert content(path) == whole


def test_an_extended_input_keeps_the_finished_rows_of_the_last_shard(tmp_path: Path, whole: dict[str, str]):
    work(tmp_path / "run", rows=6)
    check(tmp_path / "run", rows=6)
    with RunDir.open(tmp_path / "run") as run:
        recovered = run.recover(ROWS, PER_SHARD, SCHEMA)
        assert recovered.committed == {0}
        assert recovered.done[1].samples == {4: {0, 1}, 5: {0, 1}}
        assert (recovered.rows, recovered.records, recovered.errors) == (4, 10, 1)
    work(tmp_path / "run")
    check(tmp_path / "run")
    assert content(tmp_path / "run") == whole


def test_a_shorter_input_than_committed_is_refused(tmp_path: Path):
    work(tmp_path / "run")
    with (
        RunDir.open(tmp_path / "run") as run,
        pytest.raises(RunDirError, match="shard 2 is committed with 2 rows, the input now gives it 1"),
    ):
        run.recover(ROWS - 1, PER_SHARD, SCHEMA)


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "errors flipped"])
def test_a_damaged_part_is_done_again(tmp_path: Path, whole: dict[str, str], damage: str, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path)
    part = path / ("errors" if "errors" in damage else "results") / "part-00000001.arrow"
    found = bytearray(part.read_bytes())
    found[len(found) // 2] ^= 1
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(found[:-1] if damage == "short" else found)
    work(path)
    assert "is done again" in caplog.text
    check(path)
    assert {name: digest for name, digest in content(path).items() if not name.endswith(".orphan")} == whole


def test_a_complete_run_is_left_as_it_is(tmp_path: Path):
    work(tmp_path / "run")
    before = content(tmp_path / "run"), (tmp_path / "run/commits.jsonl").read_bytes()
    work(tmp_path / "run")
    assert (content(tmp_path / "run"), (tmp_path / "run/commits.jsonl").read_bytes()) == before


def test_an_empty_input_is_complete(tmp_path: Path):
    work(tmp_path / "run", rows=0)
    assert read_commits(RunDir(tmp_path / "run", -1)).closing == {"complete": True, "rows": 0, "records": 0, "errors": 0}
    assert list(read_results(tmp_path / "run")) == []


def test_parts_lost_from_the_log_are_set_aside_not_removed(tmp_path: Path, whole: dict[str, str]):
    work(tmp_path / "run")
    (tmp_path / "run/commits.jsonl").unlink()
    work(tmp_path / "run")
    check(tmp_path / "run")
    assert content(tmp_path / "run") == whole | {f"{name}.orphan": digest for name, digest in whole.items()}


def test_read_results_names_a_column_that_is_not_there(tmp_path: Path):
    work(tmp_path / "run")
    assert next(iter(read_results(tmp_path / "run", ["sample", "row"]))).schema.names == ["row", "sample"]
    with pytest.raises(RunDirError, match=r"no column \['text'\]; it has row, key"):
        list(read_results(tmp_path / "run", ["text"]))


def test_a_full_disk_stops_the_job_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, str]):
    path = tmp_path / "run"
    work(path, stop_after=3)
    with RunDir.open(path) as run, monkeypatch.context() as patch:
        out = Writer(run, SCHEMA, ROWS, PER_SHARD, run.recover(ROWS, PER_SHARD, SCHEMA), fsync_seconds=0.0)

        def full(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))

        patch.setattr(writer.journal, "append_bytes", full)
        # More calls than the queue has room for: a writer that stopped taking would block here for ever.
        with pytest.raises(OutOfRoom, match=r"No space left on device\. The volume .+ has \d+ bytes free"):  # noqa: PT012
            for _ in range(10_000):
                out.fail(failure(8, message="once"))
        with pytest.raises(OutOfRoom):
            out.close()
    work(path)
    check(path)
    assert content(path) == whole


def test_datasets_reads_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    work(tmp_path / "run")
    found = datasets.load_dataset(
        "arrow", data_files=str(tmp_path / "run/results/*.arrow"), cache_dir=str(tmp_path / "cache"), split="train"
    )
    assert found.to_list() == pa.Table.from_batches(read_results(tmp_path / "run")).to_pylist()

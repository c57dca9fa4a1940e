"""Makes a job whose sessions can be interrupted, killed, extended, retried and damaged, and lists its right records."""

import os
import random
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.files.file_stamp import sha256
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.paths import RunPaths, part_of
from mlx_bulk.runner.store.results import read_errors, read_results
from mlx_bulk.runner.store.writer import Writer

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
IDENTITY = "ab12"
NEVER = 3600.0  # seconds: journals are written by full frames, commits and close alone
Place = tuple[int, int | None]  # row and sample; None: the row as a whole
FAILING: frozenset[Place] = frozenset({(2, None), (6, 1)})

forks = pytest.mark.skipif(sys.platform == "darwin", reason="Apple's frameworks do not survive a fork without exec")


def record(row: int, sample: int) -> dict[str, Any]:
    """Returns the job's record of a sample."""
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
    """Returns the job's failure of a row."""
    return Failure(row, f"k{row}", sample, "generate", "RowError", message, "{}")


def opened(path: Path) -> RunDir:
    """The run directory, bound to an identity."""
    run = RunDir.open(path)
    run.identity = IDENTITY
    return run


def work(
    path: Path,
    rows: int = ROWS,
    *,
    failing: frozenset[Place] = FAILING,
    retry: bool = False,
    shuffle: int = 0,
    stop_after: int | None = None,
    fsync_seconds: float = NEVER,
) -> list[Place]:
    """One session: does what is not done yet, in an order of its own; finishes the run unless it stops before. What it did."""
    with opened(path) as run:
        recovered = run.recover(Layout(rows, PER_SHARD), SCHEMA, retry)
        out = Writer(run, run.identity, SCHEMA, Layout(rows, PER_SHARD), recovered, fsync_seconds)
        left: list[Place] = []
        for row in (row for row in range(rows) if row // PER_SHARD not in recovered.committed):
            ledger = recovered.done.get(row // PER_SHARD)
            if ledger is not None and ledger.is_resolved(row):
                continue
            if (row, None) in failing:
                left.append((row, None))
                continue
            out.admit(row, SAMPLES)
            left += [(row, sample) for sample in range(SAMPLES) if ledger is None or sample not in ledger.samples_of(row)]
        random.Random(shuffle).shuffle(left)
        for row, sample in left[:stop_after]:
            if (row, sample) in failing:
                out.fail(failure(row, sample))
            else:
                assert sample is not None
                out.add(row, sample, record(row, sample))
        out.close() if stop_after is not None else out.finish()
    return sorted(left[:stop_after], key=str)


def content(path: Path) -> dict[tuple[str, int], str]:
    """The hashes of the parts, by folder and shard; each shard has one of a kind. Parts that were set aside are left out."""
    parts = [(file.parent.name, shard[0], sha256(file)) for file in path.glob("*/*") if (shard := part_of(file.name))]
    assert len(parts) == len({part[:2] for part in parts})
    return {(folder, shard): digest for folder, shard, digest in parts}


def orphans(path: Path) -> list[str]:
    """The parts that were set aside."""
    return sorted(str(file.relative_to(path)) for file in path.glob("*/*.orphan*"))


def check(path: Path, rows: int = ROWS, failing: frozenset[Place] = FAILING) -> None:
    """Every row and sample once, in order, with the values it was given; parts and log agree, and nothing is left over."""
    table = pa.Table.from_batches(read_results(path), SCHEMA)
    expected = [
        (row, sample) for row in range(rows) for sample in range(SAMPLES) if (row, None) not in failing and (row, sample) not in failing
    ]
    assert list(zip(table["row"].to_pylist(), table["sample"].to_pylist(), strict=True)) == expected
    for line in table.to_pylist():
        made = record(line["row"], line["sample"])
        assert line["completion"] == made["completion"]
        assert line["input"] == made["input"]
        assert line["top_ids"] == made["top_ids"].tolist()
        assert line["logprobs"] == (None if made["logprobs"] is None else made["logprobs"].tolist())
    errors = [(line["row"], line["sample"]) for batch in read_errors(path) for line in batch.to_pylist()]
    assert errors == sorted((place for place in failing if place[0] < rows), key=str)
    log = read_commits(RunPaths(path))
    assert log.closing == {"complete": True, "rows": rows, "records": len(expected), "errors": len(errors)}
    for commit in log.commits.values():
        assert [(sha256(part), part.stat().st_size) for part, _ in commit.files(RunPaths(path))] == [
            (file.sha256, file.bytes) for _, file in commit.files(RunPaths(path))
        ]
    assert len(content(path)) == sum(1 + (commit.errors > 0) for commit in log.commits.values())
    assert list(path.glob("journal/*")) == []
    assert list(path.glob("**/*.tmp")) == []


def flip(file: Path, offset: int | None = None) -> None:
    """Flips a bit, in the middle where nothing else is said. The file's time is another one then, however coarse its clock."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if offset is None else offset] ^= 1
    found = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 10**9))


def died_at(step: int, session: Callable[[], object]) -> bool:
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


def kills(
    tmp_path: Path, prepare: Callable[[Path], object], session: Callable[[Path], object], *, least: int, stride: int = 1
) -> Generator[Path]:
    """A run directory for each point (or every ``stride``-th) at which the session can be killed, as the kill left it.

    There are at ``least`` so many points. A kill leaves what was written, synced or not: syncing is a point, and not done.
    """
    step = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        while True:
            path = tmp_path / f"run{step}"
            prepare(path)
            if not died_at(step, lambda path=path: session(path)):
                assert step > least
                return
            yield path
            step += stride

"""Tests file rights: files have the user's umask, and a place without write access gives one clear line."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import time_ns

import pytest
import yaml
from mlx_bulk.runner.files import hash_cache
from mlx_bulk.runner.runs.run_dir import RunDir

from ..jobs.support.bench import Bench

NOBODY = 65534
OPEN = """
import os, pathlib, sys
from mlx_bulk.configs.errors import BulkError
from mlx_bulk.runner.runs.run_dir import RunDir
if os.getuid() == 0 and sys.argv[2]:
    os.setuid(int(sys.argv[2]))
try:
    with RunDir.open(pathlib.Path(sys.argv[1])):
        print("0 opened")
except BulkError as error:
    print(error.exit_code, error)
"""
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3" "$4" ""'


@contextmanager
def umask(bits: int) -> Generator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def rights(*roots: Path) -> dict[str, int]:
    """The mode of every file and folder at and below the roots."""
    found = [path for root in roots for path in (root, *root.rglob("*"))]
    return {str(path): stat.S_IMODE(path.stat().st_mode) for path in found}


@pytest.mark.parametrize("bits", [0o027, 0o000])
def test_everything_that_a_run_makes_has_the_users_umask(bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch, bits: int):
    copy = Path(shutil.copytree(model, bench.root / "model"))
    monkeypatch.setattr(hash_cache, "REMEMBERED_BYTES", 0)
    monkeypatch.setattr(hash_cache, "time_ns", lambda: time_ns() + 3600 * 10**9)  # the model is not written just now
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.root / "cache"))
    rows = "".join(f'{{"q": "{text}"}}\n' for text in "abc") + "{\n"
    output = bench.root / "deep/run"
    options = ("--data", "-", "--model", str(copy), "--output", str(output), "--set", "batch.rows_per_shard=2")
    made = (bench.root / "deep", bench.root / "cache")
    with umask(bits):
        stopped = bench.run(*options, "--set", "on_error=fail", stdin=rows)
        assert stopped.code == 5
        found = rights(*made)
        (output / "sessions.jsonl").write_bytes(b"damaged\n")
        (output / "sessions.jsonl").chmod(0o666 & ~bits)
        assert bench.run(*options, stdin=rows).code == 3
        found |= rights(*made)
    names = {Path(name).name for name in found}
    assert {"run.json", "inputs.json", "summary.json", "stats.arrow", "commits.jsonl", "metrics.jsonl", "sessions.jsonl"} <= names
    assert {"sessions.jsonl.damaged", "stdin.jsonl", ".lock", "part-00000001.arrow", "sha256"} <= names
    assert {name: mode for name, mode in found.items() if mode != (0o777 if Path(name).is_dir() else 0o666) & ~bits} == {}


def test_a_sweep_has_the_users_umask(bench: Bench):
    base = yaml.safe_load(bench.write_config().read_text())
    del base["output"]
    path = bench.root / "sweep.yaml"
    sweep = {"job": "sweep", "base": base, "matrix": {"sampling.seed": [1]}, "output": {"path": str(bench.root / "out")}}
    path.write_text(yaml.safe_dump(sweep))
    with umask(0o027):
        assert bench.command(path, "--output", str(bench.root / "out")).code == 0
    found = rights(bench.root / "out")
    assert {name: mode for name, mode in found.items() if mode != (0o750 if Path(name).is_dir() else 0o640)} == {}


# ------------------------------------------------------------------------------------------------ what may not be written


@pytest.fixture
def place() -> Generator[Path]:
    """A folder that other users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def opened(run: Path) -> str:
    """Returns the message that a user who is not root gets for ``run``."""
    done = subprocess.run([sys.executable, "-c", OPEN, str(run), str(NOBODY)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def made(run: Path) -> Path:
    """A run directory that a user who is not root may use."""
    run.mkdir()
    run.chmod(0o777)
    assert opened(run) == "0 opened"
    return run


LOCKED: dict[str, Callable[[Path], None]] = {
    "": lambda run: run.chmod(0o555),
    "/results": lambda run: (run / "results").chmod(0o555),
    "/journal": lambda run: (run / "journal").chmod(0o555),
    "/.lock": lambda run: lock_file(run / ".lock"),
}


def lock_file(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(0o444)


@pytest.mark.parametrize("name", LOCKED)
def test_a_run_that_may_not_be_written_is_refused_at_its_start(place: Path, name: str):
    run = made(place / "run")
    LOCKED[name](run)
    said = opened(run)
    run.chmod(0o755)
    assert (
        said
        == f"5 {run}{name}: cannot be written (Permission denied). Give this user the right to write there, or choose another --output."
    )


def test_a_parent_that_may_not_be_written_is_refused(place: Path):
    place.chmod(0o555)
    said = opened(place / "deep/run")
    place.chmod(0o755)
    assert said.startswith(f"5 {place}/deep/run: cannot be used as an output folder ([Errno 13] Permission denied: '{place}/deep'")
    assert said.endswith("Choose another --output.")


@pytest.mark.parametrize("old", [False, True])
def test_a_read_only_volume_is_named_as_such(place: Path, old: bool):
    run = place / "run"
    if old:
        RunDir.open(run).close()
    command = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(place), sys.executable, OPEN, str(run)]
    if not shutil.which("unshare") or (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip("mounting needs user namespaces, which are not to be had here")
    assert done.stdout.startswith(f"6 {run}")
    assert done.stdout.endswith(": is on a read-only volume. Make it writable, or choose another --output.\n")

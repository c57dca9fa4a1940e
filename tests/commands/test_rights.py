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
from mlx_bulk.kernels import native
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
# Each run is opened by a child of one process: importing the package takes longer than all else here.
OPEN_EACH = f"""
import os, sys
import mlx_bulk.runner.runs.run_dir
for line in sys.stdin:
    sys.argv = ["", line.rstrip(), "{NOBODY}"]
    if (child := os.fork()) == 0:
        failed = True
        try:
            exec({OPEN!r})
            failed = False
        finally:
            sys.stdout.flush()
            os._exit(failed)
    if os.waitpid(child, 0)[1]:
        print("failed", flush=True)
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


@pytest.mark.parametrize("bits", [0o027, pytest.param(0o000, marks=pytest.mark.slow)])
def test_everything_that_a_run_makes_has_the_users_umask(bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch, bits: int):
    native.library()  # compiled in the cache that all tests share, whichever test is the first; its rights are the compiler's
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


Opened = Callable[[Path], str]


@pytest.fixture(scope="module")
def opened() -> Generator[Opened]:
    """Returns the message that a user who is not root gets for a run."""
    process = subprocess.Popen([sys.executable, "-c", OPEN_EACH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asked, said = process.stdin, process.stdout
    assert asked is not None
    assert said is not None

    def ask(run: Path) -> str:
        print(run, file=asked, flush=True)
        return said.readline().strip()

    with process:
        yield ask


def made(run: Path, opened: Opened) -> Path:
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
def test_a_run_that_may_not_be_written_is_refused_at_its_start(place: Path, opened: Opened, name: str):
    run = made(place / "run", opened)
    LOCKED[name](run)
    said = opened(run)
    run.chmod(0o755)
    assert (
        said
        == f"5 {run}{name}: cannot be written (Permission denied). Give this user the right to write there, or choose another --output."
    )


def test_a_parent_that_may_not_be_written_is_refused(place: Path, opened: Opened):
    place.chmod(0o555)
    said = opened(place / "deep/run")
    place.chmod(0o755)
    assert said.startswith(f"5 {place}/deep/run: cannot be used as an output folder ([Errno 13] Permission denied: '{place}/deep'")
    assert said.endswith("Choose another --output.")


@pytest.mark.parametrize("old", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_read_only_volume_is_named_as_such(place: Path, old: bool):
    run = place / "run"
    if old:
        RunDir.open(run).close()
    command = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(place), sys.executable, OPEN, str(run)]
    if not shutil.which("unshare") or (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip("mounting needs user namespaces, which are not to be had here")
    assert done.stdout.startswith(f"6 {run}")
    assert done.stdout.endswith(": is on a read-only volume. Make it writable, or choose another --output.\n")

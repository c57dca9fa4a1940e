"""Changes something in a finished run before its next start, and checks the refusal."""

import os
import shutil
from pathlib import Path

import pytest

from .bench import Bench, Done

WAYS_OUT = "Go back to what the run has, choose another --output, or start over with --overwrite"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The standard job, done with a copy of the model."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(model, folder / "model")
    assert Bench(folder, folder / "model").run().code == 0
    return folder


@pytest.fixture
def bench(tmp_path: Path, made: Path) -> Bench:
    """A bench with a finished run, and a model that a test may change in place."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return Bench(tmp_path, tmp_path / "model")


def kept(bench: Bench) -> dict[str, bytes]:
    """Returns the files of the run's results and of its identity."""
    paths = [bench.root / "run" / name for name in ("run.json", "commits.jsonl", "results/part-00000000.arrow")]
    return {path.name: path.read_bytes() for path in paths}


def refused(bench: Bench, done: Done, before: dict[str, bytes], *keys: str) -> list[str]:
    """Checks that a start is refused for changes of ``keys``, all of which can be adopted; returns the lines on the differences."""
    assert done.code == 4, done.stderr
    assert kept(bench) == before
    assert done.last_line.startswith(WAYS_OUT)
    assert done.last_line.endswith(" ".join(f"--adopt {key}" for key in keys) + " goes on.")
    lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("  ")]
    assert list(dict.fromkeys(line.partition(":")[0] for line in lines)) == list(keys)
    return lines


def rewritten(path: Path, content: bytes) -> None:
    """Replaces a file's contents; keeps its mtime and inode, and its size where possible."""
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def requantized(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    rewritten(path, bytes(content))

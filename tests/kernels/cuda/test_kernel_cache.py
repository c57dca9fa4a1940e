"""Tests how processes share the kernels that mlx compiles on CUDA. Files stand for kernels: no GPU is needed."""

import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_bulk.kernels.cuda import kernel_cache

# A process that compiles the kernels of its arguments, as mlx does: code, names, source, in the folder that mlx reads. Then it is killed.
CODE = """
import os, signal, sys
from pathlib import Path
from mlx_bulk.kernels.cuda import kernel_cache
kernel_cache.share(Path(sys.argv[1]))
own = Path(os.environ["MLX_PTX_CACHE_DIR"])
print(*sorted(path.relative_to(own).as_posix() for path in own.rglob("*.ptx")), flush=True)
for name in sys.argv[2:]:
    for suffix in (".ptx", ".txt", ".cu"):
        path = own / f"{name}{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{suffix} of {name}")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel_cache.VARIABLE, "")


def process(kept: Path, *compiled: str) -> list[str]:
    """The kernels that a process found; it leaves ``compiled``."""
    return subprocess.run([sys.executable, "-c", CODE, str(kept), *compiled], check=False, capture_output=True, text=True).stdout.split()


def ended() -> int:
    """The id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def folder_of(kept: Path, number: int, machine: str | None = None) -> Path:
    folder = kept / f"{kernel_cache.PROCESS}{machine or platform.node()} {number}"
    folder.mkdir(parents=True)
    return folder


def written(folder: Path, name: str, *suffixes: str) -> None:
    for suffix in suffixes:
        (folder / f"{name}{suffix}").write_text(f"{folder.name}'s")


def test_a_process_begins_with_the_kernels_of_those_before_though_they_were_killed(tmp_path: Path):
    kept = tmp_path / "kept"
    assert process(kept, "gather", "long/name") == []
    assert process(kept, "sort") == ["gather.ptx", "long/name.ptx"]
    assert process(kept) == ["gather.ptx", "long/name.ptx", "sort.ptx"]
    assert (kept / "long" / "name.ptx").read_text() == ".ptx of long/name"
    assert (kept / "long" / "name.txt").read_text() == ".txt of long/name"


def test_half_a_kernel_is_neither_kept_nor_taken(tmp_path: Path):
    written(folder_of(tmp_path, ended()), "without_source", ".ptx", ".txt")
    written(folder_of(tmp_path, ended()), "without_names", ".ptx")
    written(folder_of(tmp_path, ended()), "whole", ".ptx", ".txt", ".cu")
    written(tmp_path, "left_by_a_process_that_was_killed_meanwhile", ".txt")
    own = kernel_cache.share(tmp_path)
    assert own is not None
    assert sorted(path.name for path in own.iterdir()) == ["whole.ptx", "whole.txt"]


def test_kernels_of_living_processes_and_of_other_machines_are_left_to_them(tmp_path: Path):
    folders = [folder_of(tmp_path, os.getppid()), folder_of(tmp_path, ended(), machine="another")]
    for folder in folders:
        written(folder, "gather", ".ptx", ".txt", ".cu")
    own = kernel_cache.share(tmp_path)
    assert own is not None
    assert list(own.iterdir()) == []
    assert all((folder / "gather.ptx").exists() for folder in folders)


def test_a_kernel_that_is_kept_stays_as_it_is(tmp_path: Path):
    written(tmp_path, "gather", ".ptx", ".txt")
    first = (tmp_path / "gather.ptx").read_text()
    written(folder_of(tmp_path, ended()), "gather", ".ptx", ".txt", ".cu")
    kernel_cache.share(tmp_path)
    assert (tmp_path / "gather.ptx").read_text() == first


def test_only_the_first_process_says_that_kernels_are_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "mlx_bulk")
    kernel_cache.share(tmp_path)
    said = "mlx compiles its kernels for this GPU as they are needed, once: the first run takes a minute or more longer"
    assert [record.message for record in caplog.records] == [said]
    written(tmp_path, "gather", ".ptx", ".txt")
    kernel_cache.share(tmp_path)
    assert len(caplog.records) == 1


def test_a_child_does_not_write_to_its_parents_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parent = folder_of(tmp_path, os.getppid())
    monkeypatch.setenv(kernel_cache.VARIABLE, str(parent))
    own = kernel_cache.share(tmp_path)
    assert own not in (None, parent)
    assert os.environ[kernel_cache.VARIABLE] == str(own)


def test_a_folder_of_the_users_own_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / "own"))
    assert kernel_cache.share(tmp_path / "kept") is None
    assert not (tmp_path / "kept").exists()


def test_where_nothing_can_be_written_mlx_does_as_always(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "kept").write_text("a file where the folder should be")
    assert kernel_cache.share(tmp_path / "kept") is None
    assert os.environ[kernel_cache.VARIABLE] == ""
    assert "are not kept for the next run" in caplog.text

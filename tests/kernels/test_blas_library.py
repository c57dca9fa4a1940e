"""Tests which BLAS is passed over, and how many threads it gets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_bulk.kernels.cpu import blas_library

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system's own BLAS computes")
STARTS = "import os; os.environ['MLX_BULK_BLAS'] = 'off'; import mlx_bulk.kernels; del os.environ['MLX_BULK_BLAS']\n"
CHOOSES = "from mlx_bulk.kernels import backend; from mlx_bulk.kernels.cpu import blas_library; backend._blas = None\n"


def printed(code: str, folder: Path, **variables: str) -> list[str]:
    """What a new Python prints, in which no BLAS is open and nobody says how many threads it may have."""
    left_out = {*blas_library.VARIABLES, "OPENBLAS_CORETYPE", "MLX_BULK_CPU"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | variables
    environment |= {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(folder))}
    done = subprocess.run([sys.executable, "-c", STARTS + CHOOSES + code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@linux
@pytest.mark.parametrize(("variables", "found"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_a_blas_gets_no_more_threads_than_cores_may_be_used(tmp_path: Path, variables: dict[str, str], found: str):
    code = "blas_library.usable_cores = lambda: 1\nbackend.prepare(); print(backend.threads())"
    assert printed(code, tmp_path, **variables) == [found]


@linux
def test_a_blas_has_one_thread_while_our_kernels_multiply(tmp_path: Path):
    code = """
backend.prepare()
count = lambda: blas_library.blas_threads(backend._library)
with backend.one_blas_thread():
    print(count(), backend.threads())
print(count(), backend.threads())
"""
    assert printed(code, tmp_path, OPENBLAS_NUM_THREADS="2") == ["1", "2", "2", "2"]


def made(folder: Path, parallel: int, core: str) -> Path:
    """A library that tells of itself what an OpenBLAS does."""
    source, library = folder / "told.c", folder / "libtold.so"
    source.write_text(
        f"int openblas_get_parallel(void) {{ return {parallel}; }}\n"
        "int openblas_get_num_threads(void) { return 1; }\n"
        f'const char *openblas_get_corename(void) {{ return "{core}"; }}\n'
    )
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@linux
@pytest.mark.skipif(shutil.which("g++") is None, reason="it makes a library")
@pytest.mark.parametrize(
    ("parallel", "core", "setting", "better", "taken"),
    [
        (1, "Haswell", "", True, True),
        (0, "Haswell", "blas_library.usable_cores = lambda: 4", True, False),  # built without threads
        (0, "Haswell", "blas_library.usable_cores = lambda: 1", True, True),
        (0, "Haswell", "blas_library.usable_cores = lambda: 4", False, True),  # better than the one inside mlx
        (1, "Prescott", "blas_library._has_avx2 = lambda: True", True, False),  # too old for the processor
        (1, "Prescott", "blas_library._has_avx2 = lambda: False", True, True),
    ],
)
def test_a_slow_blas_is_passed_over_for_a_better_one(tmp_path: Path, parallel: int, core: str, setting: str, better: bool, taken: bool):
    library = str(made(tmp_path, parallel, core))
    without = "" if better else "backend.open_adapted = lambda folder: None"
    code = f"{setting}\n{without}\nbackend.OPENBLAS, backend.MKL = ({library!r},), ()\nprint(backend.prepare().library == {library!r})"
    assert printed(code, tmp_path) == [str(taken)]


@linux
@pytest.mark.skipif(shutil.which("g++") is None, reason="it makes a library")
def test_a_blas_that_is_asked_for_is_taken(tmp_path: Path):
    library = str(made(tmp_path, 0, "Prescott"))
    asked = f"os.environ['MLX_BULK_BLAS'] = {library!r}; print(backend.prepare().library == {library!r})"
    assert printed(asked, tmp_path) == ["True"]

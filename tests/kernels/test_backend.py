"""Tests that the fast BLAS goes in before mlx, or a line says why not. Each case has its own interpreter."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mlx_bulk.kernels import backend

LINUX_CPU = sys.platform == "linux" and not any(backend._installed(f"mlx-cuda{tail}") for tail in ("", "-12", "-13"))  # pyright: ignore[reportPrivateUsage]
linux_cpu = pytest.mark.skipif(not LINUX_CPU, reason="macOS and CUDA bring their own BLAS")


def python(code: str, folder: Path, **env: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in ("MLX_BULK_BLAS", "ARROW_DEFAULT_MEMORY_POOL")}
    return subprocess.run([sys.executable, "-c", code], env=kept | env, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_importing_kernels_chooses_the_blas_and_leaves_mlx_for_later(tmp_path: Path):
    code = "import sys, mlx_bulk.kernels.backend as b; print('mlx.core' in sys.modules, b._blas is not None)"
    assert python(code, tmp_path).split() == ["False", "True"]


@linux_cpu
def test_the_blas_can_be_turned_off(tmp_path: Path):
    out = python("from mlx_bulk.kernels import backend; print(backend.prepare())", tmp_path, MLX_BULK_BLAS="off")
    assert "MLX_BULK_BLAS=off" in out


@linux_cpu
def test_a_library_that_cannot_be_opened_is_named(tmp_path: Path):
    (tmp_path / "libwrong.so").write_text("not a library")
    out = python("from mlx_bulk.kernels import backend; print(backend.prepare())", tmp_path, MLX_BULK_BLAS=str(tmp_path / "libwrong.so"))
    assert "libwrong.so cannot be opened" in out
    assert "slow one" in out


@linux_cpu
def test_arrow_takes_its_memory_where_freed_buffers_are_kept(tmp_path: Path):
    code = "import mlx_bulk.kernels, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    assert python(code, tmp_path).split() == ["system"]
    assert python(code, tmp_path, ARROW_DEFAULT_MEMORY_POOL="mimalloc").split() == ["mimalloc"]


@linux_cpu
def test_mlx_loaded_before_us_gives_a_warning(tmp_path: Path):
    code = "import mlx.core, mlx_bulk.jobs; from mlx_bulk.kernels import backend; backend.prepare(); print(backend.prepare())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "put `import mlx_bulk` above all that imports mlx" in done.stdout
    assert done.stderr.count("mlx was imported first, so that its own BLAS computes") == 1


@linux_cpu
def test_who_takes_the_folder_for_hugging_faces_package_hears_nothing(tmp_path: Path):
    root = Path(__file__).parents[2]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import mlx_bulk.kernels, mlx.core, kernels; print(kernels.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(root / "kernels" / "__init__.py"), "")


@linux_cpu
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process has all cores")
def test_a_process_among_others_multiplies_in_one_thread():
    """Two processes with two threads each wait for one another: the tests would take a third longer."""
    assert backend.threads() == int(os.environ["OPENBLAS_NUM_THREADS"])


@linux_cpu
def test_this_session_has_the_fast_blas_where_there_is_one(tmp_path: Path):
    """The reference BLAS hides bits that depend on shapes: numerical tests that run on it prove less."""
    alone = python("from mlx_bulk.kernels import backend; print(backend.prepare().library)", tmp_path)
    assert str(backend.prepare().library) == alone.strip()


@linux_cpu
@pytest.mark.skipif(backend.prepare().library is None or backend.prepare().origin is not None, reason="the system has no fast BLAS")
def test_the_opened_library_is_the_one_that_multiplies(tmp_path: Path):
    """Opened globally before mlx, its sgemm is found first; the product is right."""
    code = """
import ctypes
from mlx_bulk.kernels import backend
mx = backend.load_mlx()
mine = ctypes.CDLL(backend.prepare().library)
address = lambda library: ctypes.cast(library.cblas_sgemm, ctypes.c_void_p).value
print(address(ctypes.CDLL(None)) == address(mine), float(mx.abs(mx.ones((64, 48)) @ mx.full((48, 32), 2.0) - 96).max()))
"""
    assert python(code, tmp_path).split() == ["True", "0.0"]


@linux_cpu
def test_mlx_multiplies_with_numpys_openblas_where_the_system_has_none(tmp_path: Path):
    """The product of each type that mlx knows is right, and mlx finds the adapter's functions first."""
    code = """
import ctypes
from mlx_bulk.kernels import backend
backend.OPENBLAS, backend.MKL, backend._blas = (), (), None
blas = backend._choose()
mx = backend.load_mlx()
address = lambda name: ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
others = [float(mx.abs(mx.ones((6, 4), t) @ mx.full((4, 3), 2, t) - 8).max().item().real) for t in (mx.float32, mx.complex64)]
with mx.stream(mx.cpu):
    double = (mx.ones((6, 4), mx.float64) @ mx.full((4, 3), 2, mx.float64)).sum().item()
print(str(blas).startswith("NumPy's OpenBLAS ("), blas.library.split("/")[-2], backend.threads(), others, double)
"""
    # MLX_BULK_BLAS=off: importing the package must not open the system's first.
    off = "import os; os.environ['MLX_BULK_BLAS'] = 'off'; import mlx_bulk.kernels; del os.environ['MLX_BULK_BLAS']\n"
    out = python(off + code, tmp_path, OPENBLAS_NUM_THREADS="2")
    assert out.split(maxsplit=3) == ["True", "numpy.libs", "2", "[0.0, 0.0] 144.0\n"]


@linux_cpu
def test_numpys_openblas_can_be_asked_for(tmp_path: Path):
    out = python("from mlx_bulk.kernels import backend; print(backend.prepare())", tmp_path, MLX_BULK_BLAS="numpy")
    assert out.startswith("NumPy's OpenBLAS (")


@linux_cpu
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the core types are of x86-64")
@pytest.mark.parametrize("blas", ["numpy", "off"])
def test_a_blas_of_another_core_type_is_another_build(tmp_path: Path, blas: str):
    """With "off", and without g++, NumPy multiplies: its OpenBLAS decides the bits, so that a run must not go on with another."""
    code = "from mlx_bulk.kernels import backend; print(backend.product_build())"
    haswell, prescott = (python(code, tmp_path, MLX_BULK_BLAS=blas, OPENBLAS_CORETYPE=core) for core in ("Haswell", "Prescott"))
    assert haswell != prescott
    assert "OpenBLAS 0." in haswell


@linux_cpu
@pytest.mark.parametrize(
    ("hidden", "named"),
    [
        ("wheel_library", "as NumPy's wheel is not here, for the few products that our kernels do not compute"),
        ("g++", "as g++ is not here, for the few products that NumPy does not compute"),
    ],
)
def test_with_a_part_of_the_blas_missing_the_slow_one_is_used_with_a_line(tmp_path: Path, hidden: str, named: str):
    hide = "from mlx_bulk.kernels.cpu import numpy_blas; numpy_blas.wheel_library = lambda: None\n" if hidden == "wheel_library" else ""
    start = "import os; os.environ['MLX_BULK_BLAS'] = 'off'; import mlx_bulk.kernels; del os.environ['MLX_BULK_BLAS']\n"
    code = "from mlx_bulk.kernels import backend; backend.OPENBLAS, backend.MKL, backend._blas = (), (), None; print(backend.prepare())"
    out = python(start + hide + code, tmp_path, **({} if hide else {"PATH": str(tmp_path)}))
    assert out.startswith("the slow one inside mlx, ")
    assert named in out
    assert "apt install libopenblas0-pthread" in out


def test_two_builds_of_mlx_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "_installed", lambda name: name in ("mlx-cpu", "mlx-cuda-12"))
    with pytest.raises(backend.BackendError, match=r"both mlx-cpu and mlx-cuda-12 .* pip uninstall"):
        backend.load_mlx()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_only_linux_needs_a_blas(monkeypatch: pytest.MonkeyPatch, platform: str):
    monkeypatch.setattr(sys, "platform", platform)
    assert backend._choose() == backend.Blas(None)  # pyright: ignore[reportPrivateUsage]
    assert str(backend.Blas(None)) == "the system's own"


def test_a_blas_reads_as_its_file_and_core():
    assert str(backend.Blas("/usr/lib/libopenblas.so.0", "Haswell")) == "libopenblas.so.0 (Haswell)"
    assert str(backend.Blas("/x/libmkl_rt.so.3")) == "libmkl_rt.so.3"


def test_memory_lies_within_the_machines():
    assert backend.device_name() in ("metal", "cuda", "cpu")
    assert backend.memory_bytes() > 1 << 28
    if backend.device_name() == "cpu":
        assert backend.memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_matrix_products_are_right_with_the_blas_in_place():
    mx = backend.load_mlx()
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(70, 130)).astype(np.float32), rng.normal(size=(130, 50)).astype(np.float32)
    # sums of 130 float32 products of size 1
    np.testing.assert_allclose(np.array(mx.array(a) @ mx.array(b)), a.astype(np.float64) @ b, rtol=0, atol=1e-4)

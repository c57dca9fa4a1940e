"""``MLX_BULK_CPU`` limits the kernels and the BLAS; each case in an interpreter of its own."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_bulk.kernels import backend
from mlx_bulk.kernels.cpu import vector_units

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one kind of units")
CODE = """
from mlx_bulk.kernels import backend, native
backend.load_mlx()
print(backend.prepare().core, native.name(), native.tiles(), sep="\\n")
"""


def python(code: str, folder: Path, **env: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLX_BULK_", "OPENBLAS_CORETYPE"))}
    return subprocess.run([sys.executable, "-c", code], env=kept | env, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow  # the kernels are compiled once more
@x86
@pytest.mark.skipif(sys.platform != "linux" or not backend.compiles(), reason="the kernels are compiled with g++")
def test_avx2_limits_kernels_and_blas(tmp_path: Path):
    core, name, tiles = python(CODE, tmp_path, MLX_BULK_CPU="avx2", MLX_BULK_BLAS="numpy").splitlines()
    assert core == "Haswell"
    assert tiles == "False"
    assert name.endswith(" for avx2")
    all_units, *_ = python(CODE.replace("backend.prepare().core, ", ""), tmp_path).splitlines()
    assert name != all_units  # so that records of one are not taken for the other's


# Up to 4 rows are added in another order than more of them.
ROWS_CODE = """
import numpy as np
from mlx_bulk.kernels import backend
mx = backend.load_mlx()
from mlx_bulk.kernels import linear
rng, found = np.random.default_rng(0), set()
for depth in (17, 64, 2049):
    for columns in (1, 7, 17, 47, 100, 257):
        x, weight = (mx.array(rng.normal(0, 1, (n, depth)).astype(np.float32)) for n in (200, columns))
        for biased in (None, mx.ones(columns)):
            one, many = (linear.on_cpu(x[:n], weight, biased) for n in (1, 200))
            for rows in (2, 3, 4, 5, 8, 13, 191, 193):
                whole, kept = (many, rows) if rows > 4 else (one, 1)
                if not mx.array_equal(linear.on_cpu(x[:rows], weight, biased)[:kept], whole[:kept]):
                    found.add((rows, depth, columns))
print(len(found), sorted(found)[:3])
"""


@x86
@pytest.mark.cpu_path("the rows are those of the CPU's products")
@pytest.mark.skipif(sys.platform != "linux" or not backend.compiles(), reason="the kernels are compiled with g++")
@pytest.mark.parametrize("units", [pytest.param("avx2", marks=pytest.mark.slow), ""])
def test_a_rows_bits_do_not_depend_on_the_number_of_rows(tmp_path: Path, units: str):
    """For some processors g++ rounds a product before it adds it, in one instance of a template and not in another."""
    assert python(ROWS_CODE, tmp_path, MLX_BULK_CPU=units) == "0 []\n"


@x86
@pytest.mark.parametrize("units", ["avx2", "avx512"])
def test_the_compiler_leaves_out_what_is_wider(units: str):
    wider = {"avx2": ["__AVX512F__", "__AMX_BF16__"], "avx512": ["__AMX_BF16__"]}[units]
    options = ["-march=sapphirerapids", *vector_units.UNITS[units].options]
    if not backend.compiles():
        pytest.skip("no g++")
    macros = subprocess.run(["g++", *options, "-dM", "-E", "-x", "c++", os.devnull], check=True, capture_output=True, text=True).stdout
    assert "__AVX2__" in macros
    assert not [name for name in wider if name in macros]


@x86
def test_a_variable_of_the_blas_that_is_set_wins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Zen")
    monkeypatch.setenv("MLX_BULK_CPU", "avx2")
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
    vector_units.limit_blas()
    assert (os.environ["OPENBLAS_CORETYPE"], os.environ["MKL_ENABLE_INSTRUCTIONS"]) == ("Zen", "SSE4_2")


@x86
def test_a_wrong_name_is_refused_with_the_right_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLX_BULK_CPU", "sse")
    with pytest.raises(backend.BackendError, match="MLX_BULK_CPU=sse: expected avx2, avx512, amx or generic; unset it"):
        backend.load_mlx()


def described(folder: Path, flags: str | None) -> Path:
    """Writes what Linux says of a processor with these flags; None where it says nothing."""
    cpuinfo = folder / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu {flags} sse\n")
    return cpuinfo


@pytest.mark.parametrize(
    ("flags", "wish", "widest"),
    [
        ("avx2 avx512f", "amx", "avx512"),
        ("avx2", "avx512", "avx2"),
        ("avx2 avx512f", "avx2", None),
        ("avx2 avx512f", "", None),
        ("avx2", "generic", None),
        (None, "amx", None),
    ],
)
def test_units_that_the_processor_lacks_are_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str | None, wish: str, widest: str | None
):
    monkeypatch.setattr(vector_units, "CPU_INFO", described(tmp_path, flags))
    monkeypatch.setenv("MLX_BULK_CPU", wish)
    told = f"MLX_BULK_CPU={wish}: this processor has no such units; the kernels and the BLAS use the widest that it has, {widest}"
    assert vector_units.lacking() == (told if widest else None)


@pytest.mark.parametrize(
    ("flags", "wish", "units"),
    [
        ("avx2 avx512f amx_bf16", None, "amx"),
        ("avx2 avx512f amx_bf16", "avx512", "avx512"),
        ("avx2 avx512f", "amx", "avx512"),
        ("avx2", None, "avx2"),
        ("sse2", None, ""),
        (None, "avx2", ""),
    ],
)
def test_the_widest_units_allowed_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str | None, wish: str | None, units: str
):
    monkeypatch.setattr(vector_units, "CPU_INFO", described(tmp_path, flags))
    monkeypatch.delenv("MLX_BULK_CPU", raising=False)
    if wish is not None:
        monkeypatch.setenv("MLX_BULK_CPU", wish)
    assert vector_units.units_in_use() == units


def test_other_processors_get_no_option_of_x86(monkeypatch: pytest.MonkeyPatch):
    """g++ for aarch64 refuses them, and nothing would be compiled."""
    monkeypatch.setattr(vector_units.platform, "machine", lambda: "aarch64")
    monkeypatch.setenv("MLX_BULK_CPU", "avx2")
    options = vector_units.compiler_options()
    assert options
    assert all(option.startswith("--param=") for option in options)


def test_a_run_can_say_what_the_variable_asks_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "device_name", lambda: "cpu")
    monkeypatch.delenv("MLX_BULK_CPU", raising=False)
    assert backend.cpu_wish() == ""
    monkeypatch.setenv("MLX_BULK_CPU", "generic")
    assert backend.cpu_wish() == "MLX_BULK_CPU=generic"
    monkeypatch.setattr(backend, "device_name", lambda: "metal")
    assert backend.cpu_wish() == ""
    monkeypatch.setattr(backend, "device_name", lambda: "cpu")
    monkeypatch.setenv("MLX_BULK_CPU", "avx2")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")  # which has no such units
    assert backend.cpu_wish() == ""


GENERIC_CODE = """
from mlx_bulk.kernels import backend
backend.load_mlx()
from mlx_bulk.kernels import native
print(backend.device_name(), backend.on_cpu_path(), native.library(), native.name())
"""


@pytest.mark.skipif(backend.device_name() != "cpu", reason="other devices have no other path")
def test_the_generic_path_uses_none_of_our_kernels(tmp_path: Path):
    assert python(GENERIC_CODE, tmp_path, MLX_BULK_CPU="generic") == "cpu False None generic\n"

"""Lets mlx multiply with the OpenBLAS inside NumPy's wheel, which every installation has. Does not import NumPy.

NumPy's functions have names of their own and sizes of 64 bits. A small library (``csrc/blas_adapter.cpp``) calls them under the names that
mlx looks for. It must be opened before mlx.
"""

import ctypes
import logging
import subprocess
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from .compilation import Build, compiler_message, shared_library

log = logging.getLogger("mlx_bulk")

ADAPTER = Path(__file__).parents[1] / "csrc" / "blas_adapter.cpp"
COMMAND = ("g++", "-O2", "-std=c++17", "-shared", "-fPIC")
FUNCTIONS = tuple(f"scipy_cblas_{kind}gemm64_" for kind in "sdc")


def wheel_library() -> Path | None:
    """Returns the OpenBLAS of NumPy's wheel; None where NumPy comes from elsewhere, as from conda."""
    spec = find_spec("numpy")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.with_name("numpy.libs").glob("libscipy_openblas64_*.so"))), None)


def open_adapted(folder: Path) -> tuple[Path, ctypes.CDLL] | None:
    """Opens NumPy's OpenBLAS, and globally the adapter, which ``folder`` keeps compiled. Returns the first with its path.

    Returns None where a piece is missing: NumPy's wheel, or a compiler.
    """
    if (path := wheel_library()) is None:
        return None
    try:
        blas = ctypes.CDLL(str(path))
        functions = [ctypes.cast(getattr(blas, name), ctypes.c_void_p) for name in FUNCTIONS]
        with ExitStack() as opening:
            adapter = ctypes.CDLL(str(shared_library(Build({ADAPTER: ()}, (), COMMAND), folder, opening)), mode=ctypes.RTLD_GLOBAL)
    except (OSError, AttributeError, subprocess.CalledProcessError) as error:
        said = compiler_message(error) if not isinstance(error, AttributeError) else str(error)
        log.debug("NumPy's OpenBLAS cannot serve mlx: %s", said)
        return None
    adapter.adapt(*functions)
    return path, blas

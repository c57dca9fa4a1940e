"""What an opened BLAS tells of itself, and how many threads it may have."""

import ctypes
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from .cores import usable_cores

VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")  # with which a user says how many
_COUNTS = ("openblas_get_num_threads", "scipy_openblas_get_num_threads64_", "MKL_Get_Max_Threads")
_SETS = ("openblas_set_num_threads", "scipy_openblas_set_num_threads64_", "MKL_Set_Num_Threads")
_SEQUENTIAL = 0  # what openblas_get_parallel returns for a library that was built without threads
_BEFORE_AVX2 = {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", "Atom", "Opteron", "Opteron_SSE3", "Barcelona", "Nano", "Generic"}


def core_of(library: ctypes.CDLL) -> str | None:
    """Returns the core type whose kernels an OpenBLAS runs; None for other libraries."""
    return _told(library, "corename")


def config_of(library: ctypes.CDLL | None) -> str | None:
    """Returns version and options of an OpenBLAS; None for other libraries, and for none."""
    return None if library is None else _told(library, "config")


def blas_threads(library: ctypes.CDLL | None) -> int | None:
    """Returns how many threads a BLAS has; None for one that does not tell. library: None for whatever this process has opened."""
    return _call(_COUNTS, library or ctypes.CDLL(None))


def limit_threads(library: ctypes.CDLL) -> None:
    """Leaves a BLAS no more threads than cores may be used, unless the user says how many.

    It has one for each core that it sees: with ``docker run --cpus=2`` on 64 cores, 64 threads would wait for one another's turns.
    """
    cores = usable_cores()
    if not any(name in os.environ for name in VARIABLES) and (blas_threads(library) or 0) > cores:
        _call(_SETS, library, cores)


def set_threads(library: ctypes.CDLL, count: int) -> None:
    """Sets how many threads a BLAS has."""
    _call(_SETS, library, count)


def why_slow(library: ctypes.CDLL) -> str | None:
    """Tells why an OpenBLAS is slower than that of NumPy's wheel would be; None where nothing speaks for it.

    One without threads (Debian's libopenblas0-serial) would also leave our kernels one thread. One that is older than the processor may
    not know it, and runs the kernels of one of twenty years ago.
    """
    if _call(("openblas_get_parallel",), library) == _SEQUENTIAL and usable_cores() > 1:
        return "it was built without threads"
    core = core_of(library)
    if core in _BEFORE_AVX2 and "OPENBLAS_CORETYPE" not in os.environ and _has_avx2():
        return f"it is too old to know this processor, and takes it for one of the type {core}"
    return None


def _has_avx2() -> bool:
    with suppress(OSError):
        return platform.machine() == "x86_64" and " avx2 " in Path("/proc/cpuinfo").read_text()
    return False


def _told(library: ctypes.CDLL, what: str) -> str | None:
    for name in (f"openblas_get_{what}", f"scipy_openblas_get_{what}64_"):
        with suppress(AttributeError):
            function = getattr(library, name)
            function.restype = ctypes.c_char_p
            return function().decode()
    return None


def _call(names: tuple[str, ...], library: ctypes.CDLL, *arguments: int) -> int | None:
    """Calls the first of some functions that a library has; returns None where it has none."""
    function = _function(names, library)
    return None if function is None else int(function(*arguments) or 0)


@cache
def _function(names: tuple[str, ...], library: ctypes.CDLL) -> Callable[..., int | None] | None:
    """Returns the first of some functions that a library has, once: each decode step asks for two, and it takes long to miss a name."""
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)

"""Finds out which device computes, and makes it fast: a BLAS opened before mlx, the allocator, a compiler.

On Linux without CUDA the mlx wheel carries a reference BLAS some 35 times slower than OpenBLAS or MKL. Symbols of a
library opened globally before mlx win over the wheel's own, so ``prepare`` must run before ``import mlx.core``. It opens
the system's OpenBLAS or MKL, else the OpenBLAS inside NumPy's wheel. On macOS and CUDA it does nothing. Knows no models.
"""

import ctypes
import logging
import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from .cpu.blas_library import blas_threads, config_of, core_of, limit_threads, set_threads, why_slow
from .cpu.cores import usable_cores
from .cpu.numpy_blas import open_adapted, wheel_library
from .cpu.vector_units import VARIABLE, UnknownUnits, compiler_options, generic, heeds, limit_blas
from .cuda import kernel_cache

log = logging.getLogger("mlx_bulk")

OPENBLAS = ("libopenblas.so.0", "libopenblas.so", "libopenblaso.so.0", "libopenblasp.so.0")
MKL = ("libmkl_rt.so.3", "libmkl_rt.so.2")
NUMPY = "numpy"  # a value of MLX_BULK_BLAS
KEEP_BYTES = 32 << 20  # glibc's upper limit for M_MMAP_THRESHOLD: larger buffers go back to the kernel each time


class BackendError(RuntimeError):
    """mlx is missing, or installed in two builds that write the same library; or ``MLX_BULK_CPU`` names no units."""


@dataclass(slots=True, frozen=True)
class Blas:
    """The library that multiplies matrices on a Linux CPU. ``core``: OpenBLAS's core type; ``note`` tells the user what to do.

    ``origin``: who brought the library, where it is not the system.
    """

    library: str | None
    core: str | None = None
    note: str | None = None
    origin: str | None = None

    @property
    def slow(self) -> bool:
        """True where mlx multiplies with the reference BLAS of its wheel."""
        return self.library is None and self.note is not None

    def __str__(self) -> str:
        if self.library is None:
            return self.note or "the system's own"
        core = f" ({self.core})" if self.core else ""
        return f"{self.origin or Path(self.library).name}{core}" + (f"; {self.note}" if self.note else "")


_blas: Blas | None = None
_library: ctypes.CDLL | None = None  # the BLAS, while it is ours to ask
_threads: int | None = None  # of products, once someone has asked


def prepare() -> Blas:
    """Opens the fast BLAS once and returns it, also in later calls. ``MLX_BULK_BLAS`` is ``off``, ``numpy`` or a library's path."""
    global _blas
    if _blas is None:
        _blas = _choose()
    return _blas


def _choose() -> Blas:
    global _library
    os.environ.setdefault("MLX_ENABLE_TF32", "0")  # on CUDA float32 means float32, unless the user says otherwise
    os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")  # scoring was a fifth faster without on an H200
    if sys.platform != "linux" or _installed("mlx-cuda-12") or _installed("mlx-cuda-13") or _installed("mlx-cuda"):
        return Blas(None)
    wish = os.environ.get("MLX_BULK_BLAS", "")
    if wish == "off":
        return Blas(None, note="the slow one inside mlx, as MLX_BULK_BLAS=off asks")
    if "mlx.core" in sys.modules:
        cure = "put `import mlx_bulk` above all that imports mlx"
        log.warning("mlx was imported first, so that its own BLAS computes, some 35 times slower in matrix products: %s", cure)
        return Blas(None, note=f"the slow one inside mlx, which was imported before mlx_bulk: {cure}")
    _keep_buffers()
    limit_blas()
    slow: list[str] = []  # that are there, for want of a better one
    for name in [] if wish == NUMPY else [wish] if wish else [*OPENBLAS, *_mkl_paths(), *MKL]:
        try:
            if not wish and (why := why_slow(ctypes.CDLL(name))) is not None:
                log.debug("%s is passed over: %s", name, why)
                slow.append(name)
                continue
            return _opened(name)
        except OSError as error:
            if wish:
                return Blas(None, note=f"MLX_BULK_BLAS={wish} cannot be opened ({error}); the slow one inside mlx is used")
    if (found := open_adapted(cache_folder("kernels"))) is not None:
        path, _library = found
        limit_threads(_library)
        return Blas(str(path), core_of(_library), origin="NumPy's OpenBLAS")
    if slow:
        return _opened(slow[0])
    missing = "g++" if not compiles() else "NumPy's wheel"
    who = "NumPy does" if missing == "g++" else "our kernels do"
    cure = "`apt install libopenblas0-pthread`, `pip install 'mlx-bulk[mkl]'`, or g++ with NumPy from PyPI"
    return Blas(None, note=f"the slow one inside mlx, as {missing} is not here, for the few products that {who} not compute; {cure} helps")


def _opened(name: str) -> Blas:
    """Opens a library of the system, so that mlx finds its functions first. Raises OSError."""
    global _library
    _library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    limit_threads(_library)
    return Blas(name, core_of(_library))


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _mkl_paths() -> list[str]:
    """Lists the libraries of ``pip install mkl``: they are below the environment's prefix, not in site-packages."""
    return [str(path) for name in MKL if (path := Path(sys.prefix) / "lib" / name).is_file()]


def threads() -> int:
    """Counts the threads of matrix products: as many as the BLAS was set to when it was first asked, else one for each usable core."""
    global _threads
    _threads = _threads or blas_threads(_library) or usable_cores()
    return _threads


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Leaves the BLAS one thread within this block: after a product its others wait awake, and take the cores of our kernels."""
    if _library is None:
        yield
        return
    count = threads()
    set_threads(_library, 1)
    try:
        yield
    finally:
        set_threads(_library, count)


def product_build() -> str:
    """Names all that decides the bits of a BLAS's products but the threads: who multiplies, the version, the core type.

    Where mlx has only its own slow BLAS, NumPy may multiply (``linear.py``), so it is named too.
    """
    blas = prepare()
    if not blas.slow:
        return "; ".join(part for part in (str(blas), config_of(_library)) if part)
    path = wheel_library()
    own = "the slow one inside mlx", f"NumPy {distribution('numpy').version}", config_of(None if path is None else ctypes.CDLL(str(path)))
    return "; ".join(part for part in own if part)


def cache_folder(kind: str) -> Path:
    """Returns the folder for one ``kind`` of files in the user's cache; a relative path where the user has no home."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with suppress(RuntimeError):  # a user without a home: the folder ~ is not made, so nothing is remembered
        root = root.expanduser()
    return root / "mlx-bulk" / kind


def _keep_buffers() -> None:
    """Tells glibc to keep freed buffers: page clearing was 8 to 14 % of a scoring run. Arrow takes its memory there too.

    Arrow's own allocator keeps what each thread has freed apart, and that grew with a run's parts.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl has no such function, and no need of it
        return
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
    mallopt(m_mmap_threshold, KEEP_BYTES)
    mallopt(m_trim_threshold, (1 << 31) - 1)
    mallopt(m_top_pad, 256 << 20)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read when pyarrow is imported


def load_mlx() -> Any:
    """Imports mlx with everything in place.

    Raises ``BackendError`` where mlx is missing, where its CPU and CUDA builds lie over each other, or where ``MLX_BULK_CPU`` is wrong.
    """
    prepare()
    try:
        compiler_options()
    except UnknownUnits as error:
        raise BackendError(str(error)) from error
    cuda = [n for n in ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda") if _installed(n)]
    if cuda and _installed("mlx-cpu"):
        both = f"both mlx-cpu and {cuda[0]} are installed and overwrite each other's library"
        raise BackendError(f"{both}; pip uninstall them, then install the one you want again")
    try:
        import mlx.core as mx
    except ImportError as error:
        extra = "" if sys.platform == "darwin" else "[cpu]' (or 'mlx-bulk[cuda13]"
        raise BackendError(f"mlx is not usable here ({error}); pip install 'mlx-bulk{extra}'") from error
    if device_name() == "metal":
        mx.set_wired_limit(memory_bytes())  # weights and caches stay resident
    if device_name() == "cuda":
        _keep_cuda_kernels(f"{distribution('mlx').version}-{mx.device_info().get('architecture', 'any')}")
    if device_name() == "cpu" and not compiles():
        mx.disable_compile()
    return mx


@cache
def _keep_cuda_kernels(kind: str) -> None:
    kernel_cache.share(cache_folder("cuda").absolute() / kind)


def compiles() -> bool:
    """Returns True when mlx can compile fused kernels for the CPU, which takes g++."""
    return shutil.which("g++") is not None


def device_name() -> str:
    """Returns ``metal``, ``cuda`` or ``cpu``: where arrays live by default."""
    import mlx.core as mx

    if mx.default_device().type == mx.DeviceType.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def on_cpu_path() -> bool:
    """Returns True where our own kernels and NumPy compute what mlx's operations do elsewhere: on a CPU, unless it shall be generic.

    On the generic path (Metal, CUDA, and a CPU with ``MLX_BULK_CPU=generic``) arrays stay lazy, and decoding runs one step ahead.
    """
    return device_name() == "cpu" and not generic()


def cpu_wish() -> str:
    """Returns ``MLX_BULK_CPU`` and its value where this device heeds it; else an empty text."""
    wish = os.environ.get(VARIABLE)
    heeded = wish and device_name() == "cpu" and heeds(wish)
    return f"{VARIABLE}={wish}" if heeded else ""


def memory_bytes() -> int:
    """Counts the bytes of memory for weights, KV caches and workspace: the GPU's, or the machine's within its cgroup."""
    import mlx.core as mx

    if device_name() != "cpu":
        info = mx.device_info()
        sizes = [info.get(name) for name in ("max_recommended_working_set_size", "total_memory", "memory_size")]
        if known := [size for size in sizes if isinstance(size, int) and size > 0]:
            return known[0]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
    return total

"""Compiles the C++ of ``csrc/`` once for this machine's processor, keeps it in the user's cache, and calls it on arrays.

``library`` returns None where it cannot serve: on other devices, without g++. Knows nothing of what is computed.
"""

import copy
import ctypes
import logging
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import backend
from .cpu.compilation import Build, build_key, compiler_message, processor_key, shared_library
from .cpu.vector_units import GENERIC, compiler_options, generic, lacking, units_in_use
from .cuda import attention as cuda_attention

log = logging.getLogger("mlx_bulk")

SOURCES = Path(__file__).with_name("csrc")
HEADERS = sorted(SOURCES.glob("*.h"))  # what the units include
# Of g++'s -O3 units get the vectors alone: the rest makes nothing of them faster, and compiling takes twice as long. The loops of
# products.cpp are written out as they are to be.
VECTORS = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic")
UNITS = {  # those that take longest come first
    SOURCES / f"{name}.cpp": options
    for name, options in {
        "attention": VECTORS,
        "products": ("-O2",),
        "encoder_block": VECTORS,
        "sampling": VECTORS,
        "library": VECTORS,
        "elementwise": VECTORS,
        "recurrent": VECTORS,
        "thread_pool": VECTORS,
    }.items()
}
# No fast math: NaN and infinities keep their meaning, and sums their order.
COMMAND = ("g++", "-march=native", "-std=c++17", "-fno-math-errno", "-shared", "-fPIC", "-pthread")

_ARRAY, _MAYBE, _FLOAT, _INT = ctypes.py_object, ctypes.c_void_p, ctypes.c_float, ctypes.c_int
_ENTRIES: dict[str, list[Any]] = {
    "linear": [_ARRAY, _ARRAY, _MAYBE, _ARRAY, _MAYBE],
    "quantized_linear": [*[_ARRAY] * 4, _MAYBE, _ARRAY, _INT],
    "grouped": [_ARRAY, _ARRAY, _MAYBE, *[_ARRAY] * 4, _MAYBE],
    "quantized_grouped": [*[_ARRAY] * 4, _MAYBE, *[_ARRAY] * 4, _INT],
    "attention": [_ARRAY, _ARRAY, _ARRAY, _MAYBE, _MAYBE, _ARRAY, _FLOAT, _FLOAT, _INT],
    "rotate": [_ARRAY, _ARRAY, _ARRAY, _ARRAY, _FLOAT, _FLOAT, _INT],
    "swiglu": [_ARRAY, _ARRAY, _ARRAY],
    "clamped_swiglu": [_ARRAY, _ARRAY, _ARRAY, _FLOAT, _FLOAT],
    "silu": [_ARRAY, _ARRAY],
    "gelu_approx": [_ARRAY, _ARRAY],
    "gelu": [_ARRAY, _ARRAY],
    "geglu": [_ARRAY, _ARRAY, _ARRAY],
    "layer_norm": [_ARRAY, _MAYBE, _MAYBE, _ARRAY, _FLOAT],
    "rms_norm": [_ARRAY, _ARRAY, _ARRAY, _FLOAT, _FLOAT],
    "state_space": [*[_ARRAY] * 8, _MAYBE, _MAYBE, _MAYBE],
    "gated_delta": [*[_ARRAY] * 7, _MAYBE, _MAYBE],
    "short_convolution": [_ARRAY, _ARRAY, _MAYBE, _ARRAY],
    "softmax_sums": [*[_ARRAY] * 4, _MAYBE, _MAYBE],
    "draw": [*[_ARRAY] * 10, *[_MAYBE] * 3],
    "product_sums": [_ARRAY, _ARRAY, _MAYBE, *[_ARRAY] * 6, _FLOAT, _MAYBE],
    "quantized_product_sums": [*[_ARRAY] * 4, _MAYBE, *[_ARRAY] * 6, _FLOAT, _INT],
    "block": [ctypes.c_void_p],
    "blocks": [ctypes.c_void_p, ctypes.c_int64, _ARRAY, _ARRAY, _MAYBE, _FLOAT, _FLOAT],
    "rows_apart": [ctypes.c_void_p, ctypes.c_int64],
    "encoder_block": [ctypes.c_void_p],
    "pack_weight": [ctypes.c_void_p, _MAYBE, ctypes.c_int64, ctypes.c_int64, _INT, ctypes.c_void_p],
    "fits_packed": [ctypes.c_void_p, ctypes.c_int64],
}


_ahead: list[Future[tuple[Path, ExitStack]]] = []


def compile_ahead() -> None:
    """Begins to compile in a thread, where that was not done before, so that the caller can import and read in the meantime.

    Later runs of a process have the library already.
    """
    if _serves() and not _ahead and not _known().currsize:
        compiler = ThreadPoolExecutor(1, "compile kernels")
        _ahead.append(compiler.submit(_compiled))
        compiler.shutdown(wait=False)


@cache
def library() -> Any:
    """Returns the compiled library, with as many threads as the BLAS, or None where it cannot serve. The first call compiles."""
    if not _serves():
        return None
    try:
        path, opening = _ahead.pop().result() if _ahead else _compiled()
        with opening:
            found = ctypes.PyDLL(str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        said = compiler_message(error)
        log.warning("the kernels for this CPU cannot be compiled or opened, mlx's own are used, which are slower: %s", said)
        return None
    for name, arguments in _ENTRIES.items():
        entry = getattr(found, name)
        entry.argtypes, entry.errcheck = arguments, _checked
    found.start.argtypes = [_INT]
    found.packed_size.argtypes, found.packed_size.restype = [ctypes.c_int64, ctypes.c_int64, _INT], ctypes.c_int64
    found.lie.argtypes = [_MAYBE, _MAYBE, _INT]
    found.hold_same.argtypes = [_MAYBE, _MAYBE, _MAYBE, _INT, _ARRAY]
    found.are_of.argtypes = [_MAYBE, _MAYBE, _INT]
    found.start(max(1, backend.threads()))
    if (said := lacking()) is not None:
        log.warning("%s", said)
    return found


_known = library.cache_info  # whether the library was asked for


def _serves() -> bool:
    return backend.on_cpu_path() and backend.compiles()


def _compiled() -> tuple[Path, ExitStack]:
    """Returns the library's file, and what removes it where it cannot be kept. Raises as ``shared_library``."""
    with ExitStack() as opening:
        path = shared_library(_build(), backend.cache_folder("kernels"), opening)
        return path, opening.pop_all()


def _checked(code: int, *_: object) -> int:
    """Returns a function's code. Raises MemoryError where it is negative."""
    if code < 0:
        raise MemoryError("out of memory in a kernel")
    return code


def maybe(array: object) -> int | None:
    """Returns how an array, or None, is given to the library where it may be left out. Keep the array while the library computes."""
    return None if array is None else id(array)


def tiles() -> bool:
    """Returns True when the processor multiplies in tiles (Intel AMX) and the system allows it."""
    return library() is not None and bool(library().tiles())


def name() -> str:
    """Names all that decides the bits which the library computes, with its vector units; "generic" where it is not wanted.

    Without a library "none"; where NumPy computes in its place also the processor, by which NumPy chooses its loops.
    """
    if generic():
        return GENERIC
    if backend.device_name() == "cuda":
        return f"CUDA {cuda_attention.source_key()}"
    if library() is None:
        return f"none, NumPy's loops for {processor_key()}" if backend.on_cpu_path() and backend.prepare().slow else "none"
    units = f" for {found}" if (found := units_in_use()) else ""
    return build_key(_build()) + units + (" in tiles" if tiles() else "")


class Traced(Exception):
    """mlx traces a function to compile it: the arrays are placeholders, and nothing can be computed of them.

    It is not raised while mlx differentiates, as arrays have values then. Results of the library have no gradient.
    """


def suits(*arrays: mx.array) -> bool:
    """Returns True when the library exists and all arrays are float32 and not empty."""
    return all(array.dtype == mx.float32 and array.size for array in arrays) and library() is not None


def evaluate_arrays(*arrays: mx.array) -> None:
    """Evaluates lazy arrays. Raises Traced."""
    try:
        mx.eval(*arrays)
    except ValueError as error:
        raise Traced(str(error)) from error


def dense(array: mx.array) -> mx.array:
    """Returns the array evaluated and contiguous in memory. Raises Traced."""
    evaluate_arrays(array)
    if layout(array).c_contiguous:
        return array
    array = mx.contiguous(array)
    mx.eval(array)
    return array


def layout(array: mx.array) -> memoryview:
    """Returns an evaluated array's shape and its strides in bytes."""
    return memoryview(array)  # pyright: ignore[reportArgumentType]  (mlx's stubs do not know of it)


def view(array: mx.array) -> NDArray[Any]:
    """Returns an evaluated array's own memory."""
    return np.array(array, copy=False)


class Places:
    """The places of evaluated arrays in memory. An array that is changed in place (by ``+=``, by slices) moves to another place."""

    def __init__(self, arrays: Sequence[mx.array]):
        """Notes the places. Raises Traced."""
        evaluate_arrays(*arrays)
        self._of, self._kept = list(arrays), [copy.copy(array) for array in arrays]  # kept, so that no other array can take the place
        self._objects = _pointers(arrays)
        self._at = (ctypes.c_void_p * len(arrays))(*(view(array).ctypes.data for array in arrays))

    def hold(self, arrays: Sequence[mx.array]) -> bool:
        """Returns True when these are the same arrays in the same places."""
        same = len(arrays) == len(self._of) and all(a is b for a, b in zip(arrays, self._of, strict=True))
        return same and self.stand()

    def stand(self) -> bool:
        """Returns True when no array has moved."""
        return bool(library().lie(self._objects, self._at, len(self._of)))


class Entries:
    """What some dicts hold under some keys, and the classes of some objects. The library compares: a network has hundreds of each."""

    def __init__(self, dicts: Sequence[dict[str, Any]], keys: Sequence[str], objects: Sequence[object]):
        """Notes what is there now: ``keys``, one for each dict, may be missing. ``objects``: those whose classes count."""
        self._count, self._of = len(dicts), len(objects)
        held = [dict.get(each, key) for each, key in zip(dicts, keys, strict=True)]
        self._dicts, self._keys, self._held = _pointers(dicts), _pointers(keys), _pointers(held)
        self._objects, self._classes = _pointers(objects), _pointers([type(each) for each in objects])

    def stand(self) -> bool:
        """Returns True when each dict holds the same object, or none, and each object is of its class."""
        at = library()
        same = at.hold_same(self._dicts, self._keys, self._held, self._count, None)
        return bool(same and at.are_of(self._objects, self._classes, self._of))


def _pointers(objects: Sequence[object]) -> Any:
    """Returns an array for the library, which keeps the objects."""
    return (ctypes.py_object * len(objects))(*objects)


def empty(shape: Sequence[int]) -> mx.array:
    """Makes a float32 array with arbitrary contents, for the library to write to."""
    return mx.array(np.empty(tuple(shape), np.float32))


def _build() -> Build:
    return Build(UNITS, HEADERS, [*COMMAND, *compiler_options()])

"""Says how much memory a batch may take and how much was used, and names the cure where there was too little."""

import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager

from ...configs.schema import BatchConfig
from ...kernels import backend
from ..core.errors import OutOfRoom, is_out_of_memory
from ..core.units import size_as_text

SPARE = 1 / 8  # of a GPU's memory: spare buffers that mlx may keep


def memory_for(batch: BatchConfig) -> int:
    """Returns the bytes that models, KV caches and workspace may share."""
    return int(batch.memory * backend.memory_bytes())


def kv_bytes(share: float, weight_bytes: int, workspace: int, feature_bytes: int = 0) -> int:
    """Returns the bytes left for KV caches when ``share`` of the device holds weights, features of pictures, caches and workspace.

    Raises OutOfRoom where none are left.
    """
    total = backend.memory_bytes()
    left = int(share * total) - weight_bytes - workspace - feature_bytes
    if left <= 0 < left + feature_bytes:
        raise OutOfRoom(
            f"batch.image_memory: {size_as_text(feature_bytes)} for features of pictures leave no room beside the weights "
            f"({size_as_text(weight_bytes)}): batch.memory is {share:.3g} of {size_as_text(total)}; lower batch.image_memory"
        )
    if left <= 0:
        fewer = "" if backend.on_cpu_path() else "lower batch.rows, "  # there the workspace grows with them
        raise OutOfRoom(
            f"batch.memory: {share:.3g} of {size_as_text(total)} does not hold the weights ({size_as_text(weight_bytes)}) "
            f"and their workspace ({size_as_text(workspace)}); raise batch.memory, {fewer}or use a smaller or quantized model"
        )
    return left


def peak_bytes() -> int:
    """Returns the most memory that was in use: the device's where it has its own, else the process's."""
    if backend.device_name() != "cpu":
        import mlx.core as mx

        return int(mx.get_peak_memory())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def limit_spare_memory() -> None:
    """Returns spare buffers to the system: all on a CPU, on a GPU none before they are many.

    On a CPU the next batch has other sizes, and mlx would keep these beside its own. On CUDA each buffer that is returned costs a wait for
    the device, and is soon asked for again: scoring took a quarter longer.
    """
    import mlx.core as mx

    if backend.device_name() == "cpu" or mx.get_cache_memory() > SPARE * backend.memory_bytes():
        mx.clear_cache()


def clear_spare_memory() -> None:
    """Returns spare buffers to the system."""
    import mlx.core as mx

    mx.clear_cache()


@contextmanager
def shortage_as_error(cure: str) -> Generator[None]:
    """Raises OutOfRoom, with the ``cure``, in place of the error of a failed allocation inside the block."""
    try:
        yield
    except BaseException as error:
        if is_out_of_memory(error):
            raise OutOfRoom(f"out of device memory ({error}); {cure}") from error
        raise

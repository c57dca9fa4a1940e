"""Measures float32 matrix products of the BLAS, as a peer in the same turns. Kernels of ours may use other units.

As a program: GFLOP/s alone.
"""

import json
import time
from collections.abc import Callable

WIDTH, TIMES = 4096, 4


def gflops(width: int = WIDTH) -> Callable[[], float]:
    """GFLOP/s of the best product so far of two square matrices of this width; some more of them each time."""
    from mlx_bulk.kernels.backend import load_mlx

    mx = load_mlx()
    a, b = mx.random.normal((width, width)), mx.random.normal((width, width))
    mx.eval(a, b)
    seconds: list[float] = []

    def best() -> float:
        for _ in range(TIMES):
            began = time.perf_counter()
            mx.eval(a @ b)
            seconds.append(time.perf_counter() - began)
        return round(2 * width**3 / min(seconds) / 1e9, 1)

    return best


if __name__ == "__main__":
    work = gflops()
    work()
    print(json.dumps({"sgemm_gflops": work()}))

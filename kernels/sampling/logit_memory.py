"""The memory that logits take while they are read: how many at once, and what is computed from them.

On Metal and CUDA mlx allocates the arrays of many operations before the first of them has run, so that more of them are in memory than
one after the other needs. In arrays as large as the float32 logits: 1 for logprobs alone, 6 to 9 for a draw, 10 with statistics, 15 (on an
H100 16.2) for all figures of a rollout or for typical-p. The CPU's own path holds two blocks at once.
"""

from ..backend import device_name, memory_bytes, on_cpu_path

BYTES = {"cpu": 32 << 20, "metal": 64 << 20, "cuda": 64 << 20}  # of float32 logits read at once; on CUDA at least
CUDA_SHARE, CUDA_MOST = 1 / 256, 512 << 20  # of its memory: a large GPU computes so fast that few rows leave it waiting for weights
ARRAYS = 17  # the most that was measured, 16.2, rounded up
LEAN = 8  # times as many positions where a GPU reads logprobs alone: it makes nothing else of the size of their logits of 16 bits
LEAST_ROWS = 96  # of one product with the head: at V = 152,000 half as many take half as long again a token


def read_at_once() -> int:
    """Returns the bytes of float32 logits that are read at once where given tokens are scored."""
    device = device_name()
    if device != "cuda":
        return BYTES[device]
    return min(max(BYTES[device], int(memory_bytes() * CUDA_SHARE)), CUDA_MOST)


def rows(logit_bytes: int, vocabulary: int) -> int:
    """Returns how many positions' logits fit in ``logit_bytes``; at least LEAST_ROWS."""
    return max(LEAST_ROWS, logit_bytes // (4 * vocabulary))


def lean_rows(rows: int, number_bytes: int) -> int:
    """Returns how many positions' logits are read at once where logprobs alone are, and two such parts are in memory."""
    return rows if device_name() == "cpu" else LEAN * 2 // number_bytes * rows


def workspace(vocabulary: int, decoding: int) -> int:
    """Returns the bytes that reading logits takes at most: of ``decoding`` rows, or of scored positions where these are more."""
    if on_cpu_path():
        return 2 * read_at_once()
    return ARRAYS * 4 * vocabulary * max(decoding, rows(read_at_once(), vocabulary))

"""The memory that logits take while they are read: how many at once, and what is computed from them.

On Metal and CUDA mlx allocates the arrays of many operations before the first of them has run, so that more of them are in memory than
one after the other needs. In arrays as large as the float32 logits: 1 for logprobs alone, 6 to 9 for a draw, 10 with statistics, 15 for
all figures of a rollout or for typical-p. On the CPU's own path two blocks are.
"""

from ..backend import device_name, on_cpu_path

BYTES = {"cpu": 32 << 20, "metal": 64 << 20, "cuda": 64 << 20}  # of float32 logits read at once
ARRAYS = 15
LEAST_ROWS = 96  # of one product with the head: at V = 152,000 half as many take half as long again a token


def read_at_once() -> int:
    """Returns the bytes of float32 logits that are read at once where given tokens are scored."""
    return BYTES[device_name()]


def rows(logit_bytes: int, vocabulary: int) -> int:
    """Returns how many positions' logits that are."""
    return max(LEAST_ROWS, logit_bytes // (4 * vocabulary))


def workspace(vocabulary: int, decoding: int) -> int:
    """Returns the bytes that reading logits takes at most: of ``decoding`` rows, or of scored positions where these are more."""
    if on_cpu_path():
        return 2 * read_at_once()
    return ARRAYS * 4 * vocabulary * max(decoding, rows(read_at_once(), vocabulary))

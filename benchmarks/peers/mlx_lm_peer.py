"""mlx-lm as a peer: its ``batch_generate``, and what its ``evaluate`` does with a text.

As installed from PyPI it multiplies with the BLAS inside the wheel: nothing of ours may be imported before. ``fast`` opens the BLAS
that ours uses (and keeps the allocator's buffers, as ours does), and changes nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.completing import Completing


def fast() -> None:
    """Before mlx is imported: the BLAS that ours uses."""
    from mlx_bulk.kernels.backend import prepare

    prepare()


def generate(folder: Path, work: Completing) -> Callable[[], dict[str, Any]]:
    """``batch_generate`` with logprobs, ``work.rows`` rows at once; no token ends a completion."""
    import mlx.core as mx
    from mlx_lm import batch_generate, load
    from mlx_lm.sample_utils import make_sampler

    model, tokenizer = load(str(folder))[:2]
    tokenizer.eos_token_ids = []
    top_p = make_sampler(1.0, work.top_p)
    # Its own order is top-p first: others keep the tokens that are likely at the temperature.
    sampler = None if work.greedy else lambda logprobs: top_p(logprobs / work.temperature)

    def completed() -> dict[str, Any]:
        mx.random.seed(0)
        done = batch_generate(
            model,
            tokenizer,
            work.prompts,
            max_tokens=work.new,
            return_token_ids=True,
            return_logprobs=True,
            completion_batch_size=work.rows,
            sampler=sampler,
        )
        return {"ids": done.token_ids, "logprobs": done.logprobs}

    return completed


def score(folder: Path, rows: list[list[int]]) -> Callable[[], list[float]]:
    """What its ``loglikelihood_rolling`` does, with token ids for text: batches of 8, sorted."""
    import mlx.core as mx
    from mlx_lm.evaluate import MLXLM

    peer = MLXLM(str(folder))
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))

    def sums() -> list[float]:
        found = [0.0] * len(rows)
        for at in range(0, len(order), 8):
            batch = order[at : at + 8]
            scores, lengths, _ = peer._score_fn([rows[row] for row in batch])
            total = mx.where(mx.arange(scores.shape[-1]) < lengths[:, None] - 1, scores, 0.0).sum(axis=-1)
            for row, one in zip(batch, total.tolist(), strict=True):
                found[row] = one
        return found

    return sums

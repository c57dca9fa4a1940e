"""llama.cpp as a peer, through llama-cpp-python's low-level calls: many sequences a batch on the same float32 weights.

Its cache is in float32 too and its attention plain; ``half``: as it is set by default, a cache in float16 and flash attention, whose
logprobs are some thousandths off. ``bits``: its weights are Q4_0 or Q8_0, and it rounds each product's inputs to 8 bits then. One cache
for all sequences or one each is tried on a piece of the work, and the faster one taken.
"""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from networks import gguf_file
from peers.completing import Completing
from racing import tiers
from racing.turns import THREADS

import numpy as np
from numpy.typing import NDArray

BATCH, MICRO_BATCH = 2048, 512  # tokens of a call, and of what it computes at once
Ids = list[int]
Item = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are read


class Context:
    """A model and its cache: ``cells`` tokens a sequence, ``sequences`` of them."""

    def __init__(self, folder: Path, sequences: int, cells: int, unified: bool, half: bool, bits: int | None = None):
        import llama_cpp

        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)  # it takes warnings for errors
        self._lib: Any = llama_cpp
        self._lib.llama_backend_init()
        tiers.check_llama(self._lib.llama_print_system_info().decode())
        file = gguf_file.write(folder, bits)
        model = self._lib.llama_model_load_from_file(str(file).encode(), self._lib.llama_model_default_params())
        asked: Any = self._lib.llama_context_default_params()
        asked.n_ctx, asked.n_seq_max = sequences * cells, sequences
        asked.n_batch, asked.n_ubatch = BATCH, MICRO_BATCH
        asked.n_threads = asked.n_threads_batch = THREADS
        asked.kv_unified = unified
        if not half:
            asked.type_k = asked.type_v = self._lib.GGML_TYPE_F32
            asked.flash_attn_type = self._lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = self._lib.llama_init_from_model(model, asked)
        if not self._context:
            raise MemoryError(f"llama.cpp makes no context of {sequences} sequences of {cells} tokens")
        self._vocabulary = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(model))
        self._model = model

    def decode(self, items: list[Item]) -> NDArray[np.float32]:
        """Feeds the tokens; logits [N, V] of the N that ask for them, a view until the next call."""
        batch = self._lib.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for i, (token, position, sequence, read) in enumerate(items):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, read
            batch.seq_id[i][0] = sequence
        status = self._lib.llama_decode(self._context, batch)
        self._lib.llama_batch_free(batch)
        if status:
            raise MemoryError(f"llama_decode says {status} for {len(items)} tokens")
        rows = sum(item[3] for item in items)
        return np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), shape=(rows, self._vocabulary))

    def clear(self) -> None:
        """Forgets all sequences."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def free(self) -> None:
        """Gives the memory back."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


def generate(folder: Path, work: Completing, half: bool = False, bits: int | None = None) -> Callable[[], dict[str, Any]]:
    """``work.rows`` prompts at once, fed together and decoded together; greedy, with NumPy's logprobs."""
    cells = max(map(len, work.prompts)) + work.new

    def build(unified: bool) -> tuple[Context, Callable[[Completing], dict[str, Any]]]:
        context = Context(folder, min(work.rows, len(work.prompts)), cells, unified, half, bits)
        return context, lambda piece: _completed(context, piece)

    run = _faster(build, work.first(work.rows, 8))
    return lambda: run(work)


def _completed(context: Context, work: Completing) -> dict[str, Any]:
    ids: list[Ids] = []
    logprobs: list[list[float]] = []
    draws = [np.random.default_rng(row) for row in range(len(work.prompts))]
    for at in range(0, len(work.prompts), work.rows):
        prompts = work.prompts[at : at + work.rows]
        context.clear()
        new: list[Ids] = [[] for _ in prompts]
        its: list[list[float]] = [[] for _ in prompts]
        for step in range(work.new):
            if step == 0:
                logits = _prefill(context, prompts)
            else:
                logits = context.decode([(new[s][-1], len(ids_) + step - 1, s, True) for s, ids_ in enumerate(prompts)])
            tokens = logits.argmax(-1) if work.greedy else _drawn(logits, work, draws[at : at + len(prompts)])
            for s, (token, logprob) in enumerate(zip(tokens.tolist(), _logprobs(logits, tokens).tolist(), strict=True)):
                new[s].append(token)
                its[s].append(logprob)
        ids, logprobs = ids + new, logprobs + its
    return {"ids": ids, "logprobs": logprobs}


def _prefill(context: Context, prompts: list[Ids]) -> NDArray[np.float32]:
    """Feeds whole prompts, as many as fit one call; logits [N, V] behind each."""
    parts = [
        context.decode([(token, at, s, at == len(prompts[s]) - 1) for s in group for at, token in enumerate(prompts[s])]).copy()
        for group in _groups(list(range(len(prompts))), prompts, len(prompts))
    ]
    return np.concatenate(parts)


def _groups(order: list[int], rows: list[Ids], most: int) -> Iterator[list[int]]:
    """Consecutive rows of ``order``, of at most ``BATCH`` tokens together and ``most`` rows."""
    group: list[int] = []
    for row in order:
        if group and (sum(len(rows[other]) for other in group) + len(rows[row]) > BATCH or len(group) == most):
            yield group
            group = []
        group.append(row)
    yield group


def _logprobs(logits: NDArray[np.float32], tokens: NDArray[Any]) -> NDArray[np.float32]:
    """Log-softmax of logits [N, V] at tokens [N]."""
    peak = logits.max(-1, keepdims=True)
    return logits[np.arange(len(tokens)), tokens] - peak[:, 0] - np.log(np.exp(logits - peak).sum(-1))


def _drawn(logits: NDArray[np.float32], work: Completing, draws: list[np.random.Generator]) -> NDArray[np.intp]:
    """Temperature, top-p and a draw, all rows at once: quicker than llama.cpp's sampler chains, which sort row by row."""
    x = logits / np.float32(work.temperature)
    weights = np.exp(x - x.max(-1, keepdims=True))
    order = np.argsort(-weights, axis=-1)
    sums = np.take_along_axis(weights, order, -1).cumsum(-1)
    kept = np.minimum((sums < work.top_p * sums[:, -1:]).sum(-1), sums.shape[-1] - 1)
    bound = sums[np.arange(len(sums)), kept]
    at = [int(np.searchsorted(row, draw.random() * most, side="right")) for row, draw, most in zip(sums, draws, bound, strict=True)]
    return order[np.arange(len(sums)), np.minimum(at, kept)]


def score(folder: Path, rows: list[Ids], half: bool = False, bits: int | None = None) -> Callable[[], list[float]]:
    """Sorted by length, all that fit one call; each text's summed logprob."""
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    sequences = min(len(rows), 32)
    cells = max(BATCH // sequences, *map(len, rows))

    def build(unified: bool) -> tuple[Context, Callable[[list[int]], list[float]]]:
        context = Context(folder, sequences, cells, unified, half, bits)
        return context, lambda piece: _sums(context, piece, rows, sequences)

    run = _faster(build, order[::4])
    return lambda: run(order)


def _sums(context: Context, order: list[int], rows: list[Ids], sequences: int) -> list[float]:
    found = [0.0] * len(rows)
    for group in _groups(order, rows, sequences):
        context.clear()
        logits = context.decode([(token, at, s, True) for s, row in enumerate(group) for at, token in enumerate(rows[row][:-1])])
        ends = np.cumsum([0] + [len(rows[row]) - 1 for row in group]).tolist()
        for row, (first, last) in zip(group, pairwise(ends), strict=True):
            found[row] = float(_logprobs(logits[first:last], np.array(rows[row][1:])).sum(dtype=np.float64))
    return found


def _faster(build: Callable[[bool], tuple[Context, Callable[[Any], Any]]], piece: Any) -> Callable[[Any], Any]:
    """With one cache for all sequences or one each, whichever does ``piece`` in less time."""
    took: dict[bool, float] = {}
    for unified in (True, False):
        context, run = build(unified)
        run(piece)
        began = time.perf_counter()
        run(piece)
        took[unified] = time.perf_counter() - began
        context.free()
    return build(min(took, key=lambda unified: took[unified]))[1]

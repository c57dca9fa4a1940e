"""Tests rows that the engine runs together against each alone, in all that a run does with them."""

import math
from collections import Counter
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.runner.checks.decode_check import batch_difference
from mlx_bulk.runner.checks.padding_probe import PADDED as PADDED_WAYS
from mlx_bulk.runner.checks.padding_probe import Way
from mlx_bulk.runner.checks.trial import SingleRows
from mlx_bulk.runner.engine import decode_batch
from mlx_bulk.runner.engine import engine as engines
from mlx_bulk.runner.layers import kv_cache as caching
from mlx_bulk.runner.layers import network as calls
from mlx_bulk.runner.layers.lm_head import Head

from ..support import tiny
from ..support.tiny import EXACT, PADDED, VOCABULARY, WINDOW, Network, as_it_came, build

QUICK = ("llama", "gemma3_text", "mamba2")  # a model of each kind of cache
ALLOWED = 1e-4


def difference(network: Network, way: Way, head: bool = True, chunked: bool = True) -> float:
    return batch_difference(SingleRows(network), VOCABULARY, way, WINDOW, ALLOWED, Head(network) if head else None, chunked)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PADDED])
def test_models_right_in_padded_batches_are_found_right(name: str):
    assert difference(build(name), "padded") <= ALLOWED


@pytest.mark.parametrize("name", EXACT)
def test_models_wrong_with_pads_are_found(name: str):
    assert difference(build(name), "exact") <= ALLOWED
    assert difference(build(name), "padded") > 100 * ALLOWED
    assert difference(build(name), "joined") <= ALLOWED


def test_models_that_crash_but_in_batches_of_one_length_are_found():
    network = as_it_came("gemma2")  # it is mended when it is loaded
    assert difference(network, "exact") <= ALLOWED
    for way in PADDED_WAYS:
        with pytest.raises(ValueError, match="broadcast"):
            difference(network, way)


def test_a_row_alone_is_as_far_from_itself_as_nothing():
    assert difference(build("llama"), "alone", chunked=False) < 1e-5


@pytest.mark.parametrize("way", ["padded", "exact"])
def test_rows_join_leave_and_fork_and_prompts_come_in_calls(monkeypatch: pytest.MonkeyPatch, way: Way):
    seen: Counter[str] = Counter()
    select, forked, forward = engines.select, engines.fork_caches, calls.set_call_lengths

    def selecting(caches: Any, rows: list[int], of: int, padded: bool) -> None:
        seen["leave"] += len(rows) < of
        seen["fork"] += len(set(rows)) < len(rows)
        select(caches, rows, of, padded)

    def forking(caches: Any, rows: list[int], of: int, padded: bool) -> Any:
        seen["fork later"] += 1
        return forked(caches, rows, of, padded)

    def calling(caches: Any, lengths: list[int], width: int) -> None:
        seen["ragged call"] += max(lengths) > width and len(set(lengths)) > 1
        seen["long call"] += width > WINDOW
        seen["later call"] += not caches[0].empty()
        forward(caches, lengths, width)

    def extending(mine: Any, other: Any) -> None:
        seen["join"] += 1
        extend(mine, other)

    extend = caching.KVCache.merge([caching.KVCache()]).extend.__func__  # pyright: ignore[reportFunctionMemberAccess]
    monkeypatch.setattr(type(caching.KVCache.merge([caching.KVCache()])), "extend", extending)
    monkeypatch.setattr(engines, "select", selecting)
    monkeypatch.setattr(decode_batch, "select", selecting)
    monkeypatch.setattr(engines, "fork_caches", forking)
    monkeypatch.setattr(calls, "set_call_lengths", calling)
    assert difference(build("llama"), way) <= ALLOWED
    expected = {"leave", "fork", "fork later", "long call", "later call"} | ({"join", "ragged call"} if way == "padded" else set[str]())
    assert {name for name, count in seen.items() if count} == expected


class InABatch:
    """A model that a batch changes in some of its calls, by a ``share`` of the batch's mean."""

    def __init__(self, network: Network, decoding: bool, share: float = 0.01):
        self.network, self.layers, self.decoding, self.share = network, network.layers, decoding, share

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        logits = self.network(tokens, cache=cache)
        touched = tokens.shape[0] > 1 and (tokens.shape[1] == 1) == self.decoding
        return logits + self.share * logits.mean(axis=0, keepdims=True) if touched else logits


@pytest.mark.parametrize("decoding", [True, False])
@pytest.mark.parametrize("way", ["padded", "exact"])
def test_a_fault_of_prompts_or_of_decoding_alone_is_found(way: Way, decoding: bool):
    assert difference(InABatch(build("llama"), decoding), way, head=False) > ALLOWED


def test_no_number_is_infinitely_far():
    assert difference(InABatch(build("llama"), decoding=True, share=math.nan), "padded", head=False) == math.inf


def test_a_prompt_in_several_calls_counts_where_it_is_asked_for():
    class Forgetting:
        def __init__(self, network: Network):
            self.network, self.layers = network, network.layers

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            later = tokens.shape[1] > 1 and cache is not None and getattr(cache[0], "_idx", getattr(cache[0], "offset", 0)) > 0
            return self.network(tokens, cache=None if later else cache)

    network = Forgetting(tiny.build("llama"))
    assert difference(network, "padded", head=False, chunked=False) <= ALLOWED
    assert difference(network, "padded", head=False) > ALLOWED

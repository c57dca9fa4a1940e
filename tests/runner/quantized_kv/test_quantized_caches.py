"""Tests batches on quantized keys and values: each row gives what it gives alone, in few bytes.

A number that lies between two codes can get the one or the other, as other mates round its sums otherwise. So bounds are of two sizes.
"""

import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map_with_path
from mlx_bulk.runner.core.kv_quantization import KVQuantization
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import Sampling
from mlx_bulk.runner.engine.prefix_disk_cache import PrefixCache
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.cache_bytes import growth
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.quantized_kv.quantized_caches import BatchQuantizedKVCache, PlainQuantizedKVCache

from ..support import tiny
from ..support.shared_prompts import prompts as alike
from ..support.tiny_runs import request, run, setup_of

LENGTHS = (5, 30, 1, 17, 9, 40, 2)
TOKENS = (6, 3, 9, 4, 7, 5, 3)
SAME = 1e-4  # a logprob, in float32
FLIPPED = 1e-2  # the same, behind a key or value between two codes: rounding decides which of them it gets


@cache
def network(name: str) -> Any:
    """A model with heads of 32."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    config = tiny.CONFIGS[name] | {"head_dim": 32, "num_hidden_layers": 2, "model_type": name}
    if name == "lfm2":  # its heads share its width
        config |= {"hidden_size": 128, "block_dim": 128, "num_hidden_layers": 4}
    built = module.Model(module.ModelArgs.from_dict(config))
    built.update(tree_map_with_path(lambda key, w: w * (2.0 if "weight" in key and w.ndim == 2 else 1.0), built.parameters()))
    return built


def setup(name: str, kv: KVQuantization | None, rows: int = 4, **more: Any) -> Setup:
    return setup_of(network(name), rows=rows, wanted=LogprobOptions(echo=True), kv=kv, **more)


def texts() -> list[list[int]]:
    return tiny.prompts_of(LENGTHS)


def asked(ids: list[list[int]]) -> list[Any]:
    """Rows that end at different steps, one of which has three samples."""
    return [
        request(i, own, Sampling(max_tokens=TOKENS[i % 7], temperature=float(i % 2)), (i, 50 + i, 90 + i) if i == 3 else (i,))
        for i, own in enumerate(ids)
    ]


def logprobs(of: Setup, requests: list[Any]) -> list[tuple[list[int], Any]]:
    found = []
    for outcome in run(of, requests):
        assert outcome.echo is not None
        found.append((outcome.ids.tolist(), np.concatenate([outcome.echo.logprobs, outcome.scores.logprobs])))
    return found


def alone(of: Setup, requests: list[Any]) -> list[tuple[list[int], Any]]:
    """The same, each row by itself."""
    return [found for one in requests for found in logprobs(of.with_features(shared_prompts=False), [one])]


def assert_alike(found: list[tuple[list[int], Any]], truth: list[tuple[list[int], Any]]) -> None:
    """Nine tenths within the promise; a code that rounding flips moves the rest by less than a pad that is seen would."""
    assert [ids for ids, _ in found] == [ids for ids, _ in truth]
    gaps = np.abs(np.concatenate([mine - theirs for (_, mine), (_, theirs) in zip(found, truth, strict=True)]))
    assert np.quantile(gaps, 0.9) <= SAME
    assert gaps.max() <= FLIPPED


@pytest.mark.parametrize("bits", [8, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("start", [pytest.param(0, marks=pytest.mark.slow), 12])
@pytest.mark.parametrize("name", ["gemma3_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "qwen3_moe", "lfm2"))])
def test_a_row_in_a_ragged_batch_gives_what_it_gives_alone(name: str, start: int, bits: int):
    kv = KVQuantization(bits, 32, start)
    requests = asked(texts())
    truth = alone(setup(name, kv), requests)
    assert_alike(logprobs(setup(name, kv), requests), truth)
    assert_alike(logprobs(setup(name, kv, tokens=24), requests), truth)  # prefill in chunks
    plain = logprobs(setup(name, None), requests)
    moved = max(np.abs(mine[:5] - theirs[:5]).max() for (_, mine), (_, theirs) in zip(truth, plain, strict=True))
    assert moved > 1e-5 or start  # else nothing was quantized


@pytest.mark.parametrize(
    ("shared", "bits"), [(True, 8), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((False, 8), (True, 4)))]
)
def test_rows_that_decode_beside_a_prefill_give_what_they_give_alone(shared: bool, bits: int):
    kv, requests = KVQuantization(bits, 32, 12), asked(alike()[:7] if shared else texts())
    beside = setup("llama", kv, tokens=24, prefill_tokens=8, shared_prompts=shared)
    assert_alike(logprobs(beside, requests), alone(setup("llama", kv), requests))


@pytest.mark.parametrize("bits", [4, 8])
def test_tokens_before_the_start_are_as_the_model_made_them(bits: int):
    few = asked(texts())
    whole = logprobs(setup("llama", None), few)
    found = logprobs(setup("llama", KVQuantization(bits, 32, 1000)), few)
    for (ids, mine), (same, theirs) in zip(found, whole, strict=True):
        assert ids == same
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=SAME)


@pytest.mark.parametrize(("start", "bits"), [(50, 8), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 8), (50, 4)))])
def test_rows_behind_a_shared_prefix_give_what_they_give_alone(start: int, bits: int, tmp_path: Path):
    kv = KVQuantization(bits, 32, start)
    requests = asked(alike()[:7])
    truth = alone(setup("llama", kv), requests)
    sharing = setup("llama", kv, shared_prompts=True)
    assert_alike(logprobs(sharing, requests), truth)
    for read in (0, 1):  # written, then read
        stored = replace(sharing, prefix_cache=PrefixCache.opened(tmp_path, {"kv": start}))
        assert_alike(logprobs(stored, requests), truth)
        assert stored.prefix_cache is not None
        assert (stored.prefix_cache.read > 0) == bool(read)


@pytest.mark.parametrize(("bits", "most"), [(8, 0.56), (4, 0.32)])
@pytest.mark.parametrize("width", [64, 128])
def test_bytes_of_a_token(bits: int, most: float, width: int):
    """Against two bytes a number; scales are of the model's type."""
    keys = mx.random.normal((1, 2, 40, width)).astype(mx.bfloat16)
    cache: Any = PlainQuantizedKVCache(KVQuantization(bits))
    cache.update_and_fetch(keys, keys)
    token, row = growth([cache])
    assert token <= most * 2 * 2 * 2 * width
    assert row == 0
    assert cache.keys[1].dtype == mx.bfloat16
    early: Any = PlainQuantizedKVCache(KVQuantization(bits, start=16))
    early.update_and_fetch(keys, keys)
    assert growth([early]) == (token, 16 * 2 * 2 * 2 * width)


def test_a_batch_holds_what_its_rows_held():
    """Rows of unlike lengths, one of them empty, join and leave; the early tokens go with them."""
    kv, rng = KVQuantization(8, 32, 3), np.random.default_rng(0)
    rows = [mx.array(rng.normal(size=(1, 2, n, 32)).astype(np.float32)) for n in (9, 2, 70)]
    plain = [PlainQuantizedKVCache(kv) for _ in range(4)]
    for one, keys in zip(plain, rows, strict=False):
        one.update_and_fetch(keys, -keys)
    batch = PlainQuantizedKVCache.merge([plain[3], *plain[:2]])
    assert batch.offset.tolist() == [0, 9, 2]
    batch.extend(PlainQuantizedKVCache.merge([plain[2]]))
    batch.filter(mx.array([3, 1, 2, 2]))
    assert batch.offset.tolist() == [70, 9, 2, 2]
    for row, one in enumerate([plain[2], plain[0], plain[1], plain[1]]):
        for mine, own in zip(batch.keys_and_values(), one.keys_and_values(), strict=True):
            np.testing.assert_array_equal(mine.whole()[row, :, -one.offset :], own.whole()[0])
    batch.filter(mx.array([2]))
    assert batch.size() == 2
    assert batch.nbytes > 0


def test_caches_of_windows_and_states_stay_as_they_are():
    kinds = [type(one).__name__ for one in make_caches(network("gemma3_text"), 2, padded=True, kv=KVQuantization(8, 32))]
    assert set(kinds) == {"BatchQuantizedKVCache", "BatchRotatingKVCache"}
    assert all(type(one) is BatchQuantizedKVCache for one in make_caches(network("llama"), 2, padded=True, kv=KVQuantization(8, 32)))

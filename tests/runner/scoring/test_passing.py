"""Tests calls that keep no keys and values, with and without a shared prefix: the numbers are those with caches."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.runner.layers import kv_cache
from mlx_bulk.runner.layers.kv_cache import Caches, make_caches, needs_no_caches, read_only_views, widen_caches
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.patched_layers import cpu_blocks
from numpy.typing import NDArray

from ..support import kernel_models, tiny, tiny_runs
from ..support.score_calls import TEXTS, setup
from ..support.tiny_runs import documents

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

NAMES = ("llama", "qwen3")
LENGTHS = [64, 5, 30]


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    with kernel_models.originals():
        yield


def tokens(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(0).integers(0, tiny.VOCABULARY, shape))


def fed(network: Any, caches: Caches | None) -> list[NDArray[np.float32]]:
    """Logits of rows of ``LENGTHS`` tokens, without their pads."""
    logits = np.array(Network(network)(tokens(3, 64), caches, lengths=LENGTHS))
    return [logits[row, :n] for row, n in enumerate(LENGTHS)]


def held(layer: Any) -> NDArray[np.float32]:
    """Keys and values of a plain cache [2, 1, K, L, D]."""
    return np.stack([np.array(array)[:, :, : layer.offset] for array in (layer.keys, layer.values)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("front", [0, 1, 50])
def test_logits_are_those_with_caches(name: str, front: int):
    network = kernel_models.put(name)
    assert needs_no_caches(network)
    base = make_caches(network, 1, padded=False)
    if front:
        network(tokens(1, front), cache=base)
    before = [held(layer) for layer in base] if front else []
    found = fed(network, read_only_views(base if front else None))
    truth = fed(network, widen_caches(base, 3) if front else make_caches(network, 3, padded=False))
    for ours, theirs in zip(found, truth, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for layer, left in zip(base, before, strict=False):
        np.testing.assert_array_equal(held(layer), left)


@pytest.mark.parametrize("name", NAMES)
def test_layers_that_the_kernel_leaves_alone_get_copies(name: str, monkeypatch: pytest.MonkeyPatch):
    network = kernel_models.put(name)
    base = make_caches(network, 1, padded=False)
    network(tokens(1, 50), cache=base)
    truth = fed(network, widen_caches(base, 3))
    block = cpu_blocks.block_of
    for refused in ([network.layers[1]], network.layers):
        monkeypatch.setattr(
            cpu_blocks, "block_of", lambda layer, refused=refused: None if any(layer is one for one in refused) else block(layer)
        )
        for ours, theirs in zip(fed(network, read_only_views(base)), truth, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4)


def test_layers_with_windows_need_caches_on_top_of_others():
    network = kernel_models.put("gemma3_text")
    assert [needs_no_caches(network, on_top) for on_top in (False, True)] == [True, False]


def test_a_model_with_such_a_layer_needs_caches(monkeypatch: pytest.MonkeyPatch):
    network = kernel_models.put("llama")
    monkeypatch.setattr(kv_cache, "serves", lambda layer: layer is not network.layers[1])
    assert not needs_no_caches(network)


# ------------------------------------------------------------------------------------------------------- through the scorer


@pytest.mark.parametrize("name", [*NAMES, "gemma3_text"])  # the last one has layers with windows, shorter than the texts
@pytest.mark.parametrize("static", [False, True])
def test_documents_are_scored_without_caches(name: str, static: bool, monkeypatch: pytest.MonkeyPatch):
    truth = tiny_runs.scored(setup(name), documents(TEXTS))
    network = kernel_models.put(name)
    monkeypatch.setattr(cpu_blocks, "_hold", lambda *_: pytest.fail("a cache"))
    found = tiny_runs.scored(setup(name, tokens=10_000, static=static, head=Head(network)), documents(TEXTS))
    assert_close(found, truth)


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_prefix_is_not_copied(name: str, monkeypatch: pytest.MonkeyPatch):
    (prefix,), behind = tiny.prompts_of((40,)), tiny.prompts_of((20, 26, 3, 1, 22, 30), seed=1)
    texts = documents([prefix + text for text in behind])
    truth = tiny_runs.scored(setup(name), texts)
    network = kernel_models.put(name)
    seen: list[int] = []
    right = cpu_blocks._run_unkept  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(cpu_blocks, "_run_unkept", lambda *call: seen.append(0 if call[3] is None else call[3].offset) or right(*call))
    monkeypatch.setattr("mlx_bulk.runner.scoring.batch_caches.widen_caches", lambda *_: pytest.fail("a copy"))
    assert_close(tiny_runs.scored(setup(name, tokens=10_000, head=Head(network)), texts), truth)
    assert set(seen) == {40}


def test_rows_fed_in_several_calls_have_caches(monkeypatch: pytest.MonkeyPatch):
    texts = documents([text for text in TEXTS if len(text) >= 20])
    truth = tiny_runs.scored(setup("llama"), texts)
    network = kernel_models.put("llama")
    monkeypatch.setattr(cpu_blocks, "_run_unkept", lambda *_: pytest.fail("no cache"))
    assert_close(tiny_runs.scored(setup("llama", tokens=16, head=Head(network)), texts), truth)


def assert_close(found: list[Any], truth: list[Any]):
    for ours, theirs in zip(found, truth, strict=True):
        for a, b in zip(ours.scores, theirs.scores, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-4)

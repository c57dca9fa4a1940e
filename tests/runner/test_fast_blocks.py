"""Blocks with the CPU's kernel against mlx-lm's own: caches that grow, are cut, joined and copied, and weights that change."""

import copy
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.nn.losses import cross_entropy
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_flatten, tree_map, tree_map_with_path
from mlx_bulk.kernels import linear
from mlx_bulk.runner import fast_blocks, fast_layers
from mlx_bulk.runner.cache import announce, forked, fresh, joined, merged, select, settle, trim, widened
from mlx_bulk.runner.wearing import put_on, take_off
from mlx_lm.models.cache import BatchKVCache, KVCache
from mlx_lm.tuner.utils import linear_to_lora_layers
from numpy.typing import NDArray

from . import tiny
from .served import needed

pytestmark = needed

Change = Callable[[Any], Any]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases and pairs of neighbours": {"attention_bias": True, "mlp_bias": True, "rope_traditional": True},
    "llama, linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama, llama3 rope": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}},
    "llama, heads of 20": {"head_dim": 20},
    "qwen2": {"head_dim": None},
    "qwen3": {},
}


def network(kind: str = "llama") -> Any:
    """A tiny network with random weights, the same each time, norms and biases too."""
    name = kind.partition(" ")[0].strip(",")
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    config = {**tiny.CONFIGS["llama"], "num_hidden_layers": 2, **KINDS[kind], "model_type": name}
    found = module.Model(module.ModelArgs.from_dict({key: value for key, value in config.items() if value is not None}))

    def spread(_: str, w: mx.array) -> mx.array:
        return w * 3 if w.ndim == 2 else w + 0.3 * mx.random.normal(w.shape)

    found.update(tree_map_with_path(spread, found.parameters()))
    mx.eval(found.parameters())
    return found.eval()


def ids(rows: int, n: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, tiny.VOCABULARY, (rows, n)).astype(np.int32))


def close(found: mx.array, truth: mx.array) -> None:
    """Rounding alone: 1e-4 of a spread above 1, the contract's for float32."""
    right = np.array(truth)
    assert right.std() > 1
    np.testing.assert_allclose(np.array(found), right, rtol=0, atol=1e-4 * float(right.std()))


class Both:
    """A network of mlx-lm's and one with the kernel, to which the same is done. Logits of each call are held against each other."""

    def __init__(self, kind: str = "llama"):
        self.networks = [network(kind), network(kind)]
        put_on(self.networks[1])

    def caches(self, rows: int, padded: bool) -> list[Any]:
        """Of each network, one a layer."""
        return [fresh(each, rows, padded) for each in self.networks]

    def call(self, tokens: mx.array, caches: list[Any], fast: bool = True, lengths: Sequence[int] | None = None) -> None:
        """Pads behind the first ``lengths`` tokens of a row are nobody's."""
        truth = self.networks[0](tokens, cache=caches[0])
        fast_layers.taken.clear()
        found = self.networks[1](tokens, cache=caches[1])
        assert ("block" in fast_layers.taken) == fast
        rows = [slice(None)] * len(tokens) if lengths is None else [slice(n) for n in lengths]
        close(*(mx.concatenate([row[own] for row, own in zip(logits, rows, strict=True)]) for logits in (found, truth)))

    def steps(self, rows: int, n: int, caches: list[Any], seed: int = 7) -> None:
        for i in range(n):
            self.call(ids(rows, 1, seed + i), caches)

    def each(self, change: Change) -> None:
        for each in self.networks:
            change(each)


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_prefill_in_several_calls_and_100_steps(kind: str, padded: bool):
    """Beyond what a cache has room for at first, twice."""
    both = Both(kind)
    caches = both.caches(3, padded)
    for n in (40, 1, 2, 17):
        both.call(ids(3, n, n), caches)
    both.steps(3, 100, caches)


def test_rows_of_unlike_length_that_leave_and_join(both: Both):
    caches, late = both.caches(4, padded=True), both.caches(2, padded=True)
    for parts, lengths in ((caches, [9, 3, 12, 7]), (late, [2, 15])):
        for each in parts:
            announce(each, lengths, max(lengths))
        both.call(ids(len(lengths), max(lengths)), parts, lengths=lengths)
        for each in parts:
            settle(each)
    both.steps(4, 3, caches)
    for each in caches:
        select(each, [3, 1], 4, padded=True)
    both.steps(2, 3, caches)
    caches = [joined([mine, other]) for mine, other in zip(caches, late, strict=True)]
    both.steps(4, 3, caches)
    for each in caches:
        select(each, [1, 1, 0], 4, padded=True)
    both.steps(3, 70, caches)


def test_a_row_joins_an_empty_batch_and_pads_come_in_the_middle(both: Both):
    empty, caches = both.caches(1, padded=True), both.caches(2, padded=True)
    both.call(ids(2, 6), caches)
    caches = [joined([mine, other]) for mine, other in zip(caches, empty, strict=True)]
    for each in caches:
        announce(each, [2, 4, 5], 5)
    both.call(ids(3, 5), caches, lengths=[2, 4, 5])
    for each in caches:
        settle(each)
    both.steps(3, 3, caches)


def test_what_is_trimmed_is_written_anew(both: Both):
    caches = both.caches(2, padded=False)
    both.call(ids(2, 20), caches)
    for n in (1, 5, 19):
        for each in caches:
            trim(each, n)
        both.call(ids(2, n, seed=n), caches)
    both.steps(2, 2, caches)


def test_what_mlx_writes_in_between_is_seen(both: Both):
    """As many positions as were trimmed: the cache looks as the kernel has left it, and its arrays are the same objects."""
    caches = both.caches(2, padded=False)
    both.call(ids(2, 20), caches)
    kept = copy.deepcopy(caches)  # so that mlx cannot write to the same memory
    for each in caches:
        trim(each, 3)
    with fast_blocks.parts():
        both.call(ids(2, 3, seed=1), caches, fast=False)
    both.steps(2, 3, caches)
    both.steps(2, 3, kept)


def test_a_cache_that_is_told_another_position(both: Both):
    caches = both.caches(2, padded=False)
    both.call(ids(2, 20), caches)
    for each in caches:
        for cache in each:
            cache.offset -= 5
    both.steps(2, 3, caches)


@pytest.mark.parametrize("padded", [False, True])
def test_copies_of_a_cache_go_on_apart(both: Both, padded: bool):
    caches = both.caches(3, padded)
    both.call(ids(3, 10), caches)
    copies = [forked(each, [2, 0, 0], 3, padded) for each in caches]
    deep = copy.deepcopy(caches)
    for seed in range(3):
        for i, parts in enumerate((caches, copies, deep)):
            both.call(ids(3, 1, seed=10 * seed + i), parts)
    with fast_blocks.parts():
        both.call(ids(3, 2, seed=51), deep, fast=False)
    both.steps(3, 2, caches)
    both.steps(3, 2, deep)


def test_one_row_widened_and_rows_merged(both: Both):
    one, other = both.caches(1, padded=False), both.caches(1, padded=False)
    both.call(ids(1, 9), one)
    both.call(ids(1, 4, seed=1), other)
    wide = [widened(each, 3) for each in one]
    both.steps(3, 2, wide)
    for each in wide:
        select(each, [2, 0], 3, padded=False)
    both.steps(2, 2, wide)
    batch = [merged(network, [a, b]) for network, a, b in zip(both.networks, one, other, strict=True)]
    both.steps(2, 3, batch)
    both.steps(1, 2, one)
    both.steps(2, 70, batch)


def test_weights_that_are_replaced(both: Both):
    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(lambda network: network.update(tree_map(lambda w: w * 1.1, network.parameters())))
    both.call(ids(2, 3), caches)
    both.each(lambda network: network.model.layers[1].mlp.down_proj.update({"weight": mx.ones((64, 128)) * 0.1}))
    both.call(ids(2, 3), caches)


def test_weights_that_are_written_to_in_place(both: Both):
    def change(network: Any) -> None:
        network.model.layers[0].mlp.up_proj.weight += 0.05
        network.model.layers[1].self_attn.q_proj.weight[:8] = 0.3
        network.model.layers[1].input_layernorm.weight *= 2

    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(change)
    both.call(ids(2, 3), caches)


def test_a_copied_network_has_weights_of_its_own(both: Both):
    caches = both.caches(1, padded=False)
    both.call(ids(1, 8), caches)
    first, both.networks = both.networks, copy.deepcopy(both.networks)
    both.each(lambda network: network.update(tree_map(lambda w: w * 1.1, network.parameters())))
    both.call(ids(1, 8), both.caches(1, padded=False))
    both.networks = first
    both.call(ids(1, 3), caches)


def test_an_adapter_put_on_and_taken_off(both: Both):
    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    before = [{name: network.model.layers[1].self_attn[name] for name in names} for network in both.networks]

    def adapt(network: Any) -> None:
        mx.random.seed(3)
        linear_to_lora_layers(network, 1, {"rank": 4, "scale": 8.0, "dropout": 0.0, "keys": [f"self_attn.{name}" for name in names]})
        for layer in network.modules():
            if "lora_b" in layer:
                layer["lora_b"] = mx.random.normal(layer["lora_b"].shape) * 0.1

    both.each(adapt)
    assert "lora_b" in both.networks[1].model.layers[1].self_attn.q_proj
    both.call(ids(2, 3), caches)  # the other layer is computed at once still
    for network, layers in zip(both.networks, before, strict=True):
        for name, layer in layers.items():
            network.model.layers[1].self_attn[name] = layer
    both.call(ids(2, 3), caches)


def test_quantized_layers_are_mlx_s(both: Both):
    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(lambda network: nn.quantize(network.model.layers[0].mlp, group_size=32, bits=8))
    both.call(ids(2, 3), caches)
    both.each(lambda network: nn.quantize(network, group_size=32, bits=8))
    both.call(ids(2, 3), caches, fast=False)


def test_a_network_that_trains_has_mlx_s_gradients(both: Both):
    def loss(network: Any, tokens: mx.array) -> mx.array:
        return cross_entropy(network(tokens[:, :-1], cache=fresh(network, 2, padded=False)), tokens[:, 1:]).mean()

    both.call(ids(2, 8), both.caches(2, padded=False))
    both.each(lambda network: network.train())
    fast_layers.taken.clear()
    truth, found = (dict(tree_flatten(value_and_grad(each, loss)(each, ids(2, 12))[1])) for each in both.networks)
    assert not fast_layers.taken
    for name, gradient in truth.items():
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=1e-4 * float(mx.abs(gradient).max()))
    both.each(lambda network: network.eval())
    both.call(ids(2, 8), both.caches(2, padded=False))


def test_what_mlx_compiles_is_mlx_s(both: Both):
    both.call(ids(2, 8), both.caches(2, padded=False))
    results: list[mx.array] = []
    for each in both.networks:

        def call(tokens: mx.array, each: Any = each) -> mx.array:
            caches = fresh(each, 2, padded=False)
            return mx.concatenate([each(tokens, cache=caches), each(tokens[:, :1], cache=caches)], axis=1)

        fast_layers.taken.clear()
        results.append(mx.compile(call)(ids(2, 5)))
        assert not fast_layers.taken
    close(results[1], results[0])


def test_caches_of_another_type_are_mlx_s(both: Both):
    caches = both.caches(2, padded=False)
    both.call(ids(2, 8), caches)
    for each in caches:
        for cache in each:
            cache.keys, cache.values = cache.keys.astype(mx.float16), cache.values.astype(mx.float16)
    fast_layers.taken.clear()
    results = [each(ids(2, 3), cache=own) for each, own in zip(both.networks, caches, strict=True)]
    assert "block" not in fast_layers.taken
    assert {cache.keys.dtype for each in caches for cache in each} == {mx.float16}
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=0.1)  # the new ones are rounded to it too


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_is_mlx_s_to_the_bit(both: Both, dtype: mx.Dtype):
    both.each(lambda network: network.set_dtype(dtype))
    fast_layers.taken.clear()
    truth, found = (each(ids(2, 9), cache=fresh(each, 2, padded=True)) for each in both.networks)
    assert not fast_layers.taken
    assert mx.array_equal(truth, found)
    both.each(lambda network: network.model.embed_tokens.set_dtype(mx.float32))  # float32 goes in, weights stay
    truth, found = (each(ids(2, 9), cache=fresh(each, 2, padded=True)) for each in both.networks)
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-3 * float(mx.abs(truth).max()))


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_that_are_not_the_cache_s_are_mlx_s_to_complain_of(both: Both, rows: int):
    layer, x = both.networks[1].model.layers[0], mx.random.normal((3, 2, 64))
    cache = KVCache()
    layer(x[:rows], None, cache)
    fast_layers.taken.clear()
    with pytest.raises(ValueError, match="shape"):
        mx.eval(layer(x, None, cache))
    if rows > 1:
        with pytest.raises(ValueError, match="offset"):
            mx.eval(layer(x, None, BatchKVCache([0] * rows)))
    assert "block" not in fast_layers.taken


def test_a_projection_of_another_class_is_its_own(both: Both):
    class Doubled(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            return 2 * super().__call__(x)

    def change(network: Any) -> None:
        for layer in network.model.layers:
            layer.self_attn.v_proj.__class__ = Doubled

    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(change)
    both.call(ids(2, 3), caches, fast=False)


def test_threads_share_a_network(both: Both):
    _, fast = both.networks
    prompts = [ids(1 + i, 6 + i, seed=i) for i in range(2)]

    def logits(i: int) -> NDArray[np.float32]:
        caches = fresh(fast, 1 + i, padded=False)
        parts = [fast(tokens, cache=caches) for tokens in (prompts[i], *(ids(1 + i, 1, seed=s) for s in range(20)))]
        return np.array(mx.concatenate(parts, axis=1))

    truth, found = [logits(i) for i in range(2)], dict[int, list[NDArray[np.float32]]]()

    def several(i: int) -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            found[i] = [logits(i) for _ in range(5)]

    threads = [threading.Thread(target=several, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, right in enumerate(truth):
        for each in found[i]:
            np.testing.assert_allclose(each, right, rtol=0, atol=1e-5)


def test_nothing_of_the_weights_is_held_once_the_classes_are_taken_off(both: Both):
    both.call(ids(1, 3), both.caches(1, padded=False))
    fast = both.networks[1]
    assert all(fast_blocks.MADE in vars(layer) for layer in fast.model.layers)
    take_off(fast)
    assert not any(fast_blocks.MADE in vars(layer) for layer in fast.model.layers)
    both.call(ids(1, 3), both.caches(1, padded=False), fast=False)


def test_without_tiles_many_rows_are_mlx_s(both: Both, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fast_blocks.native, "tiles", lambda: False)
    monkeypatch.setattr(linear, "MOST", 8)
    caches = both.caches(2, padded=True)
    both.call(ids(2, 5), caches, fast=False)
    both.call(ids(2, 4), caches)
    both.call(ids(2, 9), caches, fast=False)
    both.steps(2, 2, caches)

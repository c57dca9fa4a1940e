"""Fast kernels in mlx-lm's models: the same logits before and after, and the originals wherever ours are not made for it."""

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.kernels import attention, backend
from mlx_bulk.kernels.exponential import device_name
from mlx_bulk.runner import substitutes
from mlx_bulk.runner.checkpoint import find
from mlx_bulk.runner.model import load
from mlx_bulk.runner.substitutes import substitute
from mlx_lm.models import activations, base
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from ..checkpoints import PLENTY, write_checkpoint
from . import tiny

llama: Any = importlib.import_module("mlx_lm.models.llama")
gemma3_text: Any = importlib.import_module("mlx_lm.models.gemma3_text")

pytestmark = pytest.mark.skipif(device_name() != "cpu" or not backend.compiles(), reason="they serve the CPU, with g++")

USED = {
    "llama": ("attention", "swiglu"),
    "qwen3": ("attention", "swiglu"),
    "gemma3_text": ("attention", "gelu"),
    "qwen3_moe": ("attention", "swiglu"),
    "mixtral": ("attention", "swiglu"),
    "mamba": ("silu", "swiglu"),
    "mamba2": ("silu", "swiglu"),
    "lfm2": ("attention", "swiglu"),
    "gemma2": ("gelu",),
}


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    """Each test starts and ends with mlx-lm as it came."""
    networks = [tiny.build(name) for name in USED]
    for network in networks:
        substitutes.restore(network)
    yield
    for network in networks:
        substitutes.restore(network)


def put(name: str) -> Any:
    network = tiny.build(name)
    assert substitute(network, tiny.VOCABULARY, tiny.CONFIGS[name].get("sliding_window")) == USED[name]
    return network


@pytest.mark.parametrize("name", list(USED))
@pytest.mark.parametrize("length", [1, 9, 70, 150])
def test_logits_are_those_of_mlx_lm(name: str, length: int):
    """Rounding alone: 1e-4 of a spread above 1, the contract's for float32."""
    network = tiny.build(name)
    tokens = mx.array([tiny.prompts_of([length])[0], tiny.prompts_of([length], seed=1)[0]])
    truth = np.array(network(tokens))
    put(name)
    found = np.array(network(tokens))
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-4 * max(1.0, float(truth.std())))


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_decode_on_a_cache_is_that_of_mlx_lm(name: str):
    """A prefill beyond the window, a chunk on top of it, decode steps."""
    network, ids = tiny.build(name), tiny.prompts_of([90])[0]

    def stepped() -> Any:
        caches = make_prompt_cache(network)
        parts = [network(mx.array([ids[a:b]]), cache=caches) for a, b in ((0, 70), (70, 85), (85, 86), (86, 87), (87, 90))]
        return np.array(mx.concatenate(parts, axis=1))

    truth = stepped()
    put(name)
    np.testing.assert_allclose(stepped(), truth, rtol=0, atol=1e-4 * max(1.0, float(truth.std())))


def call(**changed: Any) -> tuple[mx.array, bool]:
    """llama's attention as its layers call it, and whether the substitute computed it."""
    q, kv = mx.random.normal((1, 4, 3, 16)), mx.random.normal((1, 2, 3, 16))
    arguments: dict[str, Any] = {"queries": q, "keys": kv, "values": kv, "cache": KVCache(), "scale": 0.25, "mask": "causal"} | changed
    substitutes._taken.clear()  # pyright: ignore[reportPrivateUsage]
    found = llama.scaled_dot_product_attention(**arguments)
    return found, "attention" in substitutes._taken  # pyright: ignore[reportPrivateUsage]


def test_attention_falls_back_on_the_original():
    put("llama")
    assert call()[1]
    assert not call(sinks=mx.zeros(4))[1]
    halves = {name: mx.zeros((1, heads, 3, 16), mx.float16) for name, heads in (("queries", 4), ("keys", 2), ("values", 2))}
    found, ours = call(**halves)
    assert (found.dtype, ours) == (mx.float16, False)
    cache = QuantizedKVCache(group_size=32, bits=8)
    keys, values = cache.update_and_fetch(mx.random.normal((1, 2, 3, 32)), mx.random.normal((1, 2, 3, 32)))
    assert not call(queries=mx.random.normal((1, 4, 3, 32)), keys=keys, values=values, cache=cache)[1]


def test_activations_fall_back_on_the_original():
    put("llama")
    x = mx.random.normal((3, 8)).astype(mx.bfloat16)
    found = llama.swiglu(x, x)
    assert found.dtype == mx.bfloat16
    assert mx.array_equal(found, activations.swiglu(x, x))


def test_only_the_model_files_names_change():
    put("llama")
    put("gemma3_text")
    assert llama.scaled_dot_product_attention is not base.scaled_dot_product_attention
    assert gemma3_text.nn is not nn
    assert gemma3_text.nn.Linear is nn.Linear
    assert nn.gelu_approx is not gemma3_text.nn.gelu_approx


def test_what_the_file_of_activations_compiles_stays_mlx_lm_s():
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = activations.XieLU()

    network = tiny.build("llama")
    network.model.layers[0].mlp.spare = Layer()
    try:
        put("llama")
        assert vars(activations)["nn"] is nn
    finally:
        del network.model.layers[0].mlp.spare


def test_what_disagrees_is_put_back_and_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    right = attention.on_cpu
    monkeypatch.setattr(attention, "on_cpu", lambda q, k, v, scale, mask: right(q, k, v, scale, None))  # pyright: ignore[reportUnknownLambdaType]
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert substitute(tiny.build("llama"), tiny.VOCABULARY, None) == ()
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "mlx-lm's own attention and activations stay in place, slower on this CPU"
    ]
    assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention
    assert llama.swiglu is activations.swiglu


def test_what_crashes_is_put_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def crash(*arrays: Any) -> Any:
        raise ValueError("no such shape")

    monkeypatch.setattr(attention, "on_cpu", crash)
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert substitute(tiny.build("llama"), tiny.VOCABULARY, None) == ()
    assert "no such shape" in caplog.text
    assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention


def test_without_a_compiler_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "compiles", lambda: False)
    assert substitute(tiny.build("llama"), tiny.VOCABULARY, None) == ()
    assert llama.swiglu is activations.swiglu


def test_a_model_in_half_precision_keeps_its_own_and_takes_nothing_from_others():
    put("llama")
    network = llama.Model(llama.ModelArgs.from_dict({**tiny.CONFIGS["llama"], "model_type": "llama"}))
    network.set_dtype(mx.bfloat16)
    assert substitute(network, tiny.VOCABULARY, None) == ()
    assert call()[1]  # float32 models of the same file go on with ours


def test_quantized_weights_that_stay_quantized_are_served():
    network = llama.Model(llama.ModelArgs.from_dict({**tiny.CONFIGS["llama"], "model_type": "llama"}))
    nn.quantize(network, group_size=32, bits=8)
    assert substitute(network, tiny.VOCABULARY, None) == USED["llama"]


def test_a_loaded_model_says_what_is_in_use(tmp_path: Path):
    config = ModelConfig(path=str(write_checkpoint(tmp_path / "model")))
    assert load(config, find(config), PLENTY).substitutes == USED["llama"]
    assert load(config.model_copy(update={"dtype": "float16"}), find(config), PLENTY).substitutes == ()

"""Tests fast kernels in mlx-lm's models: the same logits, and the original functions wherever ours do not fit."""

import contextlib
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
from mlx_bulk.kernels import attention, native
from mlx_bulk.runner.checks.padding_probe import probe
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.layers.kernel_injection import substitute
from mlx_bulk.runner.layers.kv_cache import leaves_pads_out, make_caches
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import load_model
from mlx_bulk.runner.patched_layers import cpu_embeddings, cpu_layers
from mlx_lm.models import activations, base
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

from ...checkpoints import PLENTY, write_checkpoint
from ...kernels.without_compiler import remove_compiler
from ...zoo import networks
from ...zoo.configs import CONFIGS
from ..support import kernel_pairs, tiny
from ..support.kernel_models import USED, call, llama, needed, originals, put
from ..support.kernel_pairs import Both

gemma3_text: Any = importlib.import_module("mlx_lm.models.gemma3_text")

pytestmark = needed


@pytest.fixture(autouse=True)
def as_it_came() -> Iterator[None]:
    """Each test starts and ends with mlx-lm's own."""
    with originals():
        yield


@pytest.mark.parametrize("name", list(USED))
@pytest.mark.parametrize("length", [1, *(pytest.param(length, marks=pytest.mark.slow) for length in (9, 70)), 150])
def test_logits_are_those_of_mlx_lm(name: str, length: int):
    """Rounding alone: 1e-4 of a spread above 1, the contract's for float32."""
    network = tiny.build(name)
    tokens = mx.array([tiny.prompts_of([length])[0], tiny.prompts_of([length], seed=1)[0]])
    truth = np.array(network(tokens))
    put(name)
    found = np.array(network(tokens))
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-4 * max(1.0, float(truth.std())))


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        *((kind, True) for kind in ("llama", "llama, yarn", "phi3", "phi3, longrope", "granite", "olmo2", "gemma", "gemma2")),
        *((kind, False) for kind in ("qwen3_moe", "mixtral")),
    ],
)
def test_pads_are_left_out_where_whole_blocks_are_the_kernels(kind: str, left_out: bool):
    """Before and behind substitution: a plan asks a network that has mlx-lm's layers."""
    both = Both(kind)
    assert [leaves_pads_out(each) for each in both.networks] == [left_out, left_out]
    caches = make_caches(both.networks[1], 2, padded=True)
    for cache in caches:
        cache.prepare(lengths=[5, 1], right_padding=[0, 4])
    x = mx.random.normal((2, 5, 64))
    out = np.array(both.networks[1].model.layers[0](x, "causal", caches[0]))
    assert not out[1, 1:].any()  # experts make zeros of zeros, and take their time


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    ],
)
def test_pads_are_computed_where_the_kernel_does_not_serve_all_layers(changed: dict[str, Any]):
    plain, other = (
        llama.Model(llama.ModelArgs.from_dict({**tiny.CONFIGS["llama"], "model_type": "llama", **more})) for more in ({}, changed)
    )
    assert [leaves_pads_out(each) for each in (plain, other)] == [True, False]
    assert not leaves_pads_out(tiny.build("gemma3_text"))


def test_pads_are_computed_in_half_precision_and_with_foreign_quantization():
    network = kernel_pairs.network("phi3")
    assert leaves_pads_out(network)
    network.set_dtype(mx.float16)
    assert not leaves_pads_out(network)
    network.set_dtype(mx.float32)
    nn.quantize(network, group_size=32, bits=4)
    assert leaves_pads_out(network)
    other = kernel_pairs.network("phi3")
    nn.quantize(other, group_size=32, bits=4, mode="mxfp4")
    assert not leaves_pads_out(other)


def test_kernels_stay_where_a_batch_of_mlx_lm_is_wrong_and_ours_is_right():
    """mlx-lm's Nemotron-H loses the state of a padded row; our scan keeps it."""
    config = CONFIGS["nemotron_h"]
    network = networks.build("nemotron_h", config)
    kernel_injection.restore(network)
    assert probe(network, config["vocab_size"]).way == "joined"
    used = substitute(network, config["vocab_size"], None)
    assert {"attention", "linear", "state space"} <= set(used)
    assert probe(network, config["vocab_size"]).way == "padded"
    kernel_injection.restore(network)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss"])
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


def test_attention_falls_back_on_the_original():
    put("llama")
    assert call()[1]
    assert call(sinks=mx.zeros(4))[1]
    assert not call(sinks=mx.zeros(4, mx.float16))[1]
    halves = {name: mx.zeros((1, heads, 3, 16), mx.float16) for name, heads in (("queries", 4), ("keys", 2), ("values", 2))}
    found, ours = call(**halves)
    assert (found.dtype, ours) == (mx.float16, False)
    cache = QuantizedKVCache(group_size=32, bits=8)
    keys, values = cache.update_and_fetch(mx.random.normal((1, 2, 3, 32)), mx.random.normal((1, 2, 3, 32)))
    assert not call(queries=mx.random.normal((1, 4, 3, 32)), keys=keys, values=values, cache=cache)[1]


def test_attention_with_capped_scores_is_served_and_put_back():
    gear: Any = importlib.import_module("mlx_lm.models.gear")
    network, theirs = networks.build("gear", CONFIGS["gear"]), kernel_injection.GEAR_CAPPED
    assert substitute(network, CONFIGS["gear"]["vocab_size"], None)
    q, k = mx.random.normal((2, 4, 9, 16), key=mx.random.key(0)), mx.random.normal((2, 2, 9, 16), key=mx.random.key(1))
    kernel_injection.functions_used.clear()
    found = gear._softcap_attention(q, k, k, scale=2.0, softcap=3.0, mask="causal")
    assert "attention" in kernel_injection.functions_used
    np.testing.assert_allclose(found, theirs(q, k, k, 2.0, 3.0, "causal"), rtol=0, atol=5e-6)
    kernel_injection.restore(network)
    assert gear._softcap_attention is theirs


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


def test_compiled_activations_stay_those_of_mlx_lm():
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


def test_a_kernel_that_disagrees_is_put_back_with_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    right = attention.on_cpu
    monkeypatch.setattr(attention, "on_cpu", lambda q, k, v, scale, mask, sinks: right(q, k, v, scale, None, sinks))  # pyright: ignore[reportUnknownLambdaType]
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert substitute(tiny.build("llama"), tiny.VOCABULARY, None) == ()
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["mlx-lm's own layers stay in place, slower on this CPU"]
    assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention
    assert llama.swiglu is activations.swiglu


def test_a_kernel_that_crashes_is_put_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def crash(*arrays: Any) -> Any:
        raise ValueError("no such shape")

    monkeypatch.setattr(attention, "on_cpu", crash)
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert substitute(tiny.build("llama"), tiny.VOCABULARY, None) == ()
    assert "no such shape" in caplog.text
    assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention


def test_a_layer_that_stands_in_two_places_is_replaced_once():
    network = tiny.fresh()
    first, second = network.model.layers
    second.mlp.gate_proj = first.mlp.gate_proj
    assert substitute(network, tiny.VOCABULARY, None) == USED["llama"]
    assert type(second.mlp.gate_proj) is type(second.mlp.up_proj)
    kernel_injection.restore(network)
    assert type(second.mlp.gate_proj) is nn.Linear


def test_without_a_compiler_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "library", lambda: None)
    assert substitute(tiny.build("llama"), tiny.VOCABULARY, None) == ()
    assert llama.swiglu is activations.swiglu


@pytest.mark.cpu_path("NumPy computes where mlx has its own slow BLAS")
def test_without_a_compiler_and_a_fast_blas_numpy_multiplies_and_attends(monkeypatch: pytest.MonkeyPatch):
    remove_compiler(monkeypatch)
    assert substitute(tiny.build("llama"), tiny.VOCABULARY, None) == ("attention", "linear")
    assert llama.scaled_dot_product_attention is not base.scaled_dot_product_attention


def test_a_model_in_half_precision_keeps_its_own_and_takes_nothing_from_others():
    put("llama")
    network = llama.Model(llama.ModelArgs.from_dict({**tiny.CONFIGS["llama"], "model_type": "llama"})).eval()
    network.set_dtype(mx.bfloat16)
    assert substitute(network, tiny.VOCABULARY, None) == ()
    assert call()[1]  # float32 models of the same file go on with ours


def test_quantized_weights_that_stay_quantized_are_served():
    network = llama.Model(llama.ModelArgs.from_dict({**tiny.CONFIGS["llama"], "model_type": "llama"})).eval()
    nn.quantize(network, group_size=32, bits=8)
    assert substitute(network, tiny.VOCABULARY, None) == USED["llama"]


def test_layers_are_put_back():
    network = tiny.build("llama")
    classes = [type(layer) for _, layer in network.named_modules()]
    put("llama")
    assert type(network.model.layers[0].mlp.up_proj) is cpu_layers.FastLinear
    assert type(network.model.embed_tokens) is cpu_embeddings.FastEmbedding
    kernel_injection.restore(network)
    assert [type(layer) for _, layer in network.named_modules()] == classes


REFUSED: list[tuple[str, Any]] = [
    ("values of another length", {"values": mx.zeros((1, 2, 2, 16))}),
    ("values of other heads", {"values": mx.zeros((1, 1, 3, 16))}),
    ("more rows of queries", {"queries": mx.zeros((2, 4, 3, 16))}),
    ("wider queries", {"queries": mx.zeros((1, 4, 3, 32))}),
    ("a mask of more keys", {"mask": mx.ones((3, 9), mx.bool_)}),
    ("no keys", {"keys": mx.zeros((1, 2, 0, 16)), "values": mx.zeros((1, 2, 0, 16)), "mask": None}),
]


@pytest.mark.parametrize(("name", "changed"), REFUSED, ids=[name for name, _ in REFUSED])
def test_shapes_that_do_not_fit_raise_the_error_of_mlx(name: str, changed: dict[str, Any]):
    put("llama")
    kernel_injection.functions_used.clear()
    with contextlib.suppress(ValueError):
        call(**changed)
    assert "attention" not in kernel_injection.functions_used


def test_a_loaded_model_names_its_kernels(tmp_path: Path):
    config = ModelConfig(path=str(write_checkpoint(tmp_path / "model")))
    assert load_model(config, find_checkpoint(config), PLENTY).substitutes == USED["llama"]
    assert load_model(config.model_copy(update={"dtype": "float16"}), find_checkpoint(config), PLENTY).substitutes == ()

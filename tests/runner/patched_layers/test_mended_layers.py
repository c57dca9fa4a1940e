"""Tests what is mended in mlx-lm's layers.

Gemma 3's embeddings are scaled by the root of their size in float32, and by mlx-lm's rounded one in half precision. Gemma 2's attention
takes the mask of a batch. GPT-2's table of positions has an end.
"""

from math import sqrt
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.kernels import backend
from mlx_bulk.runner.layers.kv_cache import make_caches, prepare_padding
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers, patch_quantized_layers, unpatch_layers
from mlx_bulk.runner.patched_layers.mended_layers import CappedAttention, HalfExperts, ScaledEmbedding, experts_workspace, mend_layers
from mlx_bulk.runner.twins.tiny_twin import twin
from mlx_lm.models import gemma2, gemma3_text, gpt2, gpt_bigcode, llama
from mlx_lm.models.switch_layers import SwitchGLU, SwitchLinear

from ..support import tiny

HIDDEN = 96  # its root is not exact in bfloat16
SIZES: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": 6, "head_dim": 16, "vocab_size": 32}
HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
ROUNDED = float(mx.array(sqrt(HIDDEN), mx.bfloat16).astype(mx.float32))


def gemma() -> Any:
    return gemma3_text.Model(gemma3_text.ModelArgs(model_type="gemma3_text", **SIZES, **HEADS))


@pytest.mark.parametrize("patched", [False, True])
def test_vectors_are_scaled_by_the_whole_root_and_the_head_is_not(patched: bool):
    network = gemma()
    plain, ids = np.array(network.model.embed_tokens.weight), mx.array([[3, 5]])
    head = np.array(network.model.embed_tokens.as_linear(mx.ones((1, HIDDEN))))
    mend_layers(network)
    if patched:
        patch_layers(network)
    vectors = np.array(network.model.embed_tokens(ids)) * np.float32(ROUNDED)  # as the body goes on
    np.testing.assert_allclose(vectors[0], plain[[3, 5]].astype(np.float64) * sqrt(HIDDEN), rtol=3e-7)
    assert abs(ROUNDED / sqrt(HIDDEN) - 1) > 1e-4
    np.testing.assert_allclose(np.array(network.model.embed_tokens.as_linear(mx.ones((1, HIDDEN)))), head, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("patch", [None, patch_quantized_layers, patch_layers])
def test_quantized_vectors_are_scaled_as_those_that_are_dequantized(patch: Any):
    network, ids = gemma(), mx.array([[3, 5]])
    nn.quantize(network, group_size=32, bits=4)
    embedding: Any = network.model.embed_tokens
    plain, head = np.array(embedding(ids)), np.array(embedding.as_linear(mx.ones((1, HIDDEN))))
    mend_layers(network)
    if patch is not None:
        patch(network)
    vectors = np.array(embedding(ids)) * np.float32(ROUNDED)  # as the body goes on
    np.testing.assert_allclose(vectors, plain.astype(np.float64) * sqrt(HIDDEN), rtol=3e-7)
    np.testing.assert_allclose(np.array(embedding.as_linear(mx.ones((1, HIDDEN)))), head, rtol=1e-4, atol=1e-5)
    assert isinstance(embedding, nn.QuantizedEmbedding)
    assert embedding.parameters().keys() == {"weight", "scales", "biases"}


def test_it_is_not_done_twice_and_outlives_the_kernels():
    network = gemma()
    for _ in range(2):
        mend_layers(network)
    patch_layers(network)
    unpatch_layers(network)
    embedding = network.model.embed_tokens
    assert type(embedding) is ScaledEmbedding
    assert embedding.factor == pytest.approx(sqrt(HIDDEN) / ROUNDED)
    assert embedding.parameters().keys() == {"weight"}


def test_half_precision_and_other_models_stay():
    half, packed = gemma(), gemma()
    nn.quantize(packed, group_size=32, bits=4)
    for network in (half, packed):
        network.set_dtype(mx.bfloat16)
    other = llama.Model(llama.ModelArgs(model_type="llama", rms_norm_eps=1e-5, **SIZES, **HEADS))
    for network in (half, other):
        mend_layers(network)
        assert type(network.model.embed_tokens) is nn.Embedding
    mend_layers(packed)
    assert type(packed.model.embed_tokens) is nn.QuantizedEmbedding


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("rows", [2, 3])
def test_gemma_2_takes_a_batch_s_mask(rows: int, patched: bool):
    """With as many rows as heads of keys mlx-lm takes other rows' masks without a word. 1e-4: the contract's for float32."""
    network = tiny.build("gemma2")
    prompts = tiny.prompts_of([9, 4, 6][:rows])
    truth = [np.array(network(mx.array([ids]), cache=make_caches(network, 1, padded=False)))[0] for ids in prompts]
    if patched:
        patch_layers(network)
    try:
        caches = make_caches(network, rows, padded=True)
        prepare_padding(caches, [len(ids) for ids in prompts], 9)
        found = np.array(network(mx.array([ids + [0] * (9 - len(ids)) for ids in prompts]), cache=caches))
    finally:
        unpatch_layers(network)
    for row, right in zip(found, truth, strict=True):
        np.testing.assert_allclose(row[: len(right)], right, rtol=0, atol=1e-4)


def test_a_twin_is_mended_where_its_model_is():
    for network, attention in ((tiny.build("gemma2"), CappedAttention), (tiny.as_it_came("gemma2"), gemma2.Attention)):
        assert {type(layer.self_attn) for layer in twin(network, tiny.CONFIGS["gemma2"] | {"model_type": "gemma2"}).layers} == {attention}


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("patch", [None, patch_quantized_layers, patch_layers])
@pytest.mark.parametrize("name", ["gpt2", "gpt_bigcode"])
def test_positions_behind_a_table_are_its_last(name: str, patch: Any, quantized: bool):
    """In a static batch a row that has ended at the last position goes on with the others."""
    sizes: dict[str, Any] = {"n_embd": 64, "n_head": 4, "n_layer": 1, "n_positions": 16, "layer_norm_epsilon": 1e-5, "vocab_size": 32}
    if name == "gpt2":
        network: Any = gpt2.Model(gpt2.ModelArgs(model_type=name, n_ctx=16, **sizes))
        body = network.model
    else:
        network = gpt_bigcode.Model(gpt_bigcode.ModelArgs(model_type=name, n_inner=64, **sizes))
        body = network.transformer
    if quantized:
        nn.quantize(network, group_size=32, bits=8)
    truth = np.array(body.wpe(mx.arange(16)))
    for _ in range(2):
        mend_layers(network)
    if patch is not None:
        patch(network)
    found = np.array(body.wpe(mx.array([[0, 7, 15], [16, 17, 10**6]])))
    np.testing.assert_array_equal(found, truth[[[0, 7, 15], [15, 15, 15]]])
    assert np.isfinite(np.array(network(mx.zeros((1, 40), mx.int32)))).all()


@pytest.mark.skipif(backend.device_name() != "cpu", reason="a GPU multiplies experts in half precision")
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("tokens", [3, 60])  # of many, mlx-lm sorts the rows by their experts
def test_experts_in_half_precision_are_multiplied_on_a_cpu(dtype: mx.Dtype, tokens: int):
    """mlx refuses: "[GatherMM::eval] Currently only supports float32"."""
    layer: Any = SwitchGLU(16, 24, 4, bias=True)
    rng = np.random.default_rng(0)
    for part in (layer.gate_proj, layer.up_proj, layer.down_proj):
        part.weight, part.bias = (mx.array(rng.normal(0, 0.3, array.shape)) for array in (part.weight, part.bias))
    layer.set_dtype(dtype)
    mend_layers(layer)
    layer.eval()
    assert isinstance(layer.up_proj, HalfExperts)
    x, chosen = mx.array(rng.normal(0, 1, (1, tokens, 16))).astype(dtype), rng.integers(0, 4, (1, tokens, 2))
    found = layer(x, mx.array(chosen))
    assert found.dtype == dtype

    def product(y: Any, part: Any, expert: int) -> Any:
        weight, bias = (np.array(array[expert].astype(mx.float32), np.float64) for array in (part.weight, part.bias))
        return weight @ y + bias

    rows = np.array(x.astype(mx.float32), np.float64)[0]
    for token, experts in enumerate(chosen[0]):
        for place, expert in enumerate(experts):
            gate, up = (product(rows[token], part, expert) for part in (layer.gate_proj, layer.up_proj))
            truth = product(gate / (1 + np.exp(-gate)) * up, layer.down_proj, expert)
            # each of three layers' results is rounded to 8 bits (bfloat16) or 11 (float16): some 2 %, or an eighth of that, of the largest
            bound = (0.03 if dtype == mx.bfloat16 else 0.004) * np.abs(truth).max()
            np.testing.assert_allclose(np.array(found[0, token, place].astype(mx.float32)), truth, rtol=0, atol=bound)


@pytest.mark.cpu_path("one expert at a time is turned into float32")
def test_experts_in_half_precision_take_the_memory_of_one_in_float32():
    layer: Any = SwitchGLU(64, 128, 32)
    layer.set_dtype(mx.bfloat16)
    mend_layers(layer)
    layer.eval()
    one = 64 * 128 * 4
    assert experts_workspace(layer) == one
    x, chosen = mx.random.normal((1, 8, 64)).astype(mx.bfloat16), mx.array(2 * np.arange(16).reshape(1, 8, 2))
    mx.eval(layer.parameters(), x)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(layer(x, chosen))
    assert mx.get_peak_memory() - before < 8 * one  # of 32; the rows' own arrays are smaller than two


@pytest.mark.skipif(backend.device_name() != "cpu", reason="a GPU multiplies experts in half precision")
def test_experts_in_float32_stay_mlx_lms():
    layer: Any = SwitchGLU(16, 24, 4)
    mend_layers(layer)
    assert type(layer.up_proj) is SwitchLinear
    assert experts_workspace(layer) == 0

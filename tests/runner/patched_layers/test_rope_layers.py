"""Tests rotary embeddings that turn by three positions: which number by which, and that rows without pictures see no change."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.kernels import native
from mlx_bulk.runner.caches.call_positions import CallPositions
from mlx_bulk.runner.layers.kv_cache import (
    finish_padding,
    fork_caches,
    join_caches,
    make_caches,
    merge_caches,
    prepare_padding,
    read_only_views,
    select,
    trim,
    trimmable,
    widen_caches,
)
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.patched_layers.call_context import CallContext, context_of
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers, unpatch_layers
from mlx_bulk.runner.patched_layers.rope_layers import SectionedRope, Sections, sections_of, turn_by_sections
from mlx_lm.models import qwen2_vl
from mlx_lm.models.rope_utils import Llama3RoPE, ProportionalRoPE, SuScaledRoPE, YarnRoPE
from numpy.typing import NDArray

from ..support import tiny
from ..support.picture_truth import turned_plainly

SECTIONS = Sections((2, 3, 3))
TEXT = {
    "model_type": "qwen2_vl_text",
    "vocab_size": tiny.VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


ROPES: dict[str, Any] = {
    "llama 3": lambda: Llama3RoPE(12, scaling_config={"factor": 8.0, "original_max_position_embeddings": 16}),
    "yarn": lambda: YarnRoPE(12, scaling_factor=4.0, original_max_position_embeddings=16),
    "yarn, neighbours": lambda: YarnRoPE(12, traditional=True, scaling_factor=4.0, original_max_position_embeddings=16),
    "longrope": lambda: SuScaledRoPE(
        12, max_position_embeddings=512, original_max_position_embeddings=64, long_factor=[1.0, 1.1, 1.3, 2, 3, 4]
    ),
    "proportional": lambda: ProportionalRoPE(12, 6, factor=2.0),
}


@pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")
@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("offset", [0, 100, mx.array([3, 40])])
def test_rotations_by_frequencies_of_their_own_are_those_of_mlx_lm(kind: str, offset: int | mx.array):
    network, x, rope = nn.Module(), mx.random.normal((2, 3, 5, 16)), ROPES[kind]()
    network.rope = rope

    def turned() -> list[NDArray[np.float32]]:
        settings = [{}, {"inverse": True}] if "yarn" in kind else [{}]
        return [np.array(rope(x, offset=offset, **each)) for each in settings]

    truth = turned()
    patch_layers(network)
    found = turned()
    assert context_of(network).used == {"rotation"}
    np.testing.assert_allclose(found, truth, rtol=0, atol=5e-6)  # cosines and sines of angles up to 100 radians, rounded
    unpatch_layers(network)
    rope._freqs = rope._freqs * 2  # as one who mends a rotation does
    mended = turned()
    assert np.abs(mended[0] - truth[0]).max() > 1e-2
    patch_layers(network)
    np.testing.assert_allclose(turned(), mended, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("sections", "axes"),
    [
        (Sections((2, 3, 3)), "tthhhwww"),
        (Sections((3, 3, 2), turns=True), "thwthwth"),
        (Sections((4, 2, 2), turns=True), "thwthwtt"),
        (Sections((24, 20, 20), turns=True), "thw" * 20 + "tttt"),
        (Sections((16, 24, 24)), "t" * 16 + "h" * 24 + "w" * 24),
    ],
)
def test_which_number_turns_by_which_position(sections: Sections, axes: str):
    assert "".join("thw"[axis] for axis in sections.axes) == axes


def test_sections_of_both_dialects():
    plain, turns = Sections((16, 24, 24)), Sections((24, 20, 20), turns=True)
    assert sections_of({"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}) == plain
    assert sections_of({"model_type": "qwen2_5_vl", "text_config": {"rope_parameters": {"mrope_section": [16, 24, 24]}}}) == plain
    scaling = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    assert sections_of({"model_type": "another", "text_config": {"rope_scaling": scaling}}) == turns
    assert sections_of({"model_type": "qwen3_vl_moe", "text_config": {"rope_parameters": {"mrope_section": [24, 20, 20]}}}) == turns
    assert sections_of({"model_type": "llama", "rope_scaling": None, "rope_parameters": {"rope_theta": 1e4}}) is None


@pytest.mark.parametrize("sections", [SECTIONS, Sections((3, 3, 2), turns=True)])
def test_it_turns_by_three_positions(sections: Sections):
    rng = np.random.default_rng(0)
    x, positions = rng.standard_normal((3, 2, 5, 16)), rng.integers(0, 300, (3, 3, 5))
    rope: Any = nn.RoPE(16, traditional=False, base=10000.0)
    even = np.array([False, True, False])
    positions[:, 1] = 41 + np.arange(5)
    rope.__class__ = SectionedRope
    rope.axes, context = sections.axes, CallContext()
    object.__setattr__(rope, "_context", context)
    context.positions = CallPositions(positions[0, :, 0], positions.astype(np.int32), even)
    found = np.array(rope(mx.array(x.astype(np.float32)), offset=77))
    # float32 angles of up to 300 are off by 2e-5
    np.testing.assert_allclose(found, turned_plainly(x, positions, sections.axes, 1e4), rtol=0, atol=1e-4)
    context.positions = CallPositions(np.array([5, 0, 9]))
    found = np.array(rope(mx.array(x.astype(np.float32)), offset=77))
    even = np.broadcast_to(np.array([5, 0, 9])[:, None] + np.arange(5), (3, 3, 5))
    np.testing.assert_allclose(found, turned_plainly(x, even, sections.axes, 1e4), rtol=0, atol=1e-5)


def network(sectioned: bool, kernels: bool) -> Any:
    mx.random.seed(0)
    made: Any = qwen2_vl.Model(qwen2_vl.ModelArgs.from_dict({"model_type": "qwen2_vl", "text_config": TEXT}))
    made.eval()
    if sectioned:
        turn_by_sections(made, SECTIONS)
    if kernels:
        patch_layers(made)
    mx.eval(made.parameters())
    return made


KERNELS = [False, pytest.param(True, marks=pytest.mark.skipif(native.library() is None, reason="they serve the CPU, with g++"))]


def ids(rows: int, n: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, tiny.VOCABULARY, (rows, n)).astype(np.int32))


def padded_story(model: Any) -> list[mx.array]:
    """Ragged calls, steps, a fork, a row that leaves, one that joins, a prefix for two."""
    net, out = Network(model), list[mx.array]()
    caches, lengths = make_caches(model, 3, padded=True), [9, 4, 7]
    prepare_padding(caches, lengths, 9)
    first = net(ids(3, 5), caches, lengths=lengths)
    second = net(ids(3, 4, 1), caches, lengths=[n - 5 for n in lengths])
    finish_padding(caches)
    out += [first[0], first[1, :4], first[2], second[0], second[2, :2]]
    select(caches, [2, 0, 0], 3, padded=True)
    out.append(net(ids(3, 1, 2), caches))
    prefix = make_caches(model, 1, padded=False)
    net(ids(1, 6, 3), prefix, read="nothing")
    joined = merge_caches(model, [prefix, make_caches(model, 1, padded=False)])
    select(joined, [0, 0], 2, padded=True)
    caches = join_caches([caches, joined])
    return [*out, net(ids(5, 2, 4), caches), net(ids(5, 1, 5), caches)]


def plain_story(model: Any) -> list[mx.array]:
    """The scorer's calls: rows of one length, a prefix for three rows, taken back, views of it, and a fork."""
    net, out = Network(model), list[mx.array]()
    prefix = make_caches(model, 1, padded=False)
    out.append(net(ids(1, 6), prefix))
    rows = widen_caches(prefix, 3)
    out.append(net(ids(3, 5, 1), rows, lengths=[5, 5, 5]))
    assert trimmable(rows, 5)
    trim(rows, 5)
    select(rows, [1, 0], 3, padded=False)
    out.append(net(ids(2, 4, 2), rows)[:, -1:])
    out.append(net(ids(2, 1, 3), fork_caches(rows, [1, 1], 2, padded=False)))
    out.append(net(ids(2, 4, 4), read_only_views(prefix)))
    return [*out, net(ids(2, 3, 5), None)]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("story", [padded_story, plain_story])
def test_rows_without_pictures_have_the_same_bits(story: Any, kernels: bool):
    truth, found = (story(network(sectioned, kernels)) for sectioned in (False, True))
    for one, right in zip(found, truth, strict=True):
        assert np.array_equal(np.array(one), np.array(right))


@pytest.mark.skipif(native.library() is None, reason="they serve the CPU, with g++")
def test_whole_blocks_serve_and_can_be_taken_out_and_put_in():
    model = network(sectioned=True, kernels=True)
    padded_story(model)
    assert "block" in context_of(model).used
    truth = padded_story(network(sectioned=False, kernels=False))
    unpatch_layers(model)
    for one, right in zip(padded_story(model), truth, strict=True):
        assert np.array_equal(np.array(one), np.array(right))
    patch_layers(model)
    context_of(model).used.clear()
    padded_story(model)
    assert "block" in context_of(model).used


def test_sections_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"cannot turn by the sections \[2, 2, 2\]"):
        turn_by_sections(network(sectioned=False, kernels=False), Sections((2, 2, 2)))

"""Encoders with the CPU's kernels: the same states, in each family, and mlx's own layers for what the kernels are not made for."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.nn.utils import value_and_grad
from mlx_bulk.kernels.blocks.encoder_block import PackedBlock
from mlx_bulk.runner.encoders.cpu_blocks import packed_bytes, substitute_blocks
from mlx_bulk.runner.encoders.encoder import Encoder
from mlx_bulk.runner.layers.kernel_injection import restore
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.patched_layers.cpu_blocks import BUILT
from mlx_bulk.runner.patched_layers.layer_patching import is_patched

from ...encoder_checkpoints import TINY_ENCODERS, tiny_bert, tiny_modernbert
from ..support.encoder_calls import batch_states, opened, random_rows
from ..support.kernel_models import needed

pytestmark = needed

LENGTHS = [1, 40, 7, 100]
VOCABULARY = 320
NEAR = 2e-5  # float32 on both sides: sums in another order
USED = ("block", "gelu", "linear", "norm")
# Silu is mlx's in the trial without whole blocks.
NAMES = {"nomic_bert": ("block", "linear", "norm")}


@pytest.fixture
def bert(tmp_path: Path) -> Iterator[Encoder]:
    encoder = opened(tiny_bert(tmp_path / "bert"))
    yield encoder
    restore(encoder)


@pytest.mark.parametrize("family", TINY_ENCODERS)
def test_states_stay_the_same(tmp_path: Path, family: str):
    encoder, rows = opened(TINY_ENCODERS[family](tmp_path / "model")), random_rows(LENGTHS)
    expected = batch_states(encoder, rows)
    assert substitute_blocks(encoder, VOCABULARY) == NAMES.get(family, USED)
    context = context_of(encoder)
    context.used.clear()
    for found in (batch_states(encoder, rows), [batch_states(encoder, [row])[0] for row in rows]):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=NEAR)
    assert "block" in context.used
    restore(encoder)
    assert not is_patched(encoder)
    for ours, theirs in zip(batch_states(encoder, rows), expected, strict=True):
        assert np.array_equal(ours, theirs)


def test_a_row_is_the_same_alone_and_in_a_batch(bert: Encoder):
    """Bit for bit, which deterministic mode needs."""
    substitute_blocks(bert, VOCABULARY)
    rows = random_rows(LENGTHS)
    together = batch_states(bert, rows)
    for row, states in zip(rows, together, strict=True):
        assert np.array_equal(batch_states(bert, [row])[0], states)


def test_changed_weights_are_packed_again(bert: Encoder):
    substitute_blocks(bert, VOCABULARY)
    rows = random_rows(LENGTHS)
    before = batch_states(bert, rows)
    block: Any = bert.blocks[1]
    block.mlp_output.weight = block.mlp_output.weight * 2
    after = batch_states(bert, rows)
    assert np.abs(after[1] - before[1]).max() > 0.01
    restore(bert)
    np.testing.assert_allclose(after[1], batch_states(bert, rows)[1], rtol=0, atol=NEAR)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_the_bytes_of_packed_weights_are_known_before_they_are_packed(tmp_path: Path, family: str):
    encoder = opened(TINY_ENCODERS[family](tmp_path / "model"))
    known = packed_bytes(encoder)
    assert "block" in substitute_blocks(encoder, VOCABULARY)  # its trial packs all
    held = [block.__dict__[BUILT].block._held for block in encoder.modules() if BUILT in block.__dict__]
    assert len(held) > 1
    assert packed_bytes(encoder) == known
    # a gated layer's two halves are packed apart, each to whole vectors
    packed = ("qkv", "output", "mlp_input", "gate", "mlp_output")
    assert known == pytest.approx(
        sum(array.nbytes for of in held for name, array in of.items() if name in packed), rel=0.2 * (family != "bert")
    )
    restore(encoder)


def test_a_part_that_is_not_ours_leaves_the_block_to_mlx(bert: Encoder):
    """Its other parts still use the kernels for single layers."""
    substitute_blocks(bert, VOCABULARY)
    rows, context = random_rows(LENGTHS), context_of(bert)
    expected = batch_states(bert, rows)
    for block in bert.blocks:
        block.mlp_input = nn.QuantizedLinear.from_linear(block.mlp_input, group_size=32, bits=8)
    context.used.clear()
    found = batch_states(bert, rows)
    assert "block" not in context.used
    assert "linear" in context.used
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=0.2)  # of 8 bits


def test_half_precision_is_mlxs(bert: Encoder):
    bert.set_dtype(mx.float16)
    assert substitute_blocks(bert, VOCABULARY) == ()
    assert bert(mx.array([[5, 6, 7]]), [3]).dtype == mx.float16


def test_a_block_that_trains_has_gradients(bert: Encoder):
    tokens = mx.array([[5, 6, 7]])

    def loss() -> mx.array:
        return bert(tokens, [3]).square().sum()

    truth = value_and_grad(bert, loss)()[1]["blocks"][0]["qkv"]["weight"]
    substitute_blocks(bert, VOCABULARY)
    bert.train()
    np.testing.assert_allclose(value_and_grad(bert, loss)()[1]["blocks"][0]["qkv"]["weight"], truth, rtol=1e-4, atol=1e-5)


def test_a_copy_packs_its_own_weights(bert: Encoder):
    substitute_blocks(bert, VOCABULARY)
    rows = random_rows(LENGTHS)
    before = batch_states(bert, rows)
    twin = deepcopy(bert)
    for name in ("qkv", "mlp_input"):
        getattr(twin.blocks[0], name).weight *= 0
    batch_states(twin, rows)
    assert np.array_equal(batch_states(bert, rows)[1], before[1])


def test_wrong_states_put_mlxs_layers_back(bert: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    rows = random_rows(LENGTHS)
    expected = batch_states(bert, rows)
    monkeypatch.setattr(PackedBlock, "__call__", lambda self, x, lengths, bias: x * 1.01)
    assert substitute_blocks(bert, VOCABULARY) == ()
    assert not is_patched(bert)
    assert np.array_equal(batch_states(bert, rows)[1], expected[1])
    (said,) = caplog.messages
    assert said.startswith("mlx's own layers stay in place, slower on this CPU: with ours, states move by ")


def test_a_crash_puts_mlxs_layers_back(bert: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def crash(self: PackedBlock, x: mx.array, lengths: Any, bias: Any) -> mx.array:
        raise MemoryError("out of memory in a kernel")

    monkeypatch.setattr(PackedBlock, "__call__", crash)
    assert substitute_blocks(bert, VOCABULARY) == ()
    assert not is_patched(bert)
    assert "the model crashes (out of memory in a kernel)" in caplog.text


def test_a_window_is_tried_beyond_its_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """A kernel that sees the whole row is found out, also with the window of real checkpoints."""
    encoder = opened(tiny_modernbert(tmp_path / "model", local_attention=128))
    right = PackedBlock.__init__

    def blind(self: PackedBlock, w: Any, c: Any) -> None:
        right(self, w, c)
        self._call.window = -1  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(PackedBlock, "__init__", blind)
    assert substitute_blocks(encoder, VOCABULARY) == ()
    assert "states move by" in caplog.text

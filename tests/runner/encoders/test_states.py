"""States of whole encoders against the float64 specification of one row alone, in padded batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.encoders.mpnet import distance_buckets
from mlx_bulk.runner.encoders.registry import encoder_class

from ...encoder_checkpoints import TINY_ENCODERS, tiny_modernbert, tiny_mpnet, tiny_roberta
from ..support.encoder_calls import batch_states, config_of, opened, random_rows, weights_of
from ..support.encoder_truth import TRUTHS, bucket

LENGTHS = [1, 2, 30, 7, 100]
# Float32 against float64: products of 32 to 96 numbers of size 1 in two to four blocks.
NEAR = 2e-5
FAMILIES = pytest.mark.parametrize("family", TINY_ENCODERS)


def truth(folder: Path, rows: list[list[int]], types: list[list[int]] | None = None) -> list[Any]:
    config = config_of(folder)
    weights = {name: np.array(array, np.float64) for name, array in weights_of(folder).items()}
    of_rows = types or [None] * len(rows)
    return [TRUTHS[config["model_type"]](config, weights, row, kinds) for row, kinds in zip(rows, of_rows, strict=True)]


def assert_near(found: list[Any], expected: list[Any], bound: float = NEAR) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


@FAMILIES
def test_states_of_a_padded_batch_are_those_of_the_specification(tmp_path: Path, family: str) -> None:
    folder, rows = TINY_ENCODERS[family](tmp_path / "model"), random_rows(LENGTHS)
    assert_near(batch_states(opened(folder), rows), truth(folder, rows))


@FAMILIES
def test_a_row_in_a_batch_is_as_alone(tmp_path: Path, family: str) -> None:
    encoder, rows = opened(TINY_ENCODERS[family](tmp_path / "model")), random_rows(LENGTHS)
    assert_near(batch_states(encoder, rows), [batch_states(encoder, [row])[0] for row in rows], 1e-5)


@FAMILIES
def test_pads_may_be_any_id(tmp_path: Path, family: str) -> None:
    """Ids of pads and their types change no bit of the rows."""
    encoder, rows = opened(TINY_ENCODERS[family](tmp_path / "model")), random_rows([3, 20])
    expected = batch_states(encoder, rows, pad=0, extra=9)
    for pad in (1, 17):
        assert_near(batch_states(encoder, rows, pad=pad, extra=9), expected, 0)


@FAMILIES
def test_a_row_without_tokens_is_finite_and_changes_no_other(tmp_path: Path, family: str) -> None:
    encoder, rows = opened(TINY_ENCODERS[family](tmp_path / "model")), random_rows([12])
    tokens = mx.array([rows[0], [0] * 12])
    states = np.array(encoder(tokens, [12, 0]))
    assert np.isfinite(states).all()
    assert_near([states[0]], batch_states(encoder, rows), 1e-5)


@pytest.mark.parametrize("family", ["bert", "nomic_bert"])
def test_token_types_are_added(tmp_path: Path, family: str) -> None:
    folder, rows = TINY_ENCODERS[family](tmp_path / "model"), random_rows([9, 4])
    types = [[0] * 5 + [1] * 4, [0, 0, 1, 1]]
    encoder = opened(folder)
    states = batch_states(encoder, rows, types)
    assert_near(states, truth(folder, rows, types))
    assert np.abs(states[0] - batch_states(encoder, rows)[0]).max() > 0.1


@pytest.mark.parametrize("family", ["roberta", "modernbert", "mpnet", "distilbert"])
def test_types_change_nothing_where_a_model_has_none_or_one(tmp_path: Path, family: str) -> None:
    encoder, rows = opened(TINY_ENCODERS[family](tmp_path / "model")), random_rows([5])
    assert_near(batch_states(encoder, rows, [[0, 0, 1, 1, 1]]), batch_states(encoder, rows), 0)


@pytest.mark.parametrize("tiny", [tiny_roberta, tiny_mpnet])
def test_a_pad_that_a_text_spells_has_the_pads_position(tmp_path: Path, tiny: Callable[..., Path]) -> None:
    """RoBERTa's positions leave out the pad's id, also where the tokenizer has read it from the text."""
    folder = tiny(tmp_path / "model")
    rows = [[0, 50, 1, 60, 1, 1, 70, 2]]
    assert_near(batch_states(opened(folder), rows, extra=3), truth(folder, rows))


def test_a_window_hides_what_is_farther_away(tmp_path: Path) -> None:
    """One block with a window of 4 tokens each way: the token that changes is seen from 4 away, and from 5 away it is not."""
    encoder = opened(tiny_modernbert(tmp_path / "model", num_hidden_layers=1, layer_types=["sliding_attention"]))
    row = random_rows([20])[0]
    before, after = batch_states(encoder, [row])[0], batch_states(encoder, [[*row[:10], 5 + row[10] % 7, *row[11:]]])[0]
    moved = np.abs(before - after).max(axis=1) > 1e-6
    assert np.flatnonzero(moved).tolist() == list(range(6, 15))


def test_a_row_may_have_as_many_tokens_as_there_are_positions(tmp_path: Path) -> None:
    folder = tiny_roberta(tmp_path / "model", max_position_embeddings=40)
    encoder, most = opened(folder), 38  # 40 without those of the two ids up to the pad's
    assert type(encoder).max_positions(config_of(folder)) == most
    rows = random_rows([most])
    assert_near(batch_states(encoder, rows), truth(folder, rows))
    with pytest.raises(ModelError, match="a text of 39 tokens is longer than the model's 38 positions; cut texts to 38 tokens"):
        batch_states(encoder, random_rows([most + 1]))


@FAMILIES
def test_half_precision_stays(tmp_path: Path, family: str) -> None:
    """Masks, biases and rotations do not widen what a device computes in 16 bits."""
    encoder, rows = opened(TINY_ENCODERS[family](tmp_path / "model")), random_rows([4, 30])
    exact = batch_states(encoder, rows)
    encoder.set_dtype(mx.float16)
    tokens = mx.array([[*row, *[0] * (30 - len(row))] for row in rows])
    states = encoder(tokens, [4, 30])
    assert states.dtype == mx.float16
    # 11 bits of numbers up to 4, through four blocks
    assert_near([np.array(states[1].astype(mx.float32))], exact[1:], 0.1)


@FAMILIES
def test_sizes_are_known_from_the_config_alone(tmp_path: Path, family: str) -> None:
    config = config_of(TINY_ENCODERS[family](tmp_path / "model"))
    kind = encoder_class(config)
    assert kind is not None
    assert (kind.max_positions(config), kind.hidden_size(config)) == (128, 32)


def test_distances_of_mpnet_fall_into_buckets() -> None:
    distances = np.arange(-600, 601)
    assert distance_buckets(distances).tolist() == [bucket(int(distance)) for distance in distances]

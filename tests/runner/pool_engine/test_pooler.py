"""Tests the engine of pooling models: vectors in their places, batches within limits, steady rows, equal texts once, bad vectors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.checks.pooling_check import fixed_slots_alike
from mlx_bulk.runner.core.outcomes import Failure, Pooled
from mlx_bulk.runner.core.requests import PoolRequest
from mlx_bulk.runner.pool_engine.pooler import Pooler
from mlx_bulk.runner.scheduler.pool_batches import PORTION_BATCHES

from ..support.pooling_models import (
    DIMENSIONS,
    WordTable,
    assert_true_vectors,
    one_each,
    pool_windows,
    pooling_setup_of,
    text,
    texts_of,
    tiny_embedder,
)
from ..support.tiny import VOCABULARY

LENGTHS = (5, 30, 1, 17, 17, 9, 2, 90, 3, 12, 1, 2)
MIXED = [
    PoolRequest(0, (text([3, 4, 5]), text([9], types=[1]), text([3, 4, 5]))),
    PoolRequest(1, ()),
    PoolRequest(2, (text(range(20), start=7), text(range(20)), text(range(20), types=[0] * 10 + [1] * 10))),
    PoolRequest(5, tuple(texts_of((1, 40, 2)))),
    PoolRequest(6, (text([3, 4, 5]),)),
]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("limits", [{}, {"rows": 1}, {"tokens": 8}, {"equal_lengths": True}, {"room": 60.0}])
def test_each_row_gets_the_vectors_of_its_inputs_in_their_order(limits: dict[str, Any], static: bool):
    outcomes, pooler = pool_windows(pooling_setup_of(WordTable(), static=static, **limits), MIXED, [replace(MIXED[0], row=9)])
    assert_true_vectors([*MIXED, replace(MIXED[0], row=9)], outcomes)
    assert pooler.progress.prompt == sum(r.text_tokens for r in MIXED) + MIXED[0].text_tokens
    empty = next(o for o in outcomes if o.row == 1)
    assert isinstance(empty, Pooled)
    assert empty.values.shape == (0, DIMENSIONS)


def test_batches_keep_to_rows_tokens_and_memory_and_a_long_text_goes_alone():
    network = WordTable()
    setup = pooling_setup_of(network, rows=3, tokens=40, room=900.0, pair_bytes=1.0)
    assert_true_vectors(one_each(texts_of(LENGTHS)), pool_windows(setup, one_each(texts_of(LENGTHS)))[0])
    # 17 + 17 * 17 bytes twice are 612, three would not fit 40 tokens; 90 tokens and 30 take more than there is, and go alone
    assert network.calls == [(1, 90), (1, 30), (2, 17), (3, 12), (3, 3), (2, 1)]


def test_texts_of_one_length_alone_share_a_batch_where_pads_change_vectors():
    network = WordTable()
    pool_windows(pooling_setup_of(network, equal_lengths=True), one_each(texts_of(LENGTHS)))
    assert sorted(network.calls, reverse=True) == [(2, 17), (2, 2), (2, 1), (1, 90), (1, 30), (1, 12), (1, 9), (1, 5), (1, 3)]


def test_equal_texts_of_a_window_are_computed_once():
    same = texts_of((7, 7, 9))
    requests = [*one_each([*same, *same, *same]), PoolRequest(9, (same[0], replace(same[0], start=2)))]
    network = WordTable()
    outcomes, pooler = pool_windows(pooling_setup_of(network), requests)
    assert_true_vectors(requests, outcomes)
    assert (pooler.progress.prefilled, sum(rows for rows, _ in network.calls)) == (7 + 7 + 9 + 7, 4)
    assert pooler.progress.prompt == sum(r.text_tokens for r in requests)


def test_in_deterministic_mode_each_is_computed():
    same = texts_of((8, 8))
    network = WordTable()
    pool_windows(pooling_setup_of(network, rows=4, static=True), one_each([*same, *same]))
    assert network.calls == [(4, 8)]


def test_rows_are_finished_in_portions():
    """After each portion of batches the rows before it are out, however long the window's other rows are."""
    lengths = np.random.default_rng(1).integers(4, 17, 2000).tolist()
    setup = pooling_setup_of(WordTable(), rows=4, tokens=16)
    rows = [o.row for o in pool_windows(setup, one_each(texts_of(lengths)))[0]]
    assert sorted(rows) == list(range(2000))
    widest = max(np.abs(np.array(rows) - np.arange(2000)))
    assert widest <= PORTION_BATCHES * 16  # a portion has at most so many rows
    assert rows != sorted(rows)  # longest first within a portion


def test_the_engine_stops_between_two_batches():
    network = WordTable()
    pooler, windows = Pooler(pooling_setup_of(network, rows=2)), iter([one_each(texts_of((9,) * 10))])
    found = list(pooler.run(lambda wait: next(windows, None), lambda: len(network.calls) == 2))
    assert [o.row for o in found] == [0, 1, 2, 3]


def test_watchers_learn_what_runs():
    told: list[set[int]] = []
    words: list[str] = []
    network = WordTable(lambda rows, width: bool(words.append(pooler.progress.activity.now)))
    pooler = Pooler(pooling_setup_of(network, rows=2))
    pooler.progress.report_to(pooler.progress.activity, lambda rows: told.append(set(rows)))
    same = texts_of((4, 9, 4))
    windows = iter([one_each([*same, same[1]])])
    list(pooler.run(lambda wait: next(windows, None)))
    assert words == ["computing 2 texts of up to 9 tokens", "computing 1 texts of up to 4 tokens"]
    assert told == [{0, 1, 3}, {2}]
    assert (pooler.progress.prefilled, pooler.progress.padded) == (4 + 9 + 4, 9 + 9 + 4)


@pytest.mark.parametrize(
    ("dtype", "cure"),
    [
        (mx.float16, "float16 holds no number above 65,504; set model.dtype to float32 or bfloat16"),
        (mx.float32, "the checkpoint's weights"),
    ],
)
def test_a_vector_that_is_not_finite_costs_its_row_and_no_other(dtype: mx.Dtype, cure: str):
    requests = [*one_each([text([1, 2]), text([1, 9]), text([9, 9, 1])]), PoolRequest(3, (text([1]), text([9])))]
    outcomes, _ = pool_windows(pooling_setup_of(WordTable(bad=9, dtype=dtype)), requests)
    failed = sorted((o for o in outcomes if isinstance(o, Failure)), key=lambda o: o.row)
    assert [(o.row, o.sample, o.stage, o.error) for o in failed] == [(row, 0, "pool", "NotFinite") for row in (1, 2, 3)]
    assert failed[0].message.startswith("6 of the model's 6 numbers for it are NaN or infinite: ")
    assert failed[2].message.startswith("text 2 of 2: 6 of")
    assert all(cure in o.message for o in failed)
    assert [o.row for o in outcomes if isinstance(o, Pooled)] == [0]


def _bytes(rows: int, lengths: Sequence[int], seed: int, mine: int = 2) -> bytes:
    requests = one_each(texts_of(lengths, seed))
    requests[mine] = replace(requests[mine], inputs=tuple(texts_of((11,), 99)))
    setup = pooling_setup_of(tiny_embedder(), static=True, rows=rows, tokens=256)
    alike = fixed_slots_alike(setup.model, VOCABULARY, setup.limits, setup.positions)
    outcomes, _ = pool_windows(setup.with_features(any_slot=alike), requests)
    (own,) = [o for o in outcomes if o.row == mine]
    assert isinstance(own, Pooled)
    return own.values.tobytes()


@pytest.mark.parametrize("rows", [5, 24])
def test_a_rows_bytes_do_not_depend_on_its_mates_in_deterministic_mode(rows: int):
    first = _bytes(rows, (9, 12, 11, 10, 11), 1)
    assert _bytes(rows, (11, 11, 11, 11), 2) == first
    assert _bytes(rows, (12,) * 24, 2, 20) == first  # no pads but its own
    assert _bytes(rows, (30, 2, 11), 3) == first
    assert _bytes(rows, (11,), 4, 0) == first


def test_fixed_batches_have_the_shapes_of_their_lengths_and_no_more_columns_than_positions():
    network = WordTable()
    setup = replace(pooling_setup_of(network, rows=24, tokens=240, static=True), positions=37)
    requests = one_each(texts_of((37, 33, 20, 9, 9)))
    assert_true_vectors(requests, pool_windows(setup, requests)[0])
    assert network.calls == [(6, 37), (6, 36), (12, 20), (24, 9)]


def test_where_a_slot_shows_texts_go_one_at_a_time_without_pads():
    network = WordTable()
    setup = pooling_setup_of(network, rows=4, static=True).with_features(any_slot=False)
    pool_windows(setup, one_each(texts_of((17, 9, 17))))
    assert network.calls == [(1, 17), (1, 17), (1, 9)]

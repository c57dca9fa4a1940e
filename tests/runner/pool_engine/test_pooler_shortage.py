"""Tests a lack of device memory while vectors are computed: batches shrink, what is done stays, and vectors do not change."""

import logging
from itertools import count

import pytest
from mlx_bulk.runner.core.errors import OutOfRoom
from mlx_bulk.runner.core.outcomes import Failure, Pooled
from mlx_bulk.runner.core.requests import PoolRequest
from mlx_bulk.runner.engine.oom_backoff import GIVEN_UP

from ..support.pooling_models import Refuses, WordTable, assert_true_vectors, one_each, pool_windows, pooling_setup_of, texts_of

LENGTHS = (5, 30, 1, 17, 17, 9, 2, 40, 3, 12, 1, 2, 30, 31, 32)
ASKED = [*one_each(texts_of(LENGTHS)), PoolRequest(15, tuple(texts_of(LENGTHS[:6], 1)))]


@pytest.mark.parametrize(
    "refuses",
    [lambda rows, width: rows > 3, lambda rows, width: rows > 1, lambda rows, width: rows * width > 60 and rows > 1],
    ids=["four rows", "two rows", "wide batches"],
)
def test_vectors_are_the_same_wherever_memory_runs_out(refuses: Refuses):
    network = WordTable(refuses)
    outcomes, pooler = pool_windows(pooling_setup_of(network, rows=8, tokens=256), ASKED[:7], ASKED[7:])
    assert_true_vectors(ASKED, outcomes)
    assert 0 < len(network.refused) <= 5
    assert pooler.progress.prompt == pooler.progress.prefilled == sum(r.text_tokens for r in ASKED)  # nothing that was done is repeated


def test_a_text_that_does_not_fit_alone_costs_its_rows_and_no_other(caplog: pytest.LogCaptureFixture):
    long, short, other = texts_of((40, 8, 33))
    asked = [*one_each([short, long, other]), PoolRequest(3, (short, long)), PoolRequest(4, (other, short))]
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        outcomes, _ = pool_windows(pooling_setup_of(WordTable(lambda rows, width: width > 35), tokens=100), asked)
    failed = [o for o in outcomes if isinstance(o, Failure)]
    assert [(o.row, o.sample, o.stage, o.error) for o in failed] == [(1, 0, "pool", "OutOfMemory"), (3, 0, "pool", "OutOfMemory")]
    assert failed[0].message.startswith("out of device memory with this text alone: 40 tokens ([metal::malloc]")
    assert failed[0].message.endswith("; shorten it, or lower max_length")
    assert_true_vectors([asked[0], asked[2], asked[4]], [o for o in outcomes if not isinstance(o, Failure)])
    assert caplog.messages[-1].endswith("rows 1, 3 are given up")


def test_a_row_with_two_texts_that_do_not_fit_fails_once():
    asked = [PoolRequest(0, tuple(texts_of((40, 41)))), PoolRequest(1, tuple(texts_of((4,))))]
    outcomes, _ = pool_windows(pooling_setup_of(WordTable(lambda rows, width: width > 35), tokens=30), asked)
    assert sorted((o.row, isinstance(o, Failure)) for o in outcomes) == [(0, True), (1, False)]


def test_when_text_after_text_does_not_fit_it_is_not_the_texts():
    with pytest.raises(OutOfRoom, match="16 rows one after the other did not fit even alone; what was finished is safe"):
        pool_windows(pooling_setup_of(WordTable(lambda rows, width: True)), one_each(texts_of([9] * (GIVEN_UP + 5))))


def test_deterministic_batches_stay_as_they_are():
    with pytest.raises(OutOfRoom, match=r"while computing 4 texts .*; what was finished is safe. batch.deterministic can not"):
        pool_windows(pooling_setup_of(WordTable(lambda rows, width: width > 15), static=True), one_each(texts_of((16,) * 4)))


@pytest.mark.parametrize("number", [1, 3])
def test_a_deterministic_batch_is_tried_once_more(number: int):
    calls = count(1)
    whole, pooler = pool_windows(pooling_setup_of(WordTable(), static=True), ASKED)
    network = WordTable(lambda rows, width: next(calls) == number)
    found, again = pool_windows(pooling_setup_of(network, static=True), ASKED)
    assert len(network.refused) == 1
    assert again.progress.prompt == pooler.progress.prompt
    for one, other in zip(found, whole, strict=True):
        assert isinstance(one, Pooled)
        assert isinstance(other, Pooled)
        assert (one.row, one.values.tobytes()) == (other.row, other.values.tobytes())


def test_another_error_is_not_taken_for_a_shortage():
    def broken(rows: int, width: int) -> bool:
        raise RuntimeError("[broadcast_shapes] Shapes (1,2) and (3,4) cannot be broadcast.")

    with pytest.raises(RuntimeError, match="broadcast_shapes"):
        pool_windows(pooling_setup_of(WordTable(broken)), ASKED)

"""Perplexity and sums of lists, in closed form."""

import math

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.runner.stats import list_sum, perplexity


@pytest.mark.parametrize("vocabulary", [2, 50257])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(vocabulary: int):
    assert perplexity(-7 * math.log(vocabulary), 7) == pytest.approx(vocabulary, rel=1e-12)


def test_nothing_scored_is_none_and_no_chance_is_infinity():
    assert perplexity(0.0, 0) is None
    assert perplexity(-math.inf, 3) == math.inf
    assert perplexity(-1e6, 1) == math.inf  # beyond float64
    assert perplexity(0.0, 3) == 1.0


def test_lists_are_summed_in_float64_without_their_nulls():
    lists = pa.array([[None, 0.5], [], None, [0.25, 1e8]], pa.list_(pa.float32()))
    assert list_sum(lists) == (1e8 + 0.75, 3)  # float32 would drop the 0.75
    assert list_sum(pa.chunked_array([lists, lists])) == (2e8 + 1.5, 6)
    assert list_sum(pa.chunked_array([], pa.list_(pa.float32()))) == (0.0, 0)
    assert list_sum(lists.slice(3)) == (float(np.float32(1e8)) + 0.25, 2)

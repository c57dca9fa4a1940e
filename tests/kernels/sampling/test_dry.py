"""Tests DRY's penalties: tracked token by token against a search of the whole text, and closed forms of its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels.sampling.dry import DryRule, Repetition

from ...oracle import repetitions

RULE = DryRule(multiplier=0.8, base=1.75, allowed_length=2, span=0, breakers=frozenset())


def penalties(rule: DryRule, ids: list[int]) -> dict[int, float]:
    found, lost = Repetition(rule, ids).penalties()
    return dict(zip(found.tolist(), lost.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_tracking_a_text_finds_what_a_search_of_it_finds(data: st.DataObject):
    """After each token, however much of the text came as the prompt."""
    tokens = st.integers(0, data.draw(st.integers(0, 4)))
    ids = data.draw(st.lists(tokens, min_size=1, max_size=120))
    rule = DryRule(
        0.8,
        data.draw(st.sampled_from([1.0, 1.1, 1.75])),
        data.draw(st.integers(1, 4)),
        data.draw(st.sampled_from([0, 0, 1, 2, 7, 30])),
        data.draw(st.frozensets(tokens, max_size=2)),
    )
    prompt = data.draw(st.integers(0, len(ids)))
    repetition = Repetition(rule, np.array(ids[:prompt], np.int32))
    for end in range(prompt, len(ids) + 1):
        found, lost = repetition.penalties()
        lengths = repetitions(ids[:end], rule.span, rule.breakers)
        truth = {i: n for i, n in sorted(lengths.items()) if n >= rule.allowed_length}
        assert found.tolist() == list(truth)
        expected = [0.8 * rule.base ** (n - rule.allowed_length) for n in truth.values()]
        np.testing.assert_allclose(lost, np.minimum(expected, 1e30), rtol=1e-6)
        if end < len(ids):
            repetition.push(ids[end])


def test_the_penalty_grows_with_the_match():
    text = [7, 1, 2, 3, 4, 9]
    assert penalties(RULE, [*text, 1]) == {}  # a match of one token is allowed
    assert penalties(RULE, [*text, 1, 2]) == {3: np.float32(0.8)}
    assert penalties(RULE, [*text, 1, 2, 3]) == {4: np.float32(0.8 * 1.75)}
    assert penalties(RULE, [*text, 1, 2, 3, 4]) == {9: np.float32(0.8 * 1.75**2)}
    assert penalties(RULE, [*text, 1, 2, 4]) == {}


def test_the_longest_of_several_places_counts():
    assert penalties(RULE, [5, 1, 2, 3, 8, 6, 1, 2, 3, 9, 6, 1, 2]) == {3: np.float32(0.8 * 1.75)}


def test_breakers_end_a_match_and_are_not_penalised():
    rule = DryRule(0.8, 1.75, 2, 0, frozenset([0]))
    assert penalties(rule, [1, 2, 0, 3, 4, 5, 1, 2, 0, 3]) == {}  # a match of 4, of which one lies behind the breaker
    assert penalties(rule, [1, 2, 0, 3, 4, 5, 1, 2, 0, 3, 4]) == {5: np.float32(0.8)}
    assert penalties(rule, [1, 2, 0, 1, 2]) == {}  # a breaker would follow


def test_a_range_leaves_out_what_is_older():
    text = [1, 2, 3, 8, 8, 1, 2]
    assert penalties(DryRule(0.8, 1.75, 2, 7, frozenset()), text) == {3: np.float32(0.8)}
    assert penalties(DryRule(0.8, 1.75, 2, 6, frozenset()), text) == {}


@pytest.mark.filterwarnings("error")
def test_a_long_match_gives_a_finite_penalty():
    found = penalties(DryRule(100.0, 100.0, 1, 0, frozenset()), [3] * 3000)
    assert found == {3: np.float32(1e30)}

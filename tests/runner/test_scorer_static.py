"""Deterministic mode: a row's bytes depend neither on the order of rows nor on what the others contain."""

from dataclasses import replace

import numpy as np
import pytest
from mlx_bulk.runner.prefill import Wanted

from .scoring import TEXTS, Calls, as_bytes, ragged_choices, setup
from .tiny import (
    VOCABULARY,
    assert_scores_are_naive,
    build,
    documents,
    prompts_of,
    scored,
    setup_of,
)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_rows_bytes_do_not_depend_on_the_order_of_rows(name: str):
    asked = ragged_choices() + [replace(r, row=r.row + 6) for r in documents([*TEXTS, TEXTS[1]])]
    of = setup(name, static=True, wanted=Wanted(echo=True, top=3, stats=True))
    shuffled = [asked[i] for i in np.random.default_rng(0).permutation(len(asked))]
    assert as_bytes(scored(of, asked)) == as_bytes(scored(of, shuffled))
    assert_scores_are_naive(build(name), asked, scored(of, asked))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_rows_bytes_do_not_depend_on_what_its_mates_contain(name: str):
    texts = prompts_of((12, 9, 12, 5, 7, 9, 30, 3))
    others = [t if i == 4 else [(x + 1) % VOCABULARY for x in t] for i, t in enumerate(texts)]
    others[2], others[5] = others[0], others[1]  # mates that are alike, too
    of = setup(name, static=True)
    first, second = (as_bytes(scored(of, documents(t))) for t in (texts, others))
    assert first[4] == second[4]
    assert first[0] != second[0]


def test_static_batches_are_made_by_rows_alone():
    """Neither memory nor what could be shared enters."""
    network = Calls(build("llama"))
    of = setup_of(network, rows=3, static=True, head=None)
    scored(replace(of, limits=replace(of.limits, kv_bytes=50.0)), documents([TEXTS[1]] * 4))
    assert [b for b, _ in network.shapes if b] == [3, 3, 1]  # three rows in two calls of at most 64 tokens, then one

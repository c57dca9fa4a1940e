"""Tests deterministic scoring: a row's bytes do not depend on the order or the contents of other rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.checks.slot_independence import slots_alike
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.scoring.scorer import Scorer

from ...checkpoints import DEMO, loaded
from ..support.naive_truth import assert_scores_are_naive
from ..support.score_calls import TEXTS, Calls, as_bytes, ragged_choices, setup
from ..support.tiny import VOCABULARY, Ids, build, prompts_of
from ..support.tiny_runs import documents, scored, scored_with, setup_of


def checked(name: str, **more: Any) -> Setup:
    """A setup for deterministic mode, in which a check has found whether a slot shows in the bits on this machine."""
    of = setup(name, static=True, **more)
    return of.with_features(any_slot=slots_alike(of))


@pytest.mark.parametrize("name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "mamba2"))])
def test_a_rows_bytes_do_not_depend_on_the_order_of_rows(name: str):
    asked = ragged_choices() + [replace(r, row=r.row + 6) for r in documents([*TEXTS, TEXTS[1]])]
    of = checked(name, wanted=LogprobOptions(echo=True, top=3, stats=True))
    shuffled = [asked[i] for i in np.random.default_rng(0).permutation(len(asked))]
    assert as_bytes(scored(of, asked)) == as_bytes(scored(of, shuffled))
    assert_scores_are_naive(build(name), asked, scored(of, asked))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_rows_bytes_do_not_depend_on_other_rows(name: str):
    texts = prompts_of((12, 9, 12, 5, 7, 9, 30, 3))
    others = [t if i == 4 else [(x + 1) % VOCABULARY for x in t] for i, t in enumerate(texts)]
    others[2], others[5] = others[0], others[1]  # mates that are alike, too
    of = setup(name, static=True)
    first, second = (as_bytes(scored(of, documents(t))) for t in (texts, others))
    assert first[4] == second[4]
    assert first[0] != second[0]


@pytest.fixture(scope="module")
def wide() -> Setup:
    """A model large enough that the shape of a product shows in its bits."""
    model = loaded(DEMO)
    return fit(model, BatchConfig(rows=4, deterministic=True), LogprobOptions(echo=True)).setup


def _texts(lengths: Sequence[int], seed: int) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 2048, n).tolist() for n in lengths]


@pytest.mark.parametrize(
    "lengths", [(6,) * 5, *(pytest.param(n, marks=pytest.mark.slow) for n in ((9, 8, 8, 8, 8, 8, 4), (40, 33, 33, 33, 33, 33, 12)))]
)
def test_a_row_at_the_border_of_a_batch_keeps_its_bytes(wide: Setup, lengths: Sequence[int]):
    texts = _texts(lengths, 0)
    found = as_bytes(scored(wide, documents(texts)))
    for mine in range(len(lengths)):
        for token in (3, 2047):  # in an order of contents all others would stand behind it, or before it
            mates = [text if i == mine else [token] * len(text) for i, text in enumerate(texts)]
            assert as_bytes(scored(wide, documents(mates)))[mine] == found[mine]


def test_a_row_keeps_its_bytes_when_others_come_and_go(wide: Setup):
    texts = _texts((33, 6, 33, 35, 33, 6, 34, 6), 0)
    found = as_bytes(scored(wide, documents(texts)))
    for kept in (range(1, 8), range(4), range(4, 8), [0], [5], [2, 0, 6, 5]):
        assert as_bytes(scored(wide, documents([texts[i] for i in kept]))) == [found[i] for i in kept]


def test_neither_memory_nor_what_could_be_shared_enters_the_shape_of_a_batch():
    network = Calls(build("llama"))
    of = setup_of(network, rows=3, static=True, head=None)
    scored(replace(of, limits=replace(of.limits, kv_bytes=50.0)), documents([TEXTS[1]] * 4))
    assert [b for b, _ in network.shapes] == [3] * 4  # of 30 tokens, at most 64 in a call
    assert [n for _, n in network.shapes] == [21, 9] * 2


def test_pads_and_dummies_are_no_work_done():
    work = Scorer(setup("llama", rows=4, static=True))
    scored_with(work, documents(prompts_of((18, 18))))
    assert (work.progress.prefilled, work.progress.padded) == (34, 4 * 18)


def test_rows_without_padding_are_batched_by_length():
    network = Calls(build("llama"))
    of = setup_of(network, "exact", rows=2, static=True, head=None, right_padded=False)
    asked = documents(prompts_of((18, 17, 18, 18)))
    assert_scores_are_naive(build("llama"), asked, scored(of, asked))
    assert network.shapes == [(2, 17)] * 2 + [(2, 16)]

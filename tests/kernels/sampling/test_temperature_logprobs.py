"""Tests tempered logprobs and kept ids: closed forms, both versions against each other and against the slow oracle."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels.sampling import draw as sampling
from mlx_bulk.kernels.sampling import temperature_logprobs
from mlx_bulk.kernels.sampling.draw import Drawn
from mlx_bulk.kernels.sampling.logits_processors import Edits
from mlx_bulk.kernels.sampling.parameters import Parameters
from mlx_bulk.runner.core.requests import Sampling
from numpy.typing import NDArray

from ...oracle import distribution, edited
from .samplers import parameters
from .sampling_variants import COMPLETION, EOS, LOGITS, PROMPT, VARIANTS, edits_of, uniforms

Floats = NDArray[np.float32]
Sampler = Callable[[Floats, Parameters], Drawn]
N = 200


def by_specification(x: Floats, p: Parameters) -> Drawn:
    ids, under, found, mask = sampling.reference(mx.array(x), p, tempered=True, kept=True)
    assert found is not None
    assert mask is not None
    apart = p.filtered | p.greedy
    kept = [np.flatnonzero(row).astype(np.int32) if own else None for row, own in zip(np.array(mask), apart, strict=True)]
    return Drawn(np.array(ids), np.array(under), np.array(found), kept)


def by_numpy(x: Floats, p: Parameters) -> Drawn:
    return sampling.on_cpu(x, p, tempered=True, kept=True)


SAMPLERS = pytest.mark.parametrize("sampler", [by_specification, by_numpy])


@SAMPLERS
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 2.5])
def test_neither_penalties_nor_filters_enter(sampler: Sampler, name: str, temperature: float):
    s = replace(VARIANTS[name], temperature=temperature)
    edits = edits_of(s, N, PROMPT, COMPLETION, EOS) if s.edits else None
    drawn = sampler(np.tile(LOGITS, (N, 1)), parameters([s] * N, uniforms(N, seed=3), edits))
    alone = distribution(LOGITS.tolist(), Sampling(temperature=temperature or 1.0))
    assert drawn.tempered is not None
    np.testing.assert_allclose(drawn.tempered, np.log(alone[drawn.ids]), rtol=0, atol=1e-5)  # float32 exp and sums of twelve terms
    if not np.allclose(distribution(edited(LOGITS.tolist(), s, PROMPT, COMPLETION, EOS), s), alone):
        assert np.abs(drawn.tempered - drawn.sampled).max() > 1e-2


@SAMPLERS
def test_two_tokens_have_a_closed_form(sampler: Sampler):
    """log sigmoid(gap / temperature), for the token that is ahead."""
    gap, temperatures = 1.5, [0.25, 0.7, 1.0, 2.0]
    rows = [Sampling(temperature=t, top_k=1) for t in temperatures]
    drawn = sampler(np.tile(np.array([0.3, 0.3 - gap], np.float32), (4, 1)), parameters(rows, [0.5] * 4))
    truth = [-np.log1p(np.exp(-gap / t)) for t in temperatures]
    assert drawn.tempered is not None
    np.testing.assert_allclose(drawn.tempered, truth, rtol=0, atol=1e-6)
    assert drawn.sampled.tolist() == [0.0] * 4  # one token is left to draw


@SAMPLERS
@pytest.mark.parametrize("name", [name for name, s in VARIANTS.items() if s.filters])
def test_the_kept_ids_are_those_that_can_be_drawn_and_renormalise_to_the_sampled_logprobs(sampler: Sampler, name: str):
    s = VARIANTS[name]
    edits = edits_of(s, N, PROMPT, COMPLETION, EOS) if s.edits else None
    drawn = sampler(np.tile(LOGITS, (N, 1)), parameters([s] * N, uniforms(N, seed=5), edits))
    logits = np.array(edited(LOGITS.tolist(), s, PROMPT, COMPLETION, EOS))
    possible = np.flatnonzero(distribution(logits.tolist(), s))
    assert drawn.kept is not None
    for ids in drawn.kept:
        assert ids is not None
        assert ids.tolist() == possible.tolist()
    over = logits / s.temperature
    renormalised = over[drawn.ids] - np.log(np.exp(over[possible]).sum())
    np.testing.assert_allclose(drawn.sampled, renormalised, rtol=0, atol=1e-5)


@SAMPLERS
def test_a_row_without_filters_keeps_no_list_and_a_greedy_one_its_token(sampler: Sampler):
    rows = [Sampling(), Sampling(temperature=0.0, top_k=5), Sampling(top_k=3), Sampling(temperature=0.4)]
    drawn = sampler(np.tile(LOGITS, (4, 1)), parameters(rows, uniforms(4, seed=1)))
    assert drawn.kept is not None
    assert [None if ids is None else ids.tolist() for ids in drawn.kept] == [None, [2], [0, 2, 6], None]


@pytest.mark.filterwarnings("error")
@SAMPLERS
def test_masked_ids_are_not_kept_and_a_row_of_nan_stays_nan(sampler: Sampler):
    x = np.tile(LOGITS, (3, 1))
    x[1] = np.nan
    edits = Edits(np.array([0, 2], np.int32), np.array([2, 6], np.int32), np.full(2, -np.inf, np.float32))
    drawn = sampler(x, parameters([Sampling(top_k=3, temperature=0.7)] * 3, [0.5] * 3, edits))
    assert drawn.tempered is not None
    assert drawn.kept is not None
    assert drawn.kept[0] is not None
    assert drawn.kept[2] is not None
    assert 2 not in drawn.kept[0]
    assert 6 not in drawn.kept[2]
    assert np.isnan(drawn.tempered).tolist() == [False, True, False]


def test_both_versions_agree_at_a_large_vocabulary():
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, (6, 152_000)).astype(np.float32)
    ids, temperature = rng.integers(0, 152_000, 6).astype(np.int32), np.array([0, 0.3, 0.7, 1, 1.3, 2], np.float32)
    truth = x.astype(np.float64) / np.where(temperature == 0, 1, temperature)[:, None]
    truth = truth[np.arange(6), ids] - np.log(np.exp(truth - truth.max(1, keepdims=True)).sum(1)) - truth.max(1)
    np.testing.assert_allclose(temperature_logprobs.on_cpu(x, ids, temperature), truth, rtol=0, atol=2e-5)
    np.testing.assert_allclose(np.array(temperature_logprobs.reference(mx.array(x), mx.array(ids), temperature)), truth, rtol=0, atol=2e-5)
    np.testing.assert_allclose(temperature_logprobs.tempered(mx.array(x), ids, temperature), truth, rtol=0, atol=2e-5)


def test_at_temperature_one_and_zero_they_are_the_models_own_to_the_bit():
    rows = [Sampling(temperature=t, top_p=0.8) for t in (1.0, 0.0, 0.7)]
    drawn, scores = sampling.launch(mx.array(np.tile(LOGITS, (3, 1))), parameters(rows, [0.4] * 3), 0, False, tempered=True).read()
    assert drawn.tempered is not None
    assert drawn.tempered[:2].tolist() == scores.logprobs[:2].tolist()
    assert abs(float(drawn.tempered[2] - scores.logprobs[2])) > 1e-3


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_figures_not_asked_for_are_not_computed(temperature: float):
    p = parameters([Sampling(temperature=temperature, top_k=2)] * 2, [0.1, 0.9])
    drawn, _ = sampling.launch(mx.array(np.tile(LOGITS, (2, 1))), p, 0, False).read()
    assert (drawn.tempered, drawn.kept) == (None, None)

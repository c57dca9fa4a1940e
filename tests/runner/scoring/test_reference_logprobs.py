"""Tests logprobs under a reference while others decode: the base without its adapter, the policy itself, a second model."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.outcomes import Failure, Generated, Outcome
from mlx_bulk.runner.core.requests import Request
from mlx_bulk.runner.scoring.reference_logprobs import Finished, Reference

from ...adapters import write_adapter
from ..models.test_adapters import adapters_of
from ..support.naive_truth import DECODE_MEAN, DECODE_TOLERANCE, log_probabilities
from ..support.policies import HOT, PER_SHARD, SAMPLES, SHARDS, WANTED, Run, assert_each_is_its_own_versions, shards, versions, windows_of
from ..support.tiny import fresh
from ..support.tiny_runs import engine_of, setup_of


def referred(outcomes: list[Generated], network: Any) -> None:
    """The reference's logprobs are those of a full forward of ``network``, at the temperature too."""
    prompts = {each.row: each.prompt.ids.tolist() for window in shards() for each in window}
    for outcome in outcomes:
        prompt, ids = prompts[outcome.row], outcome.ids.tolist()
        logits = log_probabilities(network, prompt + ids)[len(prompt) - 1 : -1]
        tempered = logits / np.float32(HOT.temperature)
        tempered -= np.log(np.exp(tempered).sum(axis=1, keepdims=True))
        assert outcome.ref_logprobs is not None
        assert outcome.ref_tempered_logprobs is not None
        np.testing.assert_allclose(outcome.ref_logprobs, logits[np.arange(len(ids)), ids], rtol=0, atol=DECODE_TOLERANCE)
        np.testing.assert_allclose(outcome.ref_tempered_logprobs, tempered[np.arange(len(ids)), ids], rtol=0, atol=DECODE_TOLERANCE)


@pytest.mark.slow
def test_the_base_is_scored_with_the_adapter_off_while_others_decode(tmp_path: Path):
    watch = tmp_path / "adapters"
    write_adapter(watch / "step_1", fresh(), "dora", seed=1)
    run = Run(tmp_path, watch)
    run.reference = Reference(run.setup, own=True)

    def trainer(number: int) -> None:
        if number == 2:
            write_adapter(watch / "step_2", fresh(), seed=2)

    outcomes = run.outcomes(windows_of(shards(), trainer))
    assert versions(outcomes) == {0: {1}, 1: {1}, 2: {2}, 3: {2}}
    assert len(outcomes) == PER_SHARD * SHARDS * SAMPLES
    referred(outcomes, fresh())
    assert_each_is_its_own_versions(run, outcomes)
    assert np.concatenate([np.abs(o.ref_logprobs - o.scores.logprobs) for o in outcomes if o.ref_logprobs is not None]).mean() > 0.05


def test_a_reference_that_is_the_policy_itself_agrees_with_decoding(tmp_path: Path):
    """Within the contract's 2e-4, of the model's own logprobs and of the tempered ones."""
    run = Run(tmp_path)
    run.reference = Reference(run.setup, own=True)
    outcomes = run.outcomes(windows_of(shards()))
    own, tempered = [np.zeros(0)], [np.zeros(0)]
    for outcome in outcomes:
        assert outcome.tempered_logprobs is not None
        assert outcome.ref_logprobs is not None
        assert outcome.ref_tempered_logprobs is not None
        own.append(np.abs(outcome.ref_logprobs - outcome.scores.logprobs))
        tempered.append(np.abs(outcome.ref_tempered_logprobs - outcome.tempered_logprobs))
    for gaps in (np.concatenate(own), np.concatenate(tempered)):
        assert gaps.max() <= DECODE_TOLERANCE
        assert gaps.mean() <= DECODE_MEAN


def test_an_adapter_on_the_head_is_off_too(tmp_path: Path):
    """The policy's own head was made with the adapter on, and holds it."""
    network = fresh()
    adapters = adapters_of(network)
    adapters.put_on(write_adapter(tmp_path, network, keys=("lm_head",)))
    setup = setup_of(network, wanted=WANTED, adapters=adapters)
    requests = {each.row: each for each in shards()[0]}
    windows = iter([list(requests.values())])
    outcomes = [each for each in engine_of(setup).run(lambda wait: next(windows, None)) if isinstance(each, Generated)]
    assert len(outcomes) == PER_SHARD * SAMPLES
    finished = [Finished(requests[each.row], each) for each in outcomes]
    found = [each for each in Reference(setup, own=True).logprobs(finished, lambda: False) if isinstance(each, Generated)]
    assert len(found) == len(outcomes)
    referred(found, fresh())
    assert np.concatenate([np.abs(o.ref_logprobs - o.scores.logprobs) for o in found if o.ref_logprobs is not None]).mean() > 0.05


@pytest.mark.slow
def test_a_second_model_is_the_reference(tmp_path: Path):
    run = Run(tmp_path)
    other = copy.deepcopy(fresh())
    other.update({"lm_head": {"weight": other.lm_head.weight * 0.5}})
    run.reference = Reference(setup_of(other), own=False)
    outcomes = run.outcomes(windows_of(shards()))
    referred(outcomes, other)


def test_outcomes_are_not_held_back_while_the_engine_waits_for_input(tmp_path: Path):
    """Whoever hands out the next window only when the last one's outcomes are there is not waited for in vain."""
    run = Run(tmp_path)
    run.reference = Reference(run.setup, own=True)
    left, out = iter(shards()), [0]

    def next_window(wait: bool) -> list[Request] | None:
        if not wait:
            return []
        assert out[0] % (PER_SHARD * SAMPLES) == 0, "outcomes are held back"
        return next(left, None)

    for _ in run.engine().run(next_window):
        out[0] += 1
    assert out[0] == PER_SHARD * SHARDS * SAMPLES


def test_a_stop_ends_without_waiting_for_the_reference(tmp_path: Path):
    run = Run(tmp_path)
    run.reference = Reference(run.setup, own=True)
    seen: list[Outcome] = []
    for outcome in run.engine().run(windows_of(shards()), lambda: len(seen) > 4):
        seen.append(outcome)  # noqa: PERF402 - the engine looks at it
    assert len(seen) < PER_SHARD * SHARDS * SAMPLES
    assert not [outcome for outcome in seen if isinstance(outcome, Failure)]

"""Makes an engine whose policy changes between windows, and checks its outcomes by a full forward."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.policies.policy_engine import PolicyEngine, full_weights_fit
from mlx_bulk.runner.policies.policy_source import FolderSource, GivenSource
from mlx_bulk.runner.policies.policy_store import PolicyStore
from mlx_bulk.runner.policies.policy_updater import PolicyUpdater
from mlx_bulk.runner.scoring.reference_logprobs import Reference

from ..models.test_adapters import adapters_of
from .naive_truth import DECODE_MEAN, DECODE_TOLERANCE, log_probabilities
from .tiny import fresh, prompts_of
from .tiny_runs import engine_of, request, setup_of

PER_SHARD, SHARDS, SAMPLES = 3, 4, 3
HOT = Sampling(max_tokens=12, temperature=0.8, top_p=0.9)
WANTED = LogprobOptions(tempered=True, kept=True)

Windows = Callable[[bool], list[Request] | None]


def shards(sampling: Sampling = HOT) -> list[list[Request]]:
    prompts = prompts_of((7, 12, 5) * SHARDS, seed=3)
    seeds = [[100 * row + s for s in range(SAMPLES)] for row in range(len(prompts))]
    rows = [request(row, prompt, replace(sampling, max_tokens=8 + 3 * (row % 3)), seeds[row]) for row, prompt in enumerate(prompts)]
    return [rows[at : at + PER_SHARD] for at in range(0, len(rows), PER_SHARD)]


def windows_of(given: list[list[Request]], before: Callable[[int], None] = lambda number: None) -> Windows:
    """The windows in turn; ``before`` is called with a window's number as it is handed out."""
    left = iter(enumerate(given))

    def next_window(wait: bool) -> list[Request] | None:
        number, window = next(left, (0, None))
        if window is not None:
            before(number)
        return window

    return next_window


class Run:
    """A network with its policy engine, and the networks of each of its versions apart."""

    def __init__(self, tmp_path: Path, watch: Path | None = None, **more: Any):
        self.network, self.root = fresh(), tmp_path / "run" / "policies"
        self.adapters = adapters_of(self.network)
        self.setup: Setup = setup_of(self.network, wanted=WANTED, adapters=self.adapters, **more)
        self.store = PolicyStore(self.root, "weights")
        self.given = GivenSource()
        self.updater = PolicyUpdater(
            self.adapters, self.store, None, self.given if watch is None else FolderSource(watch), full_weights_fit(self.setup)
        )
        self.reference: Reference | None = None

    def engine(self, unit: Callable[[int], int] = lambda position: position // PER_SHARD) -> PolicyEngine:
        return PolicyEngine(engine_of(self.setup), self.updater, unit, self.reference)

    def outcomes(self, next_window: Windows, **more: Any) -> list[Generated]:
        found = list(self.engine(**more).run(next_window))
        done = [outcome for outcome in found if isinstance(outcome, Generated)]
        assert len(done) == len(found), [outcome for outcome in found if not isinstance(outcome, Generated)]
        return sorted(done, key=lambda outcome: (outcome.row, outcome.index))


def under(folder: Path | None) -> Any:
    """A network of its own with what ``folder`` holds."""
    network = fresh()
    if folder is not None:
        adapters_of(network).put_on(folder)
    return network


def differences(network: Any, outcomes: list[Generated]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of all tokens: stored logprobs less those of one full forward."""
    prompts = {each.row: each.prompt.ids.tolist() for window in shards() for each in window}
    found: list[float] = []
    for outcome in outcomes:
        prompt, ids = prompts[outcome.row], outcome.ids.tolist()
        truth = log_probabilities(network, prompt + ids)[len(prompt) - 1 : -1]
        found += (outcome.scores.logprobs - truth[np.arange(len(ids)), ids]).tolist()
    return np.array(found)


def assert_each_is_its_own_versions(run: Run, outcomes: list[Generated]) -> None:
    """Logprobs are those of the version that a record bears, from what the run has kept, and not another's."""
    policies = {outcome.policy for outcome in outcomes}
    networks = {policy: under(run.store.policy(policy.name).adapter) for policy in policies if policy is not None}
    for policy in networks:
        mine = [outcome for outcome in outcomes if outcome.policy == policy]
        for other, network in networks.items():
            gaps = np.abs(differences(network, mine))
            if other == policy:
                assert gaps.max() <= DECODE_TOLERANCE
                assert gaps.mean() <= DECODE_MEAN
            else:
                assert gaps.mean() > 0.05


def versions(outcomes: list[Generated]) -> dict[int, set[int]]:
    """The versions of each shard."""
    found: dict[int, set[int]] = {}
    for outcome in outcomes:
        assert outcome.policy is not None
        found.setdefault(outcome.row // PER_SHARD, set()).add(outcome.policy.version)
    return found

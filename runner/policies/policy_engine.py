"""The engine of a job whose policy can change. One policy samples all of a row's completions, and each outcome names it.

Before a window that begins a shard (or a round) the engine looks for a newer policy. If there is one, it takes no more rows, finishes
those in flight, swaps the policy, drops every KV cache of the old one, and goes on with the window:

    windows   shard 0   shard 1          shard 2        policy 12 is complete while shard 1 is sampled
    policy    0         0          drain 12
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ..core.outcomes import Failure, Generated, Outcome
from ..core.progress import Progress
from ..core.requests import Request
from ..core.shard_layout import Layout
from ..engine.engine import Engine
from ..engine.interface import EngineInterface
from ..engine.setup import Setup
from ..models.checkpoint import Checkpoint
from ..pool_engine.reward_rater import RewardRater
from ..scheduler.limits import Limits
from ..scoring.reference_logprobs import SHARE, Finished, Reference
from ..store.paths import RunPaths
from .policy_source import FolderSource
from .policy_store import PolicyStore
from .policy_updater import PolicyUpdater
from .recorded_policies import policy_at_start_of

Windows = Callable[[bool], list[Request] | None]


@dataclass(slots=True)
class _RowInFlight:
    """A row's request, and how many of its samples are still to come."""

    request: Request
    left: int


class PolicyEngine:
    """Runs requests through ``engine`` under the policies of ``updater``.

    unit: maps a row's position to its shard or round; one policy samples all of a unit. reference: scores finished completions a
    batch at a time; rater: rates them, some batches at a time; each None without one. unit_policy: names the policy with which an
    earlier session began a unit, and which must end it; None where any policy may.
    """

    def __init__(
        self,
        engine: Engine,
        updater: PolicyUpdater,
        unit: Callable[[int], int],
        reference: Reference | None = None,
        rater: RewardRater | None = None,
        unit_policy: Callable[[int], str | None] = lambda unit: None,
    ):
        self._engine, self.updater, self._unit, self._unit_policy = engine, updater, unit, unit_policy
        self._reference, self._rater = reference, rater
        self._in_flight: dict[int, _RowInFlight] = {}
        self._finished: list[Finished] = []  # wait for the reference
        self._held: list[Request] | None = None  # a window that waits for a newer policy
        self._current: int | None = None  # the unit of the last window
        engine.renew()

    @property
    def progress(self) -> Progress:
        """Counts since the start."""
        return self._engine.progress

    @property
    def live(self) -> bool:
        """True when newer policies may come."""
        return self.updater.live

    @property
    def version(self) -> int | None:
        """The version of the policy that samples now."""
        return self.updater.policy.version

    def newest_version(self) -> int:
        """Returns the version of the trainer's newest finished policy, refused or not. For any thread."""
        return self.updater.newest_version()

    def run(self, next_window: Windows, stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """Yields the outcomes of all windows' requests as ``Engine.run`` does, each with the policy that sampled it."""
        ended = False

        def window(wait: bool) -> list[Request] | None:
            """Returns the next window; None where the engine is to finish what it has, for good or for now."""
            nonlocal ended
            if self._held is None:
                if wait and self._holds_outcomes:  # nobody waits for input while outcomes are held back
                    return None
                requests = next_window(wait)
                if not requests:
                    ended = requests is None
                    return requests
                unit, before = self._unit(requests[0].row), self._current
                self._held, self._current = requests, unit
                if unit != before and self._needs_another_policy(unit):
                    return None
            requests, self._held = self._held, None
            for request in requests:
                self._in_flight[request.row] = _RowInFlight(request, len(request.samples))
            return requests

        while not (ended or stopped()):
            for outcome in self._engine.run(window, stopped):
                yield from self._with_policy(outcome, stopped)
            yield from self._with_reference(stopped)
            yield from self._with_ratings(stopped)
            if self._held is not None and not stopped():
                self.progress.doing("loading a newer policy")
                self._change_policy()
                self._engine.renew()

    @property
    def _holds_outcomes(self) -> bool:
        return bool(self._finished) or (self._rater is not None and self._rater.waiting > 0)

    def _needs_another_policy(self, unit: int) -> bool:
        """Returns True when another policy than the present one is to sample ``unit``."""
        name = self._unit_policy(unit)
        return self.updater.newer_available if name is None else name != self.updater.policy.name

    def _change_policy(self) -> None:
        assert self._current is not None, "a window is held"
        try:
            if (name := self._unit_policy(self._current)) is None:
                self.updater.load_newest()
            else:
                self.updater.load_kept(name)
        except BaseException:
            self._held = self._current = None  # the window is not run
            raise

    def _with_policy(self, outcome: Outcome, stopped: Callable[[], bool]) -> Iterator[Outcome]:
        """Yields the outcome with its policy; with a reference or reward models, those of full batches once they are done with them."""
        row = self._in_flight[outcome.row]
        row.left -= 1
        if not row.left:
            del self._in_flight[outcome.row]
        if not isinstance(outcome, Generated):
            yield outcome
            return
        finished = Finished(row.request, replace(outcome, policy=self.updater.policy))
        if self._reference is None:
            yield from self._to_rater(finished, stopped)
            return
        self._finished.append(finished)
        if len(self._finished) >= self._reference.setup.limits.rows:
            yield from self._with_reference(stopped)

    def _with_reference(self, stopped: Callable[[], bool]) -> Iterator[Generated | Failure]:
        """Takes the completions that wait for the reference on, scored by it."""
        if self._reference is not None and self._finished:
            finished, self._finished = self._finished, []
            requests = {(each.outcome.row, each.outcome.index): each.request for each in finished}
            self.progress.doing(f"scoring {len(finished)} completions with the reference")
            for outcome in self._reference.logprobs(finished, stopped):
                if isinstance(outcome, Failure):
                    yield outcome
                else:
                    yield from self._to_rater(Finished(requests[outcome.row, outcome.index], outcome), stopped)

    def _to_rater(self, finished: Finished, stopped: Callable[[], bool]) -> Iterator[Generated]:
        """Has a completion wait for its ratings; yields it at once where there are no reward models."""
        if self._rater is None:
            yield finished.outcome
            return
        self._rater.add(finished.request, finished.outcome)
        if self._rater.full:
            yield from self._with_ratings(stopped)

    def _with_ratings(self, stopped: Callable[[], bool]) -> Iterator[Generated]:
        """Yields the completions that wait for their ratings, rated."""
        if self._rater is not None and self._rater.waiting:
            self.progress.doing(f"rating {self._rater.waiting} completions")
            yield from self._rater.rated(stopped)


def sampling_engine(
    engine: Callable[[Setup, Setup | None], EngineInterface],
    setup: Setup,
    reference: Setup | None,
    config: JobConfig,
    checkpoint: Checkpoint,
    run: RunPaths,
    layout: Layout,
    rater: RewardRater | None = None,
) -> EngineInterface:
    """Returns the engine of a session: the one that ``engine`` makes, for rollouts inside a ``PolicyEngine``.

    Raises ModelError where a policy of the run cannot be kept.
    """
    if not isinstance(config, RolloutConfig) or setup.adapters is None:
        return engine(setup, reference)
    watch = config.policy.watch
    updater = PolicyUpdater(
        setup.adapters,
        PolicyStore(run.policies, setup.adapters.weights()),
        checkpoint.adapter,
        None if watch is None else FolderSource(Path(watch)),
        full_weights_fit(setup),
    )
    if updater.live and config.policy.update == "round":
        return policy_engine_of(updater, engine, setup, reference, config, layout, rater, cache(partial(policy_at_start_of, run, layout)))
    return policy_engine_of(updater, engine, setup, reference, config, layout, rater)


def full_weights_fit(setup: Setup) -> bool:
    """Returns True when full weights fit beside the base's: they leave at least half of the room for KV caches."""
    return setup.adapters is not None and _fit(setup.limits, setup.adapters.nbytes)


def _fit(limits: Limits, weight_bytes: int) -> bool:
    return 2 * weight_bytes <= limits.kv_bytes


def _beside_weights(limits: Limits, weight_bytes: int) -> Limits:
    """Returns what a base model of ``weight_bytes`` leaves of ``limits`` where any step may bring full weights."""
    return limits.minus(weight_bytes) if _fit(limits, weight_bytes) else limits


def _beside_second_model(limits: Limits) -> Limits:
    return limits.minus(SHARE * limits.kv_bytes)


def _has_second_model(config: RolloutConfig) -> bool:
    """Returns whether a reference or reward models work beside the batch that decodes, one at a time."""
    return config.policy.reference is not None or bool(config.reward_models)


def sampling_limits(limits: Limits, config: JobConfig, weight_bytes: int) -> Limits:
    """Returns the part of ``limits`` for rows that decode: the rest is kept for newer weights and other models, as ``config`` says.

    weight_bytes: bytes of the base model's weights.
    """
    if not isinstance(config, RolloutConfig):
        return limits
    if config.policy.watch is not None:
        limits = _beside_weights(limits, weight_bytes)
    return _beside_second_model(limits) if _has_second_model(config) else limits


def policy_engine_of(
    updater: PolicyUpdater,
    engine: Callable[[Setup, Setup | None], EngineInterface],
    setup: Setup,
    reference: Setup | None,
    config: RolloutConfig,
    layout: Layout,
    rater: RewardRater | None = None,
    unit_policy: Callable[[int], str | None] = lambda unit: None,
    unit: Callable[[int], int] | None = None,
) -> PolicyEngine:
    """Returns the engine that samples under the policies of ``updater``. Others: see ``PolicyEngine``.

    unit: None for the shards or rounds of ``layout``, as ``config`` says.
    """
    if unit is None:
        unit = layout.round_of if config.policy.update == "round" else layout.shard_of
    scores = None
    if updater.live and setup.adapters is not None:
        setup = replace(setup, limits=_beside_weights(setup.limits, setup.adapters.nbytes))
    if config.policy.reference is not None:
        scores = Reference(setup if reference is None else reference, own=reference is None)
    if _has_second_model(config):
        setup = replace(setup, limits=_beside_second_model(setup.limits))
    decoding = engine(setup, None)
    assert isinstance(decoding, Engine)
    return PolicyEngine(decoding, updater, unit, scores, rater, unit_policy)

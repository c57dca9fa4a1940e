"""The engine of a job whose policy can change: each row and each group is sampled by one policy, whose name its outcomes bear.

Before a window that begins a shard (or a round) it looks for a newer policy. If there is one, the engine gets no more rows, those
in flight are done, the policy is swapped with every KV cache of the old one gone, and the window is handed out:

    windows   shard 0   shard 1          shard 2        policy 12 is complete while shard 1 is sampled
    policy    0         0          drain 12
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ..core.requests import Failure, Generated, Outcome, Request
from ..core.shard_layout import Layout
from ..engine.engine import Engine
from ..engine.interface import Progress, Runs
from ..engine.reference_logprobs import SHARE, Finished, Reference
from ..engine.setup import Setup
from ..models.checkpoint import Checkpoint
from ..scheduler.limits import Limits
from ..store.paths import RunPaths
from .policy_source import FolderSource
from .policy_store import PolicyStore
from .policy_updater import Updates
from .recorded_policies import begun_with

Windows = Callable[[bool], list[Request] | None]


@dataclass(slots=True)
class _Asked:
    """A row's request, and how many of its samples are out."""

    request: Request
    left: int


class PolicyEngine:
    """Runs requests through ``engine`` under the policies of ``updates``. unit: of a row's position, the shard or the round.

    ``reference`` scores what is finished, a batch at a time; None without one. ``began`` names the policy that an earlier session
    began a unit with and which is to end it, None where any may.
    """

    def __init__(
        self,
        engine: Engine,
        updates: Updates,
        unit: Callable[[int], int],
        reference: Reference | None = None,
        began: Callable[[int], str | None] = lambda unit: None,
    ):
        self._engine, self.updates, self._unit, self._reference, self._began = engine, updates, unit, reference, began
        self._asked: dict[int, _Asked] = {}
        self._finished: list[Finished] = []  # wait for the reference
        self._held: list[Request] | None = None  # waits for a newer policy
        self._now: int | None = None  # the unit of the last window
        engine.renew()

    @property
    def progress(self) -> Progress:
        """Counts since the start."""
        return self._engine.progress

    @property
    def live(self) -> bool:
        """True when newer policies may come."""
        return self.updates.live

    @property
    def version(self) -> int | None:
        """The version of the policy that samples now."""
        return self.updates.policy.version

    def newest_version(self) -> int:
        """Returns the version of the trainer's newest finished policy, refused or not. For any thread."""
        return self.updates.newest_version()

    def run(self, next_window: Windows, stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """Outcomes of all windows' requests, as ``Engine.run`` has them; each is one policy's."""
        ended = False

        def window(wait: bool) -> list[Request] | None:
            """The next window; None where the engine is to be done with what it has, for good or for now."""
            nonlocal ended
            if self._held is None:
                if wait and self._finished:  # nobody waits for input while outcomes are held back
                    return None
                given = next_window(wait)
                if not given:
                    ended = given is None
                    return given
                unit, before = self._unit(given[0].row), self._now
                self._held, self._now = given, unit
                if unit != before and self._is_others(unit):
                    return None
            given, self._held = self._held, None
            for request in given:
                self._asked[request.row] = _Asked(request, len(request.samples))
            return given

        while not (ended or stopped()):
            for outcome in self._engine.run(window, stopped):
                yield from self._take(outcome, stopped)
            yield from self._referred(stopped)
            if self._held is not None and not stopped():
                self.progress.doing("loading a newer policy")
                self._change()
                self._engine.renew()

    def _is_others(self, unit: int) -> bool:
        """Whether another policy than the one that samples now is to sample ``unit``."""
        began = self._began(unit)
        return self.updates.due if began is None else began != self.updates.policy.name

    def _change(self) -> None:
        assert self._now is not None, "a window is held"
        if (began := self._began(self._now)) is None:
            self.updates.take()
        else:
            self.updates.resume(began)

    def _take(self, outcome: Outcome, stopped: Callable[[], bool]) -> Iterator[Outcome]:
        asked = self._asked[outcome.row]
        asked.left -= 1
        if not asked.left:
            del self._asked[outcome.row]
        if not isinstance(outcome, Generated):
            yield outcome
            return
        outcome = replace(outcome, policy=self.updates.policy)
        if self._reference is None:
            yield outcome
            return
        self._finished.append(Finished(asked.request, outcome))
        if len(self._finished) >= self._reference.setup.limits.rows:
            yield from self._referred(stopped)

    def _referred(self, stopped: Callable[[], bool]) -> Iterator[Generated | Failure]:
        """What waits for the reference, scored."""
        if self._reference is not None and self._finished:
            finished, self._finished = self._finished, []
            self.progress.doing(f"scoring {len(finished)} completions with the reference")
            yield from self._reference.logprobs(finished, stopped)


def sampling_engine(
    engine: Callable[[Setup, Setup | None], Runs],
    setup: Setup,
    reference: Setup | None,
    config: JobConfig,
    checkpoint: Checkpoint,
    run: RunPaths,
    layout: Layout,
) -> Runs:
    """What runs a job's requests: ``engine`` itself, and around it, for rollouts, what changes the policy.

    Raises ModelError where a policy of the run cannot be kept.
    """
    if not isinstance(config, RolloutConfig) or setup.adapters is None:
        return engine(setup, reference)
    watch = config.policy.watch
    updates = Updates(
        setup.adapters,
        PolicyStore(run.policies, setup.adapters.weights()),
        checkpoint.adapter,
        None if watch is None else FolderSource(Path(watch)),
        full_fits(setup),
    )
    if updates.live and config.policy.update == "round":
        return under(updates, engine, setup, reference, config, layout, cache(partial(begun_with, run, layout)))
    return under(updates, engine, setup, reference, config, layout)


def full_fits(setup: Setup) -> bool:
    """Whether full weights may stand beside the base's: they leave at least half of the room for KV caches."""
    return setup.adapters is not None and _fit(setup.limits, setup.adapters.nbytes)


def _fit(limits: Limits, weight_bytes: int) -> bool:
    return 2 * weight_bytes <= limits.kv_bytes


def _beside_weights(limits: Limits, weight_bytes: int) -> Limits:
    """What a base model of ``weight_bytes`` leaves of ``limits`` where any step may bring full weights."""
    return limits.minus(weight_bytes) if _fit(limits, weight_bytes) else limits


def _beside_reference(limits: Limits) -> Limits:
    return limits.minus(SHARE * limits.kv_bytes)


def sampling_limits(limits: Limits, config: JobConfig, weight_bytes: int) -> Limits:
    """What a run of ``config`` leaves of ``limits`` for the rows that decode, less what newer weights and a reference may take.

    weight_bytes: the base model's.
    """
    if not isinstance(config, RolloutConfig):
        return limits
    if config.policy.watch is not None:
        limits = _beside_weights(limits, weight_bytes)
    return limits if config.policy.reference is None else _beside_reference(limits)


def under(
    updates: Updates,
    engine: Callable[[Setup, Setup | None], Runs],
    setup: Setup,
    reference: Setup | None,
    config: RolloutConfig,
    layout: Layout,
    began: Callable[[int], str | None] = lambda unit: None,
) -> PolicyEngine:
    """What samples under the policies of ``updates``, which may have sampled before. ``began``: see ``PolicyEngine``."""
    unit = layout.round_of if config.policy.update == "round" else layout.shard_of
    scores = None
    if updates.live and setup.adapters is not None:
        setup = replace(setup, limits=_beside_weights(setup.limits, setup.adapters.nbytes))
    if config.policy.reference is not None:
        scores = Reference(setup if reference is None else reference, own=reference is None)
        setup = replace(setup, limits=_beside_reference(setup.limits))
    decoding = engine(setup, None)
    assert isinstance(decoding, Engine)
    return PolicyEngine(decoding, updates, unit, scores, began)

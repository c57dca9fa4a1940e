"""Rollouts for a trainer in the same process: it iterates over groups and hands over policies. There is no run directory.

Job, rows, engine and reward functions are those of a run by the command, but nothing is kept: a crash costs everything. The model
belongs to the thread that makes an ``InMemoryRollouts``: call all of its methods there.
"""

import logging
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, cast
from weakref import ReferenceType, ref

import mlx.core as mx
import pyarrow as pa

from ...configs.errors import ConfigError
from ...configs.rollout import RolloutConfig
from ..core.errors import DROP
from ..core.policy import Policy
from ..core.requests import Request
from ..core.shard_layout import Layout, window_size
from ..data.reader import read_rounds
from ..engine.interface import one_window
from ..layers.kernel_injection import only_inside
from ..policies.given_policy import given_folder, given_step, write_given
from ..policies.policy_engine import full_weights_fit, policy_engine_of
from ..policies.policy_source import GivenSource
from ..policies.policy_store import PolicyStore
from ..policies.policy_updater import PolicyUpdater
from ..store.group_queue import GroupQueue
from .io_threads import IOThreads, SessionInput, SessionRules, row_windows
from .job import Kind
from .loading import load_models, rater_of
from .row_requests import NOTHING_RECORDED
from .run_spec import RunSpec

log = logging.getLogger("mlx_bulk")


class InMemoryRollouts:
    """Samples the groups of a rollout job. A context manager; iterating it samples all rows in all rounds, from the first on.

    Each item is a group: a ``pa.RecordBatch`` of n rows, one record a sample (with ``select: best`` of one row), in the columns of
    ``results/*.arrow`` (``schema``). Groups of a shard (``batch.rows_per_shard`` rows) come in the order in which they finish. All of
    them come before the model is given a row of the next shard. ``errors`` lists the rows that have no group in the last iteration, in
    the columns of ``errors/*.arrow``.

    Nothing is written to ``output.path``. Raises a BulkError where the command would end with one, RuntimeError after ``close``.
    """

    def __init__(self, config: RolloutConfig, kind: Kind):
        if config.policy.watch is not None:
            raise ConfigError("policy.watch: expected null, since policies come from update() here; remove it")
        self.config, self._kind = config, kind
        self.errors: list[dict[str, Any]] = []
        self._closed = False
        self._iteration: ReferenceType[Generator[pa.RecordBatch]] | None = None
        self._scratch = TemporaryDirectory(prefix="mlx-bulk-")
        try:
            self._load(Path(self._scratch.name))
        except BaseException:
            self._scratch.cleanup()
            raise

    def _load(self, folder: Path) -> None:
        config = self.config
        self._kind.check(config, [])
        self._spec = spec = RunSpec.of(config, folder, self._kind, True)
        loaded = self._loaded = load_models(spec.models(config), config.batch, spec.job.wanted)
        model = loaded.model
        self._check = loaded.row_check()
        self._layout = Layout(spec.scan.rows, config.batch.rows_per_shard, config.rounds)
        assert model.adapters is not None, "a loaded model has them"
        self._inferring = only_inside(loaded.networks)
        self._adapters, self._source = model.adapters, GivenSource()
        self._policies_folder, self._arrays_folder = folder / "policies", folder / "given"
        with self._inferring():
            store = PolicyStore(self._policies_folder, model.adapters.weights())
            self._updater = PolicyUpdater(model.adapters, store, spec.checkpoint.adapter, self._source, full_weights_fit(loaded.setup))

    @property
    def schema(self) -> pa.Schema:
        """The columns of a group."""
        return self._spec.job.schema

    @property
    def policy(self) -> Policy:
        """The policy that samples now. After an update it changes with the first row that the new policy samples."""
        return self._updater.policy

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._require_open()
        self._end_iteration()
        groups = self._groups()
        self._iteration = ref(groups)  # not the generator: one that nobody holds any more ends by itself
        return _OpenGroups(groups, self._require_open)

    def update(self, version: int, adapter: str | Path) -> None:
        """Samples from another policy, beginning with the next shard (or round, see ``policy.update``).

        version: the trainer's step, higher than all before it. adapter: a folder with an adapter in mlx-lm's format (LoRA, DoRA,
        ``fine_tune_type: full``) or a whole checkpoint; it must stay until the policy samples.

        Raises ModelError where it cannot be put on the model; the present policy goes on then. Raises ConfigError for a version that
        is not higher, TypeError for arguments of other types.
        """
        step, folder = self._newer_step(version), given_folder(adapter)
        self._updater.require_room(folder)
        with self._inferring():
            self._adapters.try_on(folder)
        self._remove_old_policies()
        self._source.add(folder, step)

    def update_arrays(self, version: int, settings: Mapping[str, Any], tensors: Mapping[str, mx.array]) -> None:
        """Samples from another policy whose adapter is given as arrays; raises as ``update`` does.

        settings: the values of adapter_config.json: fine_tune_type, num_layers, lora_parameters (rank, scale, dropout, keys).
        tensors: by name, as ``tree_flatten(model.trainable_parameters())`` gives them: lora_a [in, rank], lora_b [rank, out]."""
        self._newer_step(version)
        folder = self._arrays_folder / f"{version}"
        write_given(folder, settings, tensors)
        self.update(version, folder)

    def close(self) -> None:
        """Ends the present iteration with its threads and processes, and gives up the model."""
        self._closed = True
        self._end_iteration()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------- one pass

    def _groups(self) -> Generator[pa.RecordBatch]:
        """Yields the groups of one pass. While the caller has the thread, mlx-lm's model files are as they were."""
        with closing(self._window_groups()) as groups:
            while True:
                with self._inferring():
                    group = next(groups, None)
                if group is None:
                    return
                yield group

    def _window_groups(self) -> Generator[pa.RecordBatch]:
        """Yields the groups window by window. The engine has nothing in flight between two, so that an update can take its place."""
        spec, layout, config, loaded = self._spec, self._layout, self.config, self._loaded
        by_round, ended = config.policy.update == "round", False
        rater = rater_of(loaded, spec.job)
        engine = policy_engine_of(self._updater, spec.job.engine, loaded.setup, loaded.reference, config, layout, rater)
        sink = GroupQueue(self.schema, layout)
        self.errors = sink.errors
        rules = SessionRules(
            check=self._check,
            stopped=lambda: ended,
            whole_shards=self._loaded.setup.static,
            fail_fast=config.on_error == "fail",
        )
        rows = read_rounds(spec.scan, config.data, layout, range(layout.shards))
        size = window_size(layout.rows_per_shard, self._loaded.setup.static or not by_round, spec.images is not None)
        session = SessionInput(spec.job, row_windows(rows, layout, size), layout, NOTHING_RECORDED)
        threads = IOThreads(session, rules, sink, self._updater.newest_version)
        try:
            while (window := threads.next_window(True)) is not None:
                sink.expect(request.row for request in window)
                for outcome in engine.run(one_window(cast("list[Request]", window)), lambda: threads.failed):
                    threads.put(outcome)
                    yield from sink.ready()
                yield from sink.rest(lambda: threads.failed)
        finally:
            ended = True
            threads.close()
            for _ in sink.ready():
                pass
            _log_errors(self.errors)

    def _end_iteration(self) -> None:
        groups = self._iteration() if self._iteration is not None else None
        if groups is not None:
            groups.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("these rollouts are closed; make others with mlx_bulk.Rollouts(…)")

    def _newer_step(self, version: int) -> int:
        self._require_open()
        step, newest = given_step(version), self._updater.newest_version()
        if step > newest:
            return step
        raise ConfigError(f"update: found version {step}, and {newest} was there before; expected the trainer's step, a higher one")

    def _remove_old_policies(self) -> None:
        """Removes the files of older policies."""
        current = self._updater.policy
        for offer in self._source.policies:
            if offer.version <= current.version and offer.folder.parent == self._arrays_folder:
                shutil.rmtree(offer.folder, ignore_errors=True)
        self._source.policies = [offer for offer in self._source.policies if offer.version > current.version]
        for folder in self._policies_folder.iterdir():
            if folder.is_dir() and folder.name != current.name:
                shutil.rmtree(folder, ignore_errors=True)


class _OpenGroups(Iterator[pa.RecordBatch]):
    """The groups of one pass. Taking one raises RuntimeError when the rollouts are closed."""

    def __init__(self, groups: Generator[pa.RecordBatch], require_open: Callable[[], None]):
        self._groups, self._require_open = groups, require_open

    def __next__(self) -> pa.RecordBatch:
        self._require_open()
        return next(self._groups)


def _log_errors(errors: list[dict[str, Any]]) -> None:
    if failed := [error for error in errors if error["stage"] != DROP]:
        log.warning("%d rows have no group, the first for: %s", len(failed), failed[0]["message"])

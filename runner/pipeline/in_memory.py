"""Rollouts for a trainer in the same process: groups as they come, policies handed over, no run directory.

The same job, rows, engine and reward functions as in a run of the command, with nothing kept: a crash costs all. The model
belongs to the thread that makes an ``InMemoryRollouts``: all is to be called there.
"""

import json
import logging
import shutil
from collections.abc import Generator, Iterator, Mapping
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
from ..core.shard_layout import Layout, window_shards
from ..data.reader import read_rounds
from ..engine.interface import one_window
from ..layers.kernel_injection import only_inside
from ..models.adapters import CONFIG, TENSORS
from ..policies.policy_engine import full_weights_fit, policy_engine_of
from ..policies.policy_source import GivenSource
from ..policies.policy_store import PolicyStore
from ..policies.policy_updater import PolicyUpdater
from .io_threads import IOThreads, SessionInput, SessionRules
from .job import Kind
from .loading import load_models
from .row_requests import NOTHING_RECORDED
from .run_spec import RunSpec
from .sinks import MemorySink

log = logging.getLogger("mlx_bulk")


class InMemoryRollouts:
    """The groups of a rollout job. A context manager; iterating it samples all rows in all rounds, from the first on.

    Each item is a group: a ``pa.RecordBatch`` of one record a sample, n rows, in the columns of ``results/*.arrow`` (``schema``).
    Groups of a shard (``batch.rows_per_shard`` rows) come in the order in which they finish, and all of them before a row of
    the next is given to the model. ``errors`` has what became no group in the last iteration, in the columns of ``errors/*.arrow``.

    Nothing is written to ``output.path``. Raises a BulkError where the command would end with one.
    """

    def __init__(self, config: RolloutConfig, kind: Kind):
        if config.policy.watch is not None:
            raise ConfigError("policy.watch: expected null, since policies come from update() here; remove it")
        self.config, self._kind = config, kind
        self.errors: list[dict[str, Any]] = []
        self._iterating: ReferenceType[Generator[pa.RecordBatch]] | None = None
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
        loaded = load_models(spec.models(config), config.batch, spec.job.wanted)
        model, self._setup, self._reference = loaded.model, loaded.setup, loaded.reference
        self._check = loaded.row_check()
        self._layout = Layout(spec.scan.rows, config.batch.rows_per_shard, config.rounds)
        assert model.adapters is not None, "a loaded model has them"
        self._inferring = only_inside([each.network for each in (model, loaded.reference_model) if each is not None and each.substitutes])
        self._adapters, self._given = model.adapters, GivenSource()
        self._kept, self._written = folder / "policies", folder / "given"
        with self._inferring():
            store = PolicyStore(self._kept, model.adapters.weights())
            self._updater = PolicyUpdater(model.adapters, store, spec.checkpoint.adapter, self._given, full_weights_fit(self._setup))

    @property
    def schema(self) -> pa.Schema:
        """The columns of a group."""
        return self._spec.job.schema

    @property
    def policy(self) -> Policy:
        """What samples now; an update is in it from the first row that it samples on."""
        return self._updater.policy

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._end()
        groups = self._groups()
        self._iterating = ref(groups)  # not the generator: one that nobody holds any more ends by itself
        return groups

    def update(self, version: int, adapter: Path) -> None:
        """Samples from another policy, beginning with the next shard (or round, see ``policy.update``).

        version: the trainer's step, above all before it. adapter: a folder with an adapter in mlx-lm's format (LoRA, DoRA,
        ``fine_tune_type: full``) or a whole checkpoint; it must stay until the policy samples.

        Raises ModelError where it cannot be put on the model; the policy that was there goes on.
        """
        self._require_newer(version)
        self._updater.require_room(adapter)
        with self._inferring():
            self._adapters.try_on(adapter)
        self._forget()
        self._given.add(adapter, version)

    def update_arrays(self, version: int, settings: Mapping[str, Any], tensors: Mapping[str, mx.array]) -> None:
        """The same with an adapter that is no file.

        settings: what adapter_config.json holds: fine_tune_type, num_layers, lora_parameters (rank, scale, dropout, keys).
        tensors: by name, as ``tree_flatten(model.trainable_parameters())`` gives them: lora_a [in, rank], lora_b [rank, out].
        """
        self._require_newer(version)
        folder = self._written / f"{version}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(dict(settings)), encoding="utf-8")
        mx.save_safetensors(str(folder / TENSORS), dict(tensors))
        self.update(version, folder)

    def close(self) -> None:
        """Ends an iteration that is under way, its threads and processes, and gives up the model."""
        self._end()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------- one pass

    def _groups(self) -> Generator[pa.RecordBatch]:
        """A pass over all shards, with mlx-lm's model files as they are while the caller has the thread."""
        with closing(self._sampled()) as groups:
            while True:
                with self._inferring():
                    group = next(groups, None)
                if group is None:
                    return
                yield group

    def _sampled(self) -> Generator[pa.RecordBatch]:
        """The engine has nothing in flight where one ends, so that an update can take its place there."""
        spec, layout, config = self._spec, self._layout, self.config
        by_round, ended = config.policy.update == "round", False
        engine = policy_engine_of(self._updater, spec.job.engine, self._setup, self._reference, config, layout)
        collected = MemorySink(self.schema, layout)
        self.errors = collected.errors
        rules = SessionRules(
            check=self._check,
            stopped=lambda: ended,
            window_shards=window_shards(layout.rows_per_shard, self._setup.static or not by_round),
            whole_shards=self._setup.static,
            fail_fast=config.on_error == "fail",
        )
        rows = read_rounds(spec.scan, config.data, layout, range(layout.shards))
        session = SessionInput(spec.job, rows, layout, NOTHING_RECORDED)
        threads = IOThreads(session, rules, collected, self._updater.newest_version)
        try:
            while (window := threads.next_window(True)) is not None:
                collected.expect(request.row for request in window)
                for outcome in engine.run(one_window(cast("list[Request]", window)), lambda: threads.failed):
                    threads.put(outcome)
                    yield from collected.ready()
                yield from collected.rest(lambda: threads.failed)
        finally:
            ended = True
            threads.close()
            for _ in collected.ready():
                pass
            _tell(self.errors)

    def _end(self) -> None:
        groups = self._iterating() if self._iterating is not None else None
        if groups is not None:
            groups.close()

    def _require_newer(self, version: int) -> None:
        newest = self._updater.newest_version()
        if version <= newest:
            raise ConfigError(
                f"update: found version {version}, and version {newest} was there before; expected the trainer's step, a higher one"
            )

    def _forget(self) -> None:
        """Removes what older policies left."""
        now = self._updater.policy
        for offer in self._given.policies:
            if offer.version <= now.version and offer.folder.parent == self._written:
                shutil.rmtree(offer.folder, ignore_errors=True)
        self._given.policies = [offer for offer in self._given.policies if offer.version > now.version]
        for folder in self._kept.iterdir():
            if folder.is_dir() and folder.name != now.name:
                shutil.rmtree(folder, ignore_errors=True)


def _tell(errors: list[dict[str, Any]]) -> None:
    failed = [error for error in errors if error["stage"] != DROP]
    if failed:
        log.warning("%d rows have no group, the first for: %s", len(failed), failed[0]["message"])

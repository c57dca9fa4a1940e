"""Loads the model and the input of a finished run again, for ``verify``, which computes the run's logprobs a second time."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...configs.classify import ClassifyConfig
from ...configs.data import DataConfig
from ...configs.embed import EmbedConfig
from ...configs.jobs import ROW_JOBS
from ...configs.rollout import RolloutConfig
from ...configs.schema import BatchConfig, GenerateConfig, JobConfig
from ..core.errors import ModelError, RowError, RunDirError
from ..core.images import ImageTable
from ..core.logprob_options import LogprobOptions
from ..core.requests import AnyRequest, BadRow, Request, Row
from ..core.shard_layout import Layout
from ..data.reader import read_rounds
from ..data.rescan import stored_data, without_stdin
from ..engine.setup import Setup
from ..models import checkpoint as checkpoints
from ..models.checkpoint import Checkpoint
from ..models.model_pool import ModelChoice
from ..policies.policy_store import PolicyStore, put_policy_on
from ..policies.recorded_policies import policies_in_records
from ..rescore.stored_records import StoredRecord
from ..runs.run_files import current_run
from ..runs.run_pictures import PictureChanges
from ..store.paths import RunPaths
from .job import Job, Kind
from .loading import LoadedModels, load_models
from .run_spec import RunSpec

CHANGED_PICTURE = "their picture has changed or is gone"


@dataclass(slots=True, frozen=True)
class RunModel:
    """A finished run of completions: its folder, its run.json, its config and its checkpoint."""

    run: Path
    stored: dict[str, Any]
    config: GenerateConfig
    checkpoint: Checkpoint

    def load(self, batch: BatchConfig, wanted: LogprobOptions, images: ImageTable | None = None) -> LoadedModels:
        """Loads the run's model, to run with these ``batch`` settings. images: the pictures of its rows. Raises as ``load_models``."""
        return load_models([ModelChoice(self.config.model, self.checkpoint, images=images)], batch, wanted)

    def input(self, kind: Kind) -> "StoredInput":
        """Finds the run's input. Raises RunDirError where it has fewer rows than the run, DataError where it is not there."""
        config: GenerateConfig = self.config
        if isinstance(config, RolloutConfig):  # rewards change no token, and the adapter of each policy is kept with the run
            policy = config.policy.model_copy(update={"adapter": None, "reference": None})
            config = config.model_copy(update={"rewards": [], "policy": policy})
        return _stored_input(self.run, self.stored, config, kind)

    def policies(self, loaded: LoadedModels) -> Iterator[tuple[str | None, str, Setup]]:
        """Puts each policy of the records on the loaded network in turn.

        Yields its name for ``stored_records`` (None: all records), its name for people, and the setup to run it with. Raises ModelError
        where a policy is not kept, or not what it was.
        """
        if not isinstance(self.config, RolloutConfig):
            yield None, "the model", loaded.setup
            return
        adapters, setup = loaded.model.adapters, loaded.setup
        assert adapters is not None, "a loaded model has them"
        store = PolicyStore(RunPaths(self.run).policies, adapters.weights())
        for name in policies_in_records(self.run):
            put_policy_on(adapters, store.policy(name))
            yield name, name, setup.split_anew()


@dataclass(slots=True, frozen=True)
class PoolingRun:
    """A finished run of a pooling model, its input read again: see ``run_pooling_model``."""

    run: Path
    config: JobConfig
    checkpoint: Checkpoint
    input: "StoredInput"

    def load(self) -> LoadedModels:
        """Loads the run's model, with the batches of the run. Raises as ``load_models``."""
        job = self.input.job
        choice = ModelChoice(self.config.model, self.checkpoint, job.pooling, self.input.spec.images)
        return load_models([choice], self.config.batch, job.wanted)


@dataclass(slots=True, frozen=True)
class StoredInput:
    """The input of a finished run, read again row by row."""

    spec: RunSpec
    data: DataConfig
    layout: Layout
    changes: PictureChanges | None = None

    @property
    def job(self) -> Job:
        """Returns the run's job."""
        return self.spec.job

    def rows(self, shards: Iterable[int]) -> Iterator[Row | BadRow]:
        """Reads the rows of some shards, in the order of ``shards``."""
        return read_rounds(self.spec.scan, self.data, self.layout, iter(shards))

    def picture_changed(self, row: Row | BadRow) -> bool:
        """Returns whether the row names a picture whose file has changed since the run, or is gone."""
        return self.changes is not None and self.changes.concern(row, self.layout.row_of(row.position))

    def with_pictures(self, records: list[StoredRecord], lose: Callable[[str, int], None]) -> list[StoredRecord]:
        """Returns records whose prompts are encoded anew from their rows: stored ids do not say which pictures they stand for.

        ``lose`` is called with the reason and the row of each that is left out: a picture has changed, or the prompt is another.
        """
        found: dict[tuple[int, int], StoredRecord] = {(self.layout.position(each.round, each.row), each.sample): each for each in records}
        shards = sorted({self.layout.shard_of(position) for position, _ in found})
        positions, anew = {position for position, _ in found}, list[StoredRecord]()
        for row in self.rows(shards):
            if row.position in positions and self.picture_changed(row):
                for place in [place for place in found if place[0] == row.position]:
                    lose(CHANGED_PICTURE, found.pop(place).row)
                continue
            for request in self.requests(row) if row.position in positions else []:
                assert isinstance(request, Request)
                for sample in request.samples:
                    record = found.get((row.position, sample))
                    if record is not None and len(record.prompt) == len(request.prompt.ids):
                        anew.append(replace(record, prompt=request.prompt.ids, images=request.prompt.images))
                        del found[row.position, sample]
        for record in found.values():
            lose("the row gives another prompt now, or none", record.row)
        return anew

    def requests(self, row: Row | BadRow) -> list[AnyRequest]:
        """Returns the requests of a row: none where the row went to errors/ before it came to the model."""
        try:
            return [] if isinstance(row, BadRow) else self.job.requests(row)
        except RowError:
            return []


@contextmanager
def run_model(run: Path) -> Generator[RunModel]:
    """Finds the model of the run directory ``run``; inside the block, relative paths start where the run was started.

    Raises RunDirError for a run that has no completions, ModelError where the model is not the run's.
    """
    run = run.absolute()
    stored = current_run(run)
    kind = ROW_JOBS.get(str(stored["config"]["job"]))
    if kind is None or not issubclass(kind, GenerateConfig):
        raise RunDirError(f"{run}: is a run of job: {stored['config']['job']}, which has no completions (generate and rollout have)")
    config = kind.model_validate(stored["config"])
    began_in = Path(stored["cwd"])
    with chdir(began_in) if began_in.is_dir() else nullcontext():
        checkpoint = checkpoints.find_checkpoint(config.model)  # a rollout's adapters are kept with the run, each under its version
        _require_the_same(run, stored["identity"], checkpoints.checkpoint_fingerprints(checkpoint), isinstance(config, RolloutConfig))
        yield RunModel(run, stored, config, checkpoint)


@contextmanager
def run_pooling_model(run: Path, kinds: Mapping[str, Kind]) -> Generator[PoolingRun]:
    """Finds model and input of the run ``run`` of an embed or classify job; inside the block, relative paths start as in ``run_model``.

    ``kinds``: the kinds of jobs by their names. Raises RunDirError for another job or an input that has become shorter, DataError for
    one that is gone, ModelError where the model is not the run's.
    """
    run = run.absolute()
    stored = current_run(run)
    name = str(stored["config"]["job"])
    kind = ROW_JOBS.get(name)
    if kind is None or not issubclass(kind, EmbedConfig | ClassifyConfig):
        raise RunDirError(f"{run}: is a run of job: {name}, which has no vectors of a pooling model (embed, classify)")
    config = kind.model_validate(stored["config"])
    began_in = Path(stored["cwd"])
    with chdir(began_in) if began_in.is_dir() else nullcontext():
        checkpoint = checkpoints.find_checkpoint(config.model)
        prints = checkpoints.checkpoint_fingerprints(checkpoint) | checkpoints.module_fingerprints(checkpoint)
        _require_the_same(run, stored["identity"], prints, False)
        for key in checkpoints.module_fingerprints(checkpoint):
            _require_equal(run, key, stored["identity"].get(key), prints[key])
        yield PoolingRun(run, config, checkpoint, _stored_input(run, stored, config, kinds[name]))


def _stored_input(run: Path, stored: dict[str, Any], config: JobConfig, kind: Kind) -> StoredInput:
    """Finds a run's input. Raises RunDirError where it has fewer rows than the run, DataError where it is not there."""
    config = config.model_copy(update={"data": without_stdin(stored_data(stored), run)})
    spec, layout = RunSpec.of(config, run, kind, afresh=False), Layout.of(stored)
    if spec.scan.rows < layout.rows:
        raise RunDirError(f"{run}: its input has {spec.scan.rows:,} rows now, the run covers {layout.rows:,}; put the input back")
    return StoredInput(spec, config.data, layout, None if spec.images is None else PictureChanges.of(run, stored, spec.scan, config))


def _require_the_same(run: Path, had: dict[str, Any], has: dict[str, str], rollout: bool) -> None:
    for key in ("model.weights", *(() if rollout else ("model.adapter",))):
        _require_equal(run, key, had[key], has[key])


def _require_equal(run: Path, key: str, had: str | None, has: str) -> None:
    if had != has:
        raise ModelError(f"{run}: {key} is not what the run was made with (its fingerprint is another); put the model of the run back")

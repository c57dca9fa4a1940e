"""Runs a job over rows that are in memory: the job, threads and windows of a run, without a run directory."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import JobConfig
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.core.shard_layout import Layout, window_size
from mlx_bulk.runner.images.placeholders import PictureEncoder
from mlx_bulk.runner.images.row_pictures import has_vision_tower
from mlx_bulk.runner.images.sources import PictureSources
from mlx_bulk.runner.images.tower_processor import load_picture_processor
from mlx_bulk.runner.layers.kernel_injection import only_inside
from mlx_bulk.runner.models.checkpoint import Checkpoint, find_checkpoint
from mlx_bulk.runner.models.device_memory import shortage_as_error
from mlx_bulk.runner.models.model_pool import ModelChoice, ModelPool
from mlx_bulk.runner.models.reference_checkpoint import vocabulary_of
from mlx_bulk.runner.pipeline.io_threads import IOThreads, SessionInput, SessionRules, row_windows
from mlx_bulk.runner.pipeline.job import Job, Kind, Parts
from mlx_bulk.runner.pipeline.loading import LoadedModels, load_models
from mlx_bulk.runner.pipeline.progress_display import Show, Watch
from mlx_bulk.runner.pipeline.row_requests import NOTHING_RECORDED
from mlx_bulk.runner.pooling.spec import PoolingSpec
from mlx_bulk.runner.runs.throughput import Counts
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

Record = dict[str, Any]
Checked = TypeVar("Checked", bound=JobConfig)


@dataclass(slots=True)
class RecordLists:
    """A sink that keeps all it is given: each row's records in the order of their samples, and its first failure."""

    records: dict[int, dict[int, Record]] = field(default_factory=dict[int, dict[int, Record]])
    failures: dict[int, Failure] = field(default_factory=dict[int, Failure])
    running: bool = True
    broken: bool = False

    def admit(self, position: int, samples: int) -> None:
        """Does nothing: the caller waits for all rows anyway."""

    def add(self, position: int, sample: int, record: Record) -> None:
        """Keeps a finished record."""
        self.records.setdefault(position, {})[sample] = record

    def add_group(self, position: int, records: Mapping[int, Record]) -> None:
        """Keeps all records of a row."""
        self.records[position] = dict(records)

    def fail(self, failure: Failure) -> None:
        """Keeps a row's first failure."""
        self.failures.setdefault(failure.row, failure)

    def flush(self, saved: Callable[[], None]) -> None:
        """Calls ``saved`` at once, since nothing is kept back."""
        saved()

    def of(self, position: int) -> tuple[list[Record], Failure | None]:
        """Returns a row's records in the order of their samples, and its failure."""
        return [record for _, record in sorted(self.records.get(position, {}).items())], self.failures.get(position)


class MemoryModel:
    """A loaded model and its tokenizer. The setup for each choice of logprobs is made, and checked, when it is first asked for.

    It belongs to the thread that loaded it, as mlx's arrays do.
    """

    def __init__(self, config: JobConfig, kind: Kind | None = None, columns: Sequence[str] = (), *, images: bool = False):
        """Loads what ``config.model`` names, with the chat template of ``config.prompt`` and the limits of ``config.batch``.

        kind: the job whose ``pooling`` says how hidden states become vectors, which reads ``columns``; None for logits of next tokens.
        images: rows may hold pictures; files of them lie in the working directory. Raises ConfigError for a model that reads text alone.
        """
        self._config, self._checkpoint, self._pool = config, find_checkpoint(config.model), ModelPool()
        self._thread = threading.current_thread()
        prompt = config.prompt
        self._tokenizer = load_tokenizer(
            self._checkpoint.folder, prompt.chat_template, prompt.chat_template_args, config.model.trust_remote_code
        )
        self._pictures = picture_encoder(config, self._checkpoint, self._tokenizer) if images else None
        self._vocabulary = vocabulary_of(self._checkpoint, self._tokenizer)
        self._loaded: dict[tuple[LogprobOptions, PoolingSpec | None, bool], LoadedModels] = {}
        pooling = None if kind is None else kind(self.parts(config, columns)).pooling
        model = self._load(LogprobOptions(), pooling, generates=pooling is None).model
        self._inferring = only_inside([model.called_network] if model.substitutes else [])

    @property
    def context(self) -> int | None:
        """The longest sequence that the model was made for, in tokens; None where it does not say."""
        return self._checkpoint.context

    def checked(self, values: Mapping[str, object], kind: type[Checked]) -> Checked:
        """Returns the settings of one call, checked as a config file's are. Raises RuntimeError in another thread than the model's."""
        if threading.current_thread() is not self._thread:
            raise RuntimeError(
                f"this model belongs to the thread {self._thread.name!r}, which loaded it, and was called in "
                f"{threading.current_thread().name!r}: mlx's arrays stay in their thread; call it there, or load one in each thread"
            )
        config = load_config(values)
        assert isinstance(config, kind)
        return config

    def parts(self, config: JobConfig, columns: Sequence[str]) -> Parts:
        """Returns the parts of the job of one call, whose rows have ``columns``."""
        eos = frozenset(i for i in self._tokenizer.eos | self._checkpoint.eos if 0 <= i < self._vocabulary)
        family = str(self._checkpoint.config.get("model_type"))
        context, checkpoint = self._checkpoint.context, self._checkpoint
        own = self._pictures
        return Parts(config, list(columns), None, self._tokenizer, context, None, self._vocabulary, family, eos, checkpoint, pictures=own)

    def run(self, config: JobConfig, kind: Kind, columns: Mapping[str, Sequence[object]], show: Show) -> RecordLists:
        """Runs a job over rows whose columns hold these values. config: of the same model, template and batch."""
        job = kind(self.parts(config, list(columns)))
        rows = [
            Row(position, str(position), dict(zip(columns, values, strict=True)))
            for position, values in enumerate(zip(*columns.values(), strict=True))
        ]
        if not rows:
            return RecordLists()
        with self._inferring():
            return _run(job, config, rows, self._load(job.wanted, job.pooling, generates=config.job == "generate"), show)

    def _load(self, wanted: LogprobOptions, pooling: PoolingSpec | None, *, generates: bool) -> LoadedModels:
        if (wanted, pooling, generates) not in self._loaded:
            batch = self._config.batch
            if not generates:  # given tokens are scored: their keys and values stay in full precision, and the limits count them so
                batch = batch.model_copy(update={"prefix_cache": None, "kv_bits": None})
            table = None if self._pictures is None else self._pictures.table
            models = load_models([ModelChoice(self._config.model, self._checkpoint, pooling, table)], batch, wanted, self._pool)
            self._loaded[wanted, pooling, generates] = models
        return self._loaded[wanted, pooling, generates]


def picture_encoder(config: JobConfig, checkpoint: Checkpoint, tokenizer: Tokenizer) -> PictureEncoder:
    """Returns what encodes pictures for a checkpoint. Raises ConfigError where it reads text alone, ModelError as a run does."""
    if not has_vision_tower(checkpoint.config):
        found = f"the model ({checkpoint.config.get('model_type')}) reads text alone: its config.json has no vision_config"
        raise ConfigError(f"images: {found}; take a vision model, or leave images out")
    processor = load_picture_processor(checkpoint.folder, checkpoint.config, tokenizer.hf)
    sources = PictureSources((Path.cwd().resolve(),), fetch=None, called="the working directory")
    return PictureEncoder(tokenizer, processor, sources, config.data.max_image_pixels)


def _run(job: Job, config: JobConfig, rows: Sequence[Row], loaded: LoadedModels, show: Show) -> RecordLists:
    """Runs ``job`` over ``rows``, whose positions are 0, 1, 2, …, in windows as a run makes them.

    Rows are tokenized and records made in threads beside this one. Raises DataError for the first row that fails where the config says
    ``on_error: fail``, and OutOfRoom where memory holds not even one row.
    """
    engine, sink = job.engine(loaded.setup, None), RecordLists()
    layout, static = Layout(len(rows), config.batch.rows_per_shard), loaded.setup.static
    rules = SessionRules(
        check=loaded.row_check(),
        stopped=lambda: False,
        whole_shards=static,
        fail_fast=config.on_error == "fail",
    )
    windows = row_windows(rows, layout, window_size(layout.rows_per_shard, static, loaded.setup.images is not None))
    threads = IOThreads(SessionInput(job, windows, layout, NOTHING_RECORDED), rules, sink)

    def counts() -> Counts:
        return Counts(len(sink.records) + len(sink.failures), len(rows), len(sink.failures))

    with shortage_as_error("lower batch.memory, batch.rows or batch.tokens"), Watch(engine.progress, counts, lambda line: None, show):
        try:
            for outcome in engine.run(threads.next_window, lambda: threads.failed):
                threads.put(outcome)
        except BaseException:
            threads.abandon()
            raise
        finally:
            threads.close()  # so the last line counts every row
    return sink

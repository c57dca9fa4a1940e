"""Runs a job in its run directory, from the config to the statistics. Only this module joins files and engine.

    config -> reader -> prompts -> tokenizer -> scheduler -> engine -> writer -> statistics

The calling thread alone touches the model. Rows are read and tokenized beside it (io_threads.py); store/writer.py writes records.
"""

import logging
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import get_args

import pyarrow as pa

from ...configs.identity import free
from ...configs.schema import JobConfig
from ...kernels import backend
from ..core.host_process import HostProcess, Orders
from ..core.outcomes import Outcome
from ..core.progress import Progress
from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout, window_shards
from ..data.reader import read_rounds
from ..data.scan import SCAN_FILE, accept_stdin
from ..data.spooled_stdin import drop_spooled, reads_stdin
from ..engine.interface import EngineInterface
from ..files.disk_space import require_room, room_on
from ..files.file_stamp import sha256 as file_sha256
from ..models.device_memory import peak_bytes, shortage_as_error
from ..models.model_pool import ModelPool
from ..policies.policy_engine import sampling_engine
from ..rescore.kv_difference import measure_kv_difference, with_kv_difference
from ..runs.failures import dropped_groups, error_reasons, refused_policies
from ..runs.run_dir import RunDir, Start
from ..runs.summary import SESSION_FIGURES, Summary, overall_figures
from ..runs.throughput import Counts
from ..store.recovery import Recovered
from ..store.writer import Writer
from .crash_isolation import isolated_outcomes, suspect_rows
from .heartbeat import Heartbeat
from .io_threads import IOThreads, SessionInput, SessionRules
from .job import Kind
from .loading import LoadedModels, load_models, rater_of
from .progress_display import Show, Watch
from .run_spec import RunSpec, with_rows_of_run
from .systematic_failure import RowCheck, every_request, require_sound_rows

log = logging.getLogger("mlx_bulk")

_SHORTAGE_CURE = "lower batch.memory, batch.rows or batch.tokens, then continue with the same command (without --overwrite)"
_LASTING = ("complete", "rows", "records", "errors", "dropped", "stats_sha256")  # summary figures that a start without work keeps


def run_job(config: JobConfig, kind: Kind, start: Start, process: HostProcess, show: Show, models: ModelPool) -> Summary:
    """Runs the job, or what is left of it.

    process: the process around the run, which may end it early. show: see ``Watch``. models: holds the models that an earlier run
    of this process loaded, and those of this run afterwards.

    Raises a BulkError for what stops the job; what was finished until then is safe. Raises ValueError for another ``show``.
    """
    if show not in get_args(Show):
        raise ValueError(f"show: found {show!r}; expected one of {', '.join(map(repr, get_args(Show)))}")
    kind.check(config, [])  # errors in the templates come before any file is opened
    orders = process.supervisor.orders(Path(config.output.path).absolute())
    if orders.started:
        start = replace(start, overwrite=False, retry_errors=False)
    with (
        Heartbeat(config.batch.stall_seconds) as heartbeat,
        RunDir.open(Path(config.output.path)) as run_dir,
        room_on(run_dir.root),
    ):
        if run_dir.doomed.exists():
            log.info("%s: holds an older run, which an earlier --overwrite was to remove; it goes now", run_dir.root)
            start = replace(start, overwrite=True)
        config = config if start.overwrite else with_rows_of_run(config)
        session = _Session(_Command(config, kind, start, show), process, orders, heartbeat, run_dir, models)
        try:
            summary = session.run()
        except BaseException as error:
            if session.noted:
                with suppress(OSError):  # the error itself matters more than the note of it
                    run_dir.session_ended({"how": type(error).__name__, "message": str(error)})
            raise
        finally:
            drop_spooled(run_dir.root)
        if session.noted:
            how = "complete" if summary.complete else "stopped"
            run_dir.session_ended({"how": how, "rows": summary.rows, "errors": summary.errors})
        return summary


@dataclass(slots=True, frozen=True)
class _Command:
    """The caller's arguments, see ``run_job``."""

    config: JobConfig
    kind: Kind
    start: Start
    show: Show


@dataclass(slots=True, frozen=True)
class _OpenRun:
    """The run that a session works on: its parts, what earlier sessions recorded, and the writer of its records."""

    spec: RunSpec
    layout: Layout
    recovered: Recovered
    writer: Writer

    @property
    def unfinished(self) -> bool:
        """True while a shard is not committed. Says nothing of what this session commits."""
        return len(self.recovered.committed) < self.layout.shards

    def counts(self, engine: EngineInterface) -> Counts:
        """Returns what the run has done so far."""
        return Counts(self.writer.rows, self.layout.total, self.writer.errors, engine.version)

    def rows(self, config: JobConfig) -> Iterator[Row | BadRow]:
        """Reads the rows of all shards that are not committed."""
        shards = (shard for shard in range(self.layout.shards) if shard not in self.recovered.committed)
        return read_rounds(self.spec.scan, config.data, self.layout, shards)


class _Session:
    """One start of a run, from the open run directory to the summary."""

    def __init__(self, command: _Command, process: HostProcess, orders: Orders, heartbeat: Heartbeat, run_dir: RunDir, models: ModelPool):
        self.command, self.config, self.start = command, command.config, command.start
        self.process, self.orders, self.heartbeat = process, orders, heartbeat
        self.run_dir, self.models = run_dir, models
        self.io_threads: IOThreads | None = None
        self.noted = False  # sessions.jsonl has this start
        self.begin = monotonic()

    def run(self) -> Summary:
        """Does what is left of the run, and returns how far it came."""
        run = self._open_run()
        progress, complete, statistics = Progress(), True, None
        with self.process.saving(lambda: self._save(run.writer)), closing(run.writer):
            if run.layout.rows == 0:
                log.warning("%s: the input has no rows; there is nothing to do", self.config.data.path)
            elif run.unfinished:
                progress, complete = self._work(run)
            self.heartbeat.doing("writing the last records")
            if complete:
                run.writer.finish()
                self.heartbeat.doing("computing statistics")
                statistics = with_kv_difference(run.spec.job.statistics(self.run_dir.root), self.run_dir, self.config)
                self.run_dir.write_statistics(statistics)
        return self._summary(run, progress, statistics)

    def _open_run(self) -> _OpenRun:
        """Scans the input, makes the job, binds the run directory to them, and recovers what is recorded."""
        config, run_dir = self.config, self.run_dir
        self.heartbeat.doing("reading the input and the tokenizer")
        if reads_stdin(config.data):
            self.process.supervisor.reading_stdin(run_dir.root.absolute())
        spec = RunSpec.of(config, run_dir.root, self.command.kind, self.start.overwrite)
        description = {
            "config": config.model_dump(mode="json"),
            "cwd": str(Path.cwd()),  # where relative paths start
            "identity": spec.identity(config),
            "inputs": spec.scan.fingerprint(),
        }
        layout = Layout.of(description)
        self.heartbeat.doing("looking up what is done")

        def accepted() -> None:
            nonlocal spec
            spec = replace(spec, scan=accept_stdin(spec.scan))

        (run_dir.replace if self.start.overwrite else run_dir.bind)(description, self.start.adopt, accepted)
        spec.scan.save(run_dir.root / SCAN_FILE)
        recovered = run_dir.recover(layout, spec.job.schema, self.start.retry_errors)
        self.process.supervisor.begin(run_dir.root.absolute(), config.batch.deterministic, layout.positions)
        writer = Writer(run_dir, run_dir.identity, spec.job.schema, layout, recovered, config.output.fsync_seconds)
        return _OpenRun(spec, layout, recovered, writer)

    def _save(self, writer: Writer) -> bool:
        """Saves what is finished. Called in a thread of its own when the process must end in the middle of a step."""
        saved = self.io_threads is None or self.io_threads.flush()
        if self.noted:
            self.run_dir.session_ended({"how": "stopped", "rows": writer.rows, "errors": writer.errors})
        return saved

    def _work(self, run: _OpenRun) -> tuple[Progress, bool]:
        """Runs the model over what is left. Returns the engine's counts, and True when everything is done."""
        log.info("%d row%s from %s; BLAS: %s", (n := run.spec.scan.rows), "" if n == 1 else "s", self.config.data.path, backend.prepare())
        if backend.device_name() == "cpu" and not backend.compiles():
            log.info("no g++ is on the PATH: kernels for this CPU are not compiled, and mlx's own take several times as long. Install it.")
        require_room(self.run_dir.results)  # a volume that stays full costs no model load
        self._require_sound_rows(run)
        self.heartbeat.doing("loading the model")
        models = self._load(run.spec)
        check = models.row_check()
        self._require_sound_rows(run, check)
        spec, rater, setups = run.spec, rater_of(models, run.spec.job), (models.setup, models.reference)
        engine = sampling_engine(spec.job.engine, *setups, self.config, spec.checkpoint, self.run_dir, run.layout, rater)
        engine.progress.report_to(self.heartbeat.activity, self.process.supervisor.note_in_flight)
        suspects = suspect_rows(run.rows(self.config), [] if models.setup.static else self.orders.first_groups)
        session = SessionInput(run.spec.job, run.rows(self.config), run.layout, run.recovered, suspects)
        threads = self.io_threads = IOThreads(
            session, self._rules(run, models.setup.static, engine, check), run.writer, engine.newest_version
        )
        with (
            shortage_as_error(f"what was finished is safe: {_SHORTAGE_CURE}"),
            Watch(engine.progress, lambda: run.counts(engine), self.run_dir.add_metrics, self.command.show),
        ):
            try:
                self._record(isolated_outcomes(engine, threads, len(suspects), threads.stopped), threads)
            finally:
                run.writer.wait()  # the last line of metrics counts every row
        self.process.supervisor.note_in_flight(())
        if models.setup.prefix_cache is not None:
            log.info("batch.prefix_cache: %s", models.setup.prefix_cache.account)
        measure_kv_difference(self.run_dir, self.config, models.setup, self.process.stopped)
        return engine.progress, not self.process.stopped()

    def _require_sound_rows(self, run: _OpenRun, check: RowCheck = every_request) -> None:
        if run.writer.rows == 0 and self.config.on_error == "quarantine":
            self.heartbeat.doing("looking at the first rows")
            require_sound_rows(run.spec.job, run.rows(self.config), run.layout, check)

    def _load(self, spec: RunSpec) -> LoadedModels:
        """Loads the model, and the reference beside it, and notes the start with what was found of them."""
        batch = self.config.batch
        if batch.prefix_cache is not None and self.config.job != "generate":
            log.warning("batch.prefix_cache: %s is not used, as only generate jobs keep prefixes", batch.prefix_cache)
            batch = batch.model_copy(update={"prefix_cache": None})
        models = load_models(spec.models(self.config), batch, spec.job.wanted, self.models)
        if halved := self.orders.batch_halvings:
            limits = (models := models.halved(halved)).setup.limits
            log.info("batches of up to %d rows and %d tokens, as larger ones ended the process", limits.rows, limits.tokens)
        self.run_dir.session({**models.about, "halved": halved, "settings": free(self.config), "words": self.start.words})
        self.noted = True
        return models

    def _rules(self, run: _OpenRun, static: bool, engine: EngineInterface, check: RowCheck) -> SessionRules:
        return SessionRules(
            check=check,
            stopped=self.process.stopped,
            window_shards=window_shards(run.layout.rows_per_shard, static or engine.live),
            whole_shards=static,
            fail_fast=self.config.on_error == "fail",
            fatal=self.orders.fatal_rows,
        )

    def _record(self, outcomes: Iterator[Outcome], threads: IOThreads) -> None:
        """Hands the model's outcomes to the threads until there are no more. Whatever happens, those handed over are written."""
        try:
            for outcome in outcomes:
                if threads.full:
                    self.heartbeat.doing("waiting for finished rows to be written")
                threads.put(outcome)
        except BaseException:
            threads.abandon()
            raise
        finally:
            self.heartbeat.doing("writing the last records")
            threads.close()

    def _summary(self, run: _OpenRun, p: Progress, statistics: pa.Table | None) -> Summary:
        """Returns how the run ended, and writes summary.json where that is new. ``statistics``: those of a complete run."""
        job, writer = run.spec.job, run.writer
        dropped = dropped_groups(self.run_dir) if writer.errors and job.grouping is not None else 0
        summary = Summary(
            job=self.config.job,
            output=self.run_dir.root,
            rows=writer.rows,
            of=run.layout.total,
            records=writer.records,
            errors=writer.errors - dropped,
            dropped=dropped,
            refused=refused_policies(self.run_dir),
            prompt_tokens=p.prompt,
            prefilled_tokens=p.prefilled,
            generated_tokens=p.generated,
            scored_tokens=p.scored,
            seconds=round(monotonic() - self.begin, 3),
            padding_waste=round(1 - p.prefilled / p.padded, 4) if p.padded else 0.0,
            peak_memory_bytes=peak_bytes(),
            complete=statistics is not None,
            worked=run.unfinished,
            reasons=error_reasons(self.run_dir.root) if writer.errors > dropped else (),
            closing="" if statistics is None else job.closing(statistics),
        )
        values = {name: getattr(summary, name) for name in summary.__slots__ if name not in ("worked", "closing")}
        values["stats_sha256"] = None if statistics is None else file_sha256(self.run_dir.stats)
        stored = self.run_dir.stored_summary() or {}  # damaged, or of an earlier session if the last was killed at its end
        if run.unfinished or any(stored.get(name) != values[name] for name in _LASTING):
            session = {name: values.pop(name) for name in SESSION_FIGURES}
            values |= {"output": str(summary.output), "session": session}
            self.run_dir.write_summary(values | {"statistics": None if statistics is None else overall_figures(statistics)})
        return summary

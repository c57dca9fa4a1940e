"""A run from end to end: the only file that joins files and engine.

config -> reader -> prompts -> tokenizer -> planner -> engine -> writer -> statistics. Rows are read and tokenized, and records
written, beside the model's work (preparing.py, writer.py); this thread alone touches the model.
"""

import logging
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import get_args

import pyarrow as pa

from ...configs.schema import JobConfig, free
from ...kernels import backend
from ..core.errors import OutOfRoom
from ..core.host_process import HostProcess, Orders
from ..core.requests import BadRow, Outcome, Row
from ..core.shard_layout import Layout, window_shards
from ..data.reader import read_rounds
from ..data.scan import SCAN_FILE, take_in
from ..data.sources import drop_waiting, reads_stdin
from ..engine.interface import Progress
from ..engine.setup import Setup
from ..files.atomic import replacing
from ..files.disk_space import require_room, room_on
from ..files.file_stamp import sha256 as file_sha256
from ..models.device_memory import is_out_of_memory, peak_bytes
from ..models.model_pool import ModelPool
from ..policies.policy_engine import PolicyEngine, sampling_engine
from ..runs.failures import dropped_groups, error_reasons, refused_policies
from ..runs.run_dir import RunDir, Start
from ..runs.summary import SESSION_FIGURES, Summary, overall_figures
from ..runs.throughput import Counts
from ..store.recovery import Recovered
from ..store.writer import Writer
from . import crash_isolation
from .heartbeat import Heartbeat
from .io_threads import IOThreads, SessionInput, SessionRules
from .job import Job, Kind
from .loading import LoadedModels, load_models
from .progress_display import Show, Watch
from .run_spec import RunSpec

log = logging.getLogger("mlx_bulk")


def run_job(config: JobConfig, kind: Kind, start: Start, outside: HostProcess, show: Show, models: ModelPool) -> Summary:
    """Runs the job, or what is left of it. ``outside`` is the process around it, which may end it early; ``show``: see ``Watch``.

    ``models`` holds what an earlier run of this process loaded, and then what this one did.

    Raises a BulkError for what stops the job; what was finished until then is safe. ValueError for another ``show``.
    """
    if show not in get_args(Show):
        raise ValueError(f"show: found {show!r}; expected one of {', '.join(map(repr, get_args(Show)))}")
    kind.check(config, [])  # what is wrong with the templates is said before any file is opened
    orders = outside.supervisor.orders(Path(config.output.path).absolute())
    if orders.begun:
        start = replace(start, overwrite=False, retry_errors=False)
    with (
        Heartbeat(config.batch.stall_seconds) as heartbeat,
        RunDir.open(Path(config.output.path)) as run_dir,
        room_on(run_dir.root),
    ):
        if run_dir.doomed.exists():
            log.info("%s: holds an older run, which an earlier --overwrite was to remove; it goes now", run_dir.root)
            start = replace(start, overwrite=True)
        session = _Session(config, run_dir, start, outside, orders, heartbeat, show, models)
        try:
            summary = session.run(kind)
        except BaseException as error:
            if session.started:
                with suppress(OSError):  # the error itself matters more than the note of it
                    run_dir.session_ended({"how": type(error).__name__, "message": str(error)})
            raise
        finally:
            drop_waiting(run_dir.root)
        if session.started:
            how = "complete" if summary.complete else "stopped"
            run_dir.session_ended({"how": how, "rows": summary.rows, "errors": summary.errors})
        return summary


def _halved(setup: Setup, times: int) -> Setup:
    return replace(setup, limits=setup.limits.halved(times))


class _Session:
    """One start of a run: everything between the open directory and the summary."""

    def __init__(
        self,
        config: JobConfig,
        run_dir: RunDir,
        start: Start,
        outside: HostProcess,
        orders: Orders,
        heartbeat: Heartbeat,
        show: Show,
        models: ModelPool,
    ):
        self.config, self.run_dir, self.start, self.models = config, run_dir, start, models
        self.show: Show = show
        self.outside, self.orders, self.heartbeat = outside, orders, heartbeat
        self.io_threads: IOThreads | None = None
        self.started = False
        self.begin = monotonic()

    def run(self, kind: Kind) -> Summary:
        """Does what is left, and says how far it came."""
        config, run_dir = self.config, self.run_dir
        self.heartbeat.doing("reading the input and the tokenizer")
        if reads_stdin(config.data):
            self.outside.supervisor.reading_stdin(run_dir.root.absolute())
        known = RunSpec.of(config, run_dir.root, kind, self.start.overwrite)
        described = {
            "config": config.model_dump(mode="json"),
            "cwd": str(Path.cwd()),  # where relative paths start
            "identity": known.identity(config),
            "inputs": known.found.fingerprint(),
        }
        layout = Layout.of(described)
        self.heartbeat.doing("looking up what is done")

        def accepted() -> None:
            nonlocal known
            known = replace(known, found=take_in(known.found))

        (run_dir.replace if self.start.overwrite else run_dir.bind)(described, self.start.adopt, accepted)
        known.found.save(run_dir.root / SCAN_FILE)
        recovered = run_dir.recover(layout, known.job.schema, self.start.retry_errors)
        self.outside.supervisor.begin(run_dir.root.absolute(), config.batch.deterministic, layout.positions)
        writer = Writer(run_dir, run_dir.identity, known.job.schema, layout, recovered, config.output.fsync_seconds)
        statistics = None
        progress, complete, worked = Progress(), True, len(recovered.committed) < layout.shards
        with self.outside.saving(lambda: self._save(writer)), closing(writer):
            if layout.rows == 0:
                log.warning("%s: the input has no rows; there is nothing to do", config.data.path)
            elif worked:
                progress, complete = self._work(known, layout, writer, recovered)
            self.heartbeat.doing("writing the last records")
            if complete:
                writer.finish()
                self.heartbeat.doing("computing statistics")
                statistics = self._write_statistics(known.job)
        return self._summary(known, layout, writer, progress, worked, statistics)

    def _save(self, writer: Writer) -> bool:
        """Saves what is finished, in a thread of its own, as the process is about to end in the middle of a step."""
        saved = self.io_threads is None or self.io_threads.flush()
        if self.started:
            self.run_dir.session_ended({"how": "stopped", "rows": writer.rows, "errors": writer.errors})
        return saved

    def _work(self, known: RunSpec, layout: Layout, writer: Writer, recovered: Recovered) -> tuple[Progress, bool]:
        """Runs the model over what is left; the engine's counts, and whether everything is done."""
        config, found, job = self.config, known.found, known.job
        log.info("%d rows from %s; BLAS: %s", found.rows, config.data.path, backend.prepare())
        if backend.device_name() == "cpu" and not backend.compiles():
            log.info("no g++ is on the PATH: kernels for this CPU are not compiled, and mlx's own take several times as long. Install it.")
        require_room(self.run_dir.results)  # a volume that stays full costs no model load
        self.heartbeat.doing("loading the model")
        loaded = self._loaded(known)
        setup, reference = loaded.setup, loaded.reference
        if halved := self.orders.halved:
            setup, reference = _halved(setup, halved), reference and _halved(reference, halved)
            log.info("batches of up to %d rows and %d tokens, as larger ones ended the process", setup.limits.rows, setup.limits.tokens)
        self.run_dir.session({**loaded.about, "halved": halved, "settings": free(config), "words": self.start.words})
        self.started = True
        engine = sampling_engine(job.engine, setup, reference, config, known.checkpoint, self.run_dir, layout)
        newest = engine.updates.newest_version if isinstance(engine, PolicyEngine) else lambda: 0
        self.heartbeat.progress, engine.progress.flight = engine.progress, self.outside.supervisor.flight
        groups = [] if setup.static else self.orders.first

        def rows() -> Iterator[Row | BadRow]:
            return read_rounds(found, config.data, layout, (shard for shard in range(layout.shards) if shard not in recovered.committed))

        first = crash_isolation.picked(rows(), groups)
        stopped = self.outside.stopped
        live = isinstance(engine, PolicyEngine) and engine.updates.live
        rules = SessionRules(
            check=replace(loaded, setup=setup, reference=reference).row_check(),
            stopped=stopped,
            window_shards=window_shards(layout.rows_per_shard, setup.static or live),
            whole_shards=setup.static,
            fail_fast=config.on_error == "fail",
            fatal=self.orders.fatal,
        )
        threads = self.io_threads = IOThreads(SessionInput(job, rows(), layout, recovered, first), rules, writer, newest)

        def counts() -> Counts:
            version = engine.updates.policy.version if isinstance(engine, PolicyEngine) else None
            return Counts(writer.rows, layout.total, writer.errors, version)

        try:
            with Watch(engine.progress, counts, self.run_dir.add_metrics, self.show):
                self._feed(crash_isolation.outcomes(engine, threads, len(first), lambda: stopped() or threads.failed), threads)
        except BaseException as error:
            if is_out_of_memory(error):
                cure = "lower batch.memory, batch.rows or batch.tokens, then continue with the same command (without --overwrite)"
                raise OutOfRoom(f"out of device memory ({error}); what was finished is safe: {cure}") from error
            raise
        self.outside.supervisor.flight(())
        if setup.prefix_cache is not None:
            log.info("batch.prefix_cache: %s", setup.prefix_cache.account)
        return engine.progress, not stopped()

    def _feed(self, outcomes: Iterator[Outcome], threads: IOThreads) -> None:
        """Hands what the model has finished to the threads, until there is no more; what it has taken is written, come what may."""
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

    def _loaded(self, known: RunSpec) -> LoadedModels:
        """Loads the model, and the reference beside it."""
        batch = self.config.batch
        if batch.prefix_cache is not None and self.config.job != "generate":
            log.warning("batch.prefix_cache: %s is not used, as only generate jobs keep prefixes", batch.prefix_cache)
            batch = batch.model_copy(update={"prefix_cache": None})
        return load_models(known.models(self.config), batch, known.job.wanted, self.models)

    def _write_statistics(self, job: Job) -> pa.Table:
        """Writes stats.arrow."""
        table = job.statistics(self.run_dir.root)
        with replacing(self.run_dir.stats) as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return table

    def _summary(self, known: RunSpec, layout: Layout, writer: Writer, p: Progress, worked: bool, statistics: pa.Table | None) -> Summary:
        """Says how the run ended; ``statistics`` are there when it is complete."""
        left_out = dropped_groups(self.run_dir) if writer.errors and known.job.grouping is not None else 0
        summary = Summary(
            job=self.config.job,
            output=self.run_dir.root,
            rows=writer.rows,
            of=layout.total,
            records=writer.records,
            errors=writer.errors - left_out,
            dropped=left_out,
            refused=refused_policies(self.run_dir),
            prompt_tokens=p.prompt,
            prefilled_tokens=p.prefilled,
            generated_tokens=p.generated,
            scored_tokens=p.scored,
            seconds=round(monotonic() - self.begin, 3),
            padding_waste=round(1 - p.prefilled / p.padded, 4) if p.padded else 0.0,
            peak_memory_bytes=peak_bytes(),
            complete=statistics is not None,
            worked=worked,
            reasons=error_reasons(self.run_dir.root) if writer.errors > left_out else (),
            closing="" if statistics is None else known.job.closing(statistics),
        )
        values = {name: getattr(summary, name) for name in summary.__slots__ if name not in ("worked", "closing")}
        values["stats_sha256"] = None if statistics is None else file_sha256(self.run_dir.stats)
        said = self.run_dir.stored_summary() or {}  # damaged, or of an earlier session if the last was killed at its end
        if worked or any(said.get(name) != values[name] for name in ("complete", "rows", "records", "errors", "dropped", "stats_sha256")):
            session = {name: values.pop(name) for name in SESSION_FIGURES}
            values |= {"output": str(summary.output), "session": session}
            self.run_dir.write_summary(values | {"statistics": None if statistics is None else overall_figures(statistics)})
        return summary

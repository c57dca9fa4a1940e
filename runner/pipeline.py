"""A run from end to end: the only file that joins files and engine.

config -> reader -> prompts -> tokenizer -> planner -> engine -> writer -> statistics. Rows are read and tokenized, and records
written, beside the model's work (preparing.py, writer.py); this thread alone touches the model.
"""

import logging
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any, Self

import pyarrow as pa

from ..configs.schema import BatchConfig, JobConfig, free, identity
from ..kernels import backend
from . import apart
from . import model as checkpoints
from . import reference as references
from . import tokenizer as tokenizers
from .column_types import JSON_METADATA
from .drift import columns_of
from .durable import replacing, require_room, room_on
from .durable import sha256 as file_sha256
from .engine import Progress
from .errors import OutOfRoom
from .fitting import fit, row_check
from .heartbeat import Heartbeat
from .inputs import Scan
from .job import Job, Kind, Parts
from .loaded import Models
from .manifest import RunDir, Start
from .memory import is_out_of_memory, peak_bytes
from .model import Checkpoint, Model
from .outside import Orders, Outside
from .prefill import Wanted
from .preparing import Desk
from .reader import read
from .reasons import reasons
from .records import BadRow, Row
from .recovery import Recovered, shard_rows
from .reference import vocabulary_of
from .scan import SCAN_FILE, scan, take_in
from .sources import drop_waiting, reads_stdin
from .stats import figures
from .summary import SESSION_FIGURES, Summary
from .watch import Counts, Watch
from .writer import Writer

log = logging.getLogger("mlx_bulk")


def run(config: JobConfig, kind: Kind, start: Start, outside: Outside, quiet: bool, models: Models) -> Summary:
    """Runs the job, or what is left of it. ``outside`` is the process around it, which may end it early.

    ``models`` holds what an earlier run of this process loaded, and then what this one did.

    Raises a BulkError for what stops the job; what was finished until then is safe.
    """
    kind.check(config, [])  # what is wrong with the templates is said before any file is opened
    orders = outside.supervisor.orders(Path(config.output.path).absolute())
    if orders.begun:
        start = Start(adopt=start.adopt)
    with (
        Heartbeat(config.batch.stall_seconds) as heartbeat,
        RunDir.open(Path(config.output.path)) as run_dir,
        room_on(run_dir.root),
    ):
        session = _Session(config, run_dir, start, outside, orders, heartbeat, quiet, models)
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


@dataclass(slots=True, frozen=True)
class _Known:
    """What a session knows before it touches the model or the run directory's rows."""

    found: Scan
    checkpoint: Checkpoint
    reference: Checkpoint | None
    job: Job
    template: str | None

    @classmethod
    def of(cls, config: JobConfig, folder: Path, kind: Kind, afresh: bool) -> Self:
        """Scans the input, finds the checkpoint, loads the tokenizer, and makes the job; ``folder``, ``afresh``: see ``scan``."""
        found = scan(config.data, folder, afresh)
        _warn(config, found)
        kind.check(config, found.columns)
        kept = found.input_type(config.data.keep)
        checkpoint = checkpoints.find(config.model)
        tokenizer = tokenizers.load(
            checkpoint.folder, config.prompt.chat_template, config.prompt.chat_template_args, config.model.trust_remote_code
        )
        vocabulary = vocabulary_of(checkpoint, tokenizer)
        reference = None if config.reference is None else references.find(config.reference, vocabulary, tokenizer)
        eos = frozenset(i for i in tokenizer.eos | checkpoint.eos if 0 <= i < vocabulary)
        family = str(checkpoint.config.get("model_type"))
        compared = None if reference is None else reference.context
        parts = Parts(config, found.columns, kept, tokenizer, checkpoint.context, compared, vocabulary, family, eos)
        return cls(found, checkpoint, reference, kind(parts), tokenizer.chat_template)


def _warn(config: JobConfig, found: Scan) -> None:
    """Says what is allowed and may surprise."""
    for column in found.schema:
        if column.metadata == JSON_METADATA:
            log.warning("column %r holds values of several kinds: the records keep it as JSON text", column.name)
    if config.prompt.too_long == "truncate_right" and config.prompt.sources not in ([], ["text"]):
        log.warning("prompt.too_long: truncate_right cuts the start of the assistant's turn off a chat that is too long")


class _Session:
    """One start of a run: everything between the open directory and the summary."""

    def __init__(
        self,
        config: JobConfig,
        run_dir: RunDir,
        start: Start,
        outside: Outside,
        orders: Orders,
        heartbeat: Heartbeat,
        quiet: bool,
        models: Models,
    ):
        self.config, self.run_dir, self.start, self.quiet, self.models = config, run_dir, start, quiet, models
        self.outside, self.orders, self.heartbeat = outside, orders, heartbeat
        self.desk: Desk | None = None
        self.started = False
        self.begin = monotonic()

    def run(self, kind: Kind) -> Summary:
        """Does what is left, and says how far it came."""
        config, run_dir, per_shard = self.config, self.run_dir, self.config.batch.rows_per_shard
        self.heartbeat.doing("reading the input and the tokenizer")
        if reads_stdin(config.data):
            self.outside.supervisor.reading_stdin(run_dir.root.absolute())
        known = _Known.of(config, run_dir.root, kind, self.start.overwrite)
        rows = known.found.rows
        described = {
            "config": config.model_dump(mode="json"),
            "cwd": str(Path.cwd()),  # where relative paths start
            "identity": self._identity(known),
            "inputs": known.found.fingerprint(),
        }
        self.heartbeat.doing("looking up what is done")

        def accepted() -> None:
            nonlocal known
            known = replace(known, found=take_in(known.found))

        (run_dir.replace if self.start.overwrite else run_dir.bind)(described, self.start.adopt, accepted)
        known.found.save(run_dir.root / SCAN_FILE)
        recovered = run_dir.recover(rows, per_shard, known.job.schema, self.start.retry_errors)
        self.outside.supervisor.begin(run_dir.root.absolute(), config.batch.deterministic)
        writer = Writer(run_dir, known.job.schema, rows, per_shard, recovered, config.output.fsync_seconds)
        statistics = None
        progress, complete, worked = Progress(), True, len(recovered.committed) * per_shard < rows
        with self.outside.saving(lambda: self._save(writer)), closing(writer):
            if rows == 0:
                log.warning("%s: the input has no rows; there is nothing to do", config.data.path)
            elif worked:
                progress, complete = self._work(known, writer, recovered)
            self.heartbeat.doing("writing the last records")
            if complete:
                writer.finish()
                self.heartbeat.doing("computing statistics")
                statistics = self._write_statistics(known.job)
        return self._summary(known, writer, progress, worked, statistics)

    def _save(self, writer: Writer) -> bool:
        """Saves what is finished, in a thread of its own, as the process is about to end in the middle of a step."""
        saved = self.desk is None or self.desk.flush()
        if self.started:
            self.run_dir.session_ended({"how": "stopped", "rows": writer.rows, "errors": writer.errors})
        return saved

    def _identity(self, known: _Known) -> dict[str, Any]:
        template, reference = known.template, {}
        if known.reference is not None:
            reference = {f"score.reference.{key}": value for key, value in checkpoints.fingerprints(known.reference).items()}
        machine: dict[str, Any] = {}
        if self.config.batch.deterministic:  # bits are promised, and they are this machine's and these libraries'
            machine = {"device": backend.device_name(), "BLAS": str(backend.prepare()), "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}
        return {
            **machine,
            **identity(self.config),
            **checkpoints.fingerprints(known.checkpoint),
            **reference,
            "prompt.chat_template": None if template is None else f"sha256 {sha256(template.encode()).hexdigest()}",
            **columns_of(known.job.schema),
        }

    def _work(self, known: _Known, writer: Writer, recovered: Recovered) -> tuple[Progress, bool]:
        """Runs the model over what is left; the engine's counts, and whether everything is done."""
        config, per_shard = self.config, self.config.batch.rows_per_shard
        found, job, other = known.found, known.job, known.reference
        log.info("%d rows from %s; BLAS: %s", found.rows, config.data.path, backend.prepare())
        require_room(self.run_dir.results)  # a volume that stays full costs no model load
        self.heartbeat.doing("loading the model")
        setup, reference, about = fit(*self._models(known, job.wanted))
        self.run_dir.session({**about, "settings": free(config)})
        self.started = True
        engine = job.engine(setup, reference)
        self.heartbeat.progress, engine.progress.flight = engine.progress, self.outside.supervisor.flight
        groups = [] if setup.static else self.orders.first
        first = apart.picked(self._rows(found, recovered), groups)
        stopped = self.outside.stopped
        desk = self.desk = Desk(
            job,
            self._rows(found, recovered),
            writer,
            recovered,
            per_shard,
            row_check(setup, known.checkpoint.config, None if reference is None or other is None else (reference, other.config)),
            stopped,
            first=first,
            fatal=self.orders.fatal,
            fail_fast=config.on_error == "fail",
            whole_shards=setup.static,
        )

        def counts() -> Counts:
            return Counts(writer.rows, found.rows, writer.errors)

        try:
            with Watch(engine.progress, counts, self.run_dir.add_metrics, self.quiet):
                try:
                    for outcome in apart.outcomes(engine, desk, len(first), lambda: stopped() or desk.failed):
                        if desk.full:
                            self.heartbeat.doing("waiting for finished rows to be written")
                        desk.put(outcome)
                finally:
                    self.heartbeat.doing("writing the last records")
                    desk.close()
        except BaseException as error:
            if is_out_of_memory(error):
                cure = "lower batch.memory, batch.rows or batch.tokens, then continue with the same command (without --overwrite)"
                raise OutOfRoom(f"out of device memory ({error}); what was finished is safe: {cure}") from error
            raise
        self.outside.supervisor.flight(())
        return engine.progress, not stopped()

    def _rows(self, found: Scan, recovered: Recovered) -> Iterator[Row | BadRow]:
        """The input's rows, those of committed shards left out."""
        rows, per_shard = found.rows, self.config.batch.rows_per_shard
        left = (shard for shard in range(-(-rows // per_shard)) if shard not in recovered.committed)
        return read(found, self.config.data, (shard_rows(shard, rows, per_shard) for shard in left))

    def _models(self, known: _Known, wanted: Wanted) -> tuple[Model, BatchConfig, Wanted, Model | None]:
        """What ``fit`` takes, loaded: the model, and the reference beside it."""
        needed = [(self.config.model, known.checkpoint)]
        if self.config.reference is not None and known.reference is not None:
            needed.append((self.config.reference, known.reference))
        model, *others = self.models.get(needed, int(self.config.batch.memory * backend.memory_bytes()))
        return model, self.config.batch, wanted, others[0] if others else None

    def _write_statistics(self, job: Job) -> pa.Table:
        """Writes stats.arrow."""
        table = job.statistics(self.run_dir.root)
        with replacing(self.run_dir.stats) as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return table

    def _summary(self, known: _Known, writer: Writer, p: Progress, worked: bool, statistics: pa.Table | None) -> Summary:
        """Says how the run ended; ``statistics`` are there when it is complete."""
        summary = Summary(
            job=self.config.job,
            output=self.run_dir.root,
            rows=writer.rows,
            of=known.found.rows,
            records=writer.records,
            errors=writer.errors,
            prompt_tokens=p.prompt,
            generated_tokens=p.generated,
            scored_tokens=p.scored,
            seconds=round(monotonic() - self.begin, 3),
            padding_waste=round(1 - p.prefilled / p.padded, 4) if p.padded else 0.0,
            peak_memory_bytes=peak_bytes(),
            complete=statistics is not None,
            worked=worked,
            reasons=reasons(self.run_dir.root) if writer.errors else (),
            closing="" if statistics is None else known.job.closing(statistics),
        )
        values = {name: getattr(summary, name) for name in summary.__slots__ if name not in ("worked", "closing")}
        values["stats_sha256"] = None if statistics is None else file_sha256(self.run_dir.stats)
        said = self.run_dir.stored_summary() or {}  # damaged, or of an earlier session if the last was killed at its end
        if worked or any(said.get(name) != values[name] for name in ("complete", "rows", "records", "errors", "stats_sha256")):
            session = {name: values.pop(name) for name in SESSION_FIGURES}
            values |= {"output": str(summary.output), "session": session}
            self.run_dir.write_summary(values | {"statistics": None if statistics is None else figures(statistics)})
        return summary

"""Runs a job in its run directory, from the config to the statistics.

    config -> reader -> prompts -> tokenizer -> scheduler -> engine -> writer -> statistics

What stands between reader and writer is the session's ``SessionWork``: a model in this process (model_work.py), or other processes.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, get_args

import pyarrow as pa

from ...configs.explain import shown
from ...configs.schema import JobConfig
from ..core.errors import DriftError
from ..core.host_process import HostProcess, Orders
from ..core.progress import Progress
from ..core.shard_layout import Layout
from ..data.reader import read_rows
from ..data.row_key import changed_key
from ..data.scan import SCAN_FILE, accept_stdin
from ..data.spooled_stdin import drop_spooled, reads_stdin
from ..files.disk_space import room_on
from ..files.file_stamp import sha256 as file_sha256
from ..images.named_files import files_fingerprint
from ..models.device_memory import peak_bytes
from ..rescore.kv_difference import with_kv_difference
from ..runs.drift import KEY, inputs_key
from ..runs.failures import dropped_groups, error_reasons, refused_policies
from ..runs.run_dir import RunDir, Start
from ..runs.run_files import unchecked_run
from ..runs.run_pictures import pictures_came
from ..runs.summary import SESSION_FIGURES, Summary, overall_figures
from ..store.orphan_parts import has_undeclared_results
from ..store.results import finished_errors, finished_results
from ..store.writer import Writer
from .heartbeat import Heartbeat
from .job import Kind
from .model_work import OpenRun, SessionWork
from .progress_display import Show
from .run_spec import RunSpec, with_rows_of_run

log = logging.getLogger("mlx_bulk")

_CAME = "Pictures that were missing are there now, and failed rows alone name them: with --retry-errors the same command does these rows."
_LASTING = ("complete", "rows", "records", "errors", "dropped", "stats_sha256")  # summary figures that a start without work keeps


def run_job(config: JobConfig, kind: Kind, start: Start, process: HostProcess, show: Show, work: SessionWork) -> Summary:
    """Runs the job, or what is left of it.

    process: the process around the run, which may end it early. show: see ``Watch``. work: does the rows.

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
        session = _Session(_Command(config, kind, start, show), process, orders, heartbeat, run_dir, work)
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


class _Session:
    """One start of a run, from the open run directory to the summary."""

    def __init__(self, command: _Command, process: HostProcess, orders: Orders, heartbeat: Heartbeat, run_dir: RunDir, work: SessionWork):
        self.command, self.config, self.start = command, command.config, command.start
        self.process, self.orders, self.heartbeat = process, orders, heartbeat
        self.run_dir, self.work = run_dir, work
        self.open: OpenRun | None = None
        self.begin = monotonic()

    @property
    def noted(self) -> bool:
        """True when sessions.jsonl has this start."""
        return self.open is not None and self.open.noted

    def run(self) -> Summary:
        """Does what is left of the run, and returns how far it came."""
        run = self.open = self._open_run()
        progress, complete, statistics = Progress(), True, None
        with self.process.saving(lambda: self._save(run)), closing(run.writer):
            if run.layout.rows == 0:
                log.warning("%s: the input has no rows; there is nothing to do", self.config.data.path)
            elif run.unfinished:
                progress, complete = self.work.run(run)
            self.heartbeat.doing("writing the last records")
            if complete:
                run.writer.finish()
                self.heartbeat.doing("computing statistics")
                statistics = with_kv_difference(run.spec.job.statistics(self.run_dir.root), self.run_dir, self.config)
                self.run_dir.write_statistics(statistics)
        return self._summary(run, progress, statistics)

    def _open_run(self) -> OpenRun:
        """Scans the input, makes the job, binds the run directory to them, and recovers what is recorded."""
        config, run_dir = self.config, self.run_dir
        self.heartbeat.doing("reading the input and the tokenizer")
        if reads_stdin(config.data):
            self.process.supervisor.reading_stdin(run_dir.root.absolute())
        spec = RunSpec.of(config, run_dir.root, self.command.kind, self.start.overwrite)
        inputs, identity = self._inputs(spec), spec.identity(config)
        description = {
            "config": config.model_dump(mode="json"),
            "cwd": str(Path.cwd()),  # where relative paths start
            "identity": identity,
            "inputs": inputs,
            "nonce": secrets.token_hex(8),
        }
        layout = Layout.of(description)
        self.heartbeat.doing("looking up what is done")

        def accepted() -> None:
            nonlocal spec
            for key in (inputs_key(inputs), KEY):
                if key in self.start.adopt:
                    self._require_same_keys(spec, key)
            spec = replace(spec, scan=accept_stdin(spec.scan))

        adopt = self.start.adopt
        if self.start.retry_errors and self._pictures_came(spec, inputs):
            log.info("%s: pictures are there now that were not; the failed rows that name them are tried again", run_dir.root)
            adopt = (*adopt, inputs_key(inputs))
        try:
            (run_dir.replace if self.start.overwrite else run_dir.bind)(description, adopt, accepted)
        except DriftError as error:
            if self.start.retry_errors or not self._pictures_came(spec, inputs):
                raise
            raise DriftError(f"{error}\n{_CAME}") from None
        spec.scan.save(run_dir.root / SCAN_FILE)
        recovered = run_dir.recover(layout, spec.job.schema, self.start.retry_errors)
        self.process.supervisor.begin(run_dir.root.absolute(), config.batch.deterministic, layout.positions)
        writer = Writer(run_dir, run_dir.identity, spec.job.schema, layout, recovered, config.output.fsync_seconds)
        return OpenRun(
            config,
            self.start,
            self.command.show,
            self.process,
            self.orders,
            self.heartbeat,
            run_dir,
            spec,
            identity,
            layout,
            recovered,
            writer,
        )

    def _require_same_keys(self, spec: RunSpec, key: str) -> None:
        """Raises DriftError where the adopted input, or its adopted keys, have another row in a finished row's place."""
        data, root = self.config.data, self.run_dir.root
        if data.key_column is None:
            return

        if has_undeclared_results(root):
            raise DriftError(
                f"{root}: --adopt {key}: results/ holds finished rows that commits.jsonl does not name, as it was damaged. First give the "
                "command without --adopt, with the input that the run had: it names them again. Then adopt the change."
            )

        def results() -> Iterator[pa.RecordBatch]:
            return finished_results(root, ["row", "key"], sound=True)

        def errors() -> Iterator[pa.RecordBatch]:  # with --retry-errors users mend failed rows, and their keys
            return finished_errors(root, ["row", "key"], sound=True, retried=self.start.retry_errors)

        if (changed := changed_key(results, errors, read_rows(spec.scan, data, [range(spec.scan.rows)]))) is None:
            return
        now = f"cannot be read ({changed.reason})" if changed.now is None else f"has the key {shown(changed.now)}"
        what = "failed" if changed.failed else "is finished"
        mended = "Where you have mended failed rows, --retry-errors beside it does them again. Else keep" if changed.failed else "Keep"
        raise DriftError(
            f"{root}: --adopt {key}: row {changed.row} of the input {now}, and what {what} in its place is of {shown(changed.finished)}. "
            f"{mended} the finished rows in front, in their places, and put new rows behind them; or start over with --overwrite (this "
            "removes the run's results)."
        )

    def _inputs(self, spec: RunSpec) -> dict[str, Any]:
        """Returns what the run's input is: its sources, and the files of pictures that its rows name."""
        inputs = spec.scan.fingerprint()
        if spec.images is None:
            return inputs
        self.heartbeat.doing("looking at the files of pictures")
        stored = None if self.start.overwrite else unchecked_run(self.run_dir.root)
        files = files_fingerprint(spec.scan, self.config, None if stored is None else stored["inputs"].get("pictures"))
        return inputs if files is None else inputs | {"pictures": files}

    def _pictures_came(self, spec: RunSpec, inputs: dict[str, Any]) -> bool:
        """Returns whether pictures are there that were not when their rows failed, and nothing else in the input changed."""
        stored = None if self.start.overwrite else unchecked_run(self.run_dir.root)
        return stored is not None and pictures_came(self.run_dir.root, stored["inputs"], inputs, spec.scan, self.config)

    def _save(self, run: OpenRun) -> bool:
        """Saves what is finished. Called in a thread of its own when the process must end in the middle of a step."""
        saved = run.flush()
        if run.noted:
            self.run_dir.session_ended({"how": "stopped", "rows": run.writer.rows, "errors": run.writer.errors})
        return saved

    def _summary(self, run: OpenRun, p: Progress, statistics: pa.Table | None) -> Summary:
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

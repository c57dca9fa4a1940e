"""The work of a session: what is left of a run goes through a model in this process. Another ``SessionWork`` may send it elsewhere.

The calling thread alone touches the model. Rows are read and tokenized beside it (io_threads.py); store/writer.py writes records.
After a crash the supervisor names groups of rows that may have caused it. Each runs first, alone in the model, and is on the disk
before the next begins. So another death costs only its own group.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...configs.identity import free
from ...configs.schema import BatchConfig, JobConfig
from ...kernels import backend
from ..core.host_process import HostProcess, Orders
from ..core.outcomes import Outcome
from ..core.progress import Progress
from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout, window_size
from ..data.reader import read_rounds
from ..engine.interface import EngineInterface, one_window
from ..files.disk_space import require_room
from ..models.device_memory import shortage_as_error
from ..models.model_pool import ModelPool
from ..policies.policy_engine import sampling_engine
from ..rescore.kv_difference import measure_kv_difference
from ..runs.run_dir import RunDir, Start
from ..runs.throughput import Counts
from ..store.recovery import Recovered
from ..store.writer import Writer
from .heartbeat import Heartbeat
from .io_threads import IOThreads, SessionInput, SessionRules, row_windows
from .loading import LoadedModels, load_models, rater_of
from .progress_display import Show, Watch
from .run_spec import RunSpec
from .systematic_failure import RowCheck, every_request, require_sound_rows

log = logging.getLogger("mlx_bulk")

_SHORTAGE_CURE = "lower batch.memory, batch.rows or batch.tokens, then continue with the same command (without --overwrite)"


@dataclass(slots=True)
class OpenRun:
    """The run that a session works on: its parts, what earlier sessions recorded, the writer of its records, and the process.

    identity: as it was when run.json was written, whatever happens to the files since. noted: sessions.jsonl has this start. flush: saves
    all that is finished, from any thread; returns True on success.
    """

    config: JobConfig
    start: Start
    show: Show
    process: HostProcess
    orders: Orders
    heartbeat: Heartbeat
    run_dir: RunDir
    spec: RunSpec
    identity: dict[str, Any]
    layout: Layout
    recovered: Recovered
    writer: Writer
    noted: bool = False
    flush: Callable[[], bool] = lambda: True

    @property
    def unfinished(self) -> bool:
        """True while a shard is not committed. Says nothing of what this session commits."""
        return len(self.recovered.committed) < self.layout.shards

    def counts(self, version: int | None) -> Counts:
        """Returns what the run has done so far. version: of the policy that samples now."""
        return Counts(self.writer.rows, self.layout.total, self.writer.errors, version)

    def rows(self) -> Iterator[Row | BadRow]:
        """Reads the rows of all shards that are not committed."""
        shards = (shard for shard in range(self.layout.shards) if shard not in self.recovered.committed)
        return read_rounds(self.spec.scan, self.config.data, self.layout, shards)

    def require_sound_rows(self, check: RowCheck = every_request) -> None:
        """Raises DataError where the first rows all fail for one reason, before a row is done."""
        if self.writer.rows == 0 and self.config.on_error == "quarantine":
            self.heartbeat.doing("looking at the first rows")
            require_sound_rows(self.spec.job, self.rows(), self.layout, check)

    def note(self, facts: dict[str, Any]) -> None:
        """Notes the start in sessions.jsonl, with ``facts`` of the model or the workers."""
        self.run_dir.session({**facts, "settings": free(self.config), "words": self.start.words, "rows": self.writer.rows})
        self.noted = True


class SessionWork(Protocol):
    """Does what is left of a run."""

    def run(self, run: OpenRun) -> tuple[Progress, bool]:
        """Returns the counts of this session, and True when everything is done, False where the process is to end early."""
        ...


class ModelWork:
    """Runs a model in this process. pool: holds the models that an earlier run loaded, and those of this run afterwards."""

    def __init__(self, pool: ModelPool):
        self._pool = pool

    def run(self, run: OpenRun) -> tuple[Progress, bool]:
        """Runs the model over what is left; see ``SessionWork``."""
        config, process = run.config, run.process
        on_cpu = backend.device_name() == "cpu"
        computing = [f"BLAS: {backend.prepare()}", *filter(None, [backend.cpu_wish()])] if on_cpu else []  # a GPU has no use for one
        rows = f"{(n := run.spec.scan.rows)} row{'' if n == 1 else 's'} from {config.data.path}"
        log.info("%s", "; ".join([rows, *computing]))
        if on_cpu and not backend.compiles():
            log.info("no g++ is on the PATH: kernels for this CPU are not compiled, and mlx's own take several times as long. Install it.")
        require_room(run.run_dir.results)  # a volume that stays full costs no model load
        run.require_sound_rows()
        run.heartbeat.doing("loading the model")
        models = self._load(run)
        check = models.row_check()
        run.require_sound_rows(check)
        spec, rater, setups = run.spec, rater_of(models, run.spec.job), (models.setup, models.reference)
        engine = sampling_engine(spec.job.engine, *setups, config, spec.checkpoint, run.run_dir, run.layout, rater)
        engine.progress.report_to(run.heartbeat.activity, process.supervisor.note_in_flight)
        suspects = suspect_rows(run.rows(), [] if models.setup.static else run.orders.first_groups)
        window = window_size(run.layout.rows_per_shard, models.setup.static or engine.live, spec.images is not None)
        session = SessionInput(spec.job, row_windows(run.rows(), run.layout, window), run.layout, run.recovered, suspects)
        threads = IOThreads(session, _rules(run, models.setup.static, check), run.writer, engine.newest_version)
        run.flush = threads.flush
        with (
            shortage_as_error(f"what was finished is safe: {_SHORTAGE_CURE}"),
            Watch(engine.progress, lambda: run.counts(engine.version), run.run_dir.add_metrics, run.show),
        ):
            try:
                _record(run, isolated_outcomes(engine, threads, len(suspects), threads.stopped), threads)
            finally:
                run.writer.wait()  # the last line of metrics counts every row
        process.supervisor.note_in_flight(())
        if models.setup.prefix_cache is not None:
            log.info("batch.prefix_cache: %s", models.setup.prefix_cache.account)
        measure_kv_difference(run.run_dir, config, models.setup, process.stopped)
        return engine.progress, not process.stopped()

    def _load(self, run: OpenRun) -> LoadedModels:
        """Loads the model, and the reference beside it, and notes the start with what was found of them."""
        models = load_models(run.spec.models(run.config), batch_of(run.config), run.spec.job.wanted, self._pool)
        if halved := run.orders.batch_halvings:
            limits = (models := models.halved(halved)).setup.limits
            log.info("batches of up to %d rows and %d tokens, as larger ones ended the process", limits.rows, limits.tokens)
        run.note({**models.about, "halved": halved})
        return models


def batch_of(config: JobConfig) -> BatchConfig:
    """Returns the batch settings as they apply to the job, and says which do not."""
    batch = config.batch
    if batch.prefix_cache is not None and config.job != "generate":
        log.warning("batch.prefix_cache: %s is not used, as only generate jobs keep prefixes", batch.prefix_cache)
        return batch.model_copy(update={"prefix_cache": None})
    return batch


def _rules(run: OpenRun, static: bool, check: RowCheck) -> SessionRules:
    return SessionRules(
        check=check,
        stopped=run.process.stopped,
        whole_shards=static,
        fail_fast=run.config.on_error == "fail",
        fatal=run.orders.fatal_rows,
    )


def _record(run: OpenRun, outcomes: Iterator[Outcome], threads: IOThreads) -> None:
    """Hands the model's outcomes to the threads until there are no more. Whatever happens, those handed over are written.

    The threads that write also call a rollout's reward functions, which may take long.
    """
    rated = run.config.job == "rollout"
    try:
        for outcome in outcomes:
            if threads.full:
                run.heartbeat.doing(f"waiting for finished rows to be {'rewarded and ' if rated else ''}written")
            threads.put(outcome)
    except BaseException:
        threads.abandon()
        raise
    finally:
        run.heartbeat.doing(f"{'waiting for the last rewards and ' if rated else ''}writing the last records")
        threads.close()


def suspect_rows(rows: Iterator[Row | BadRow], groups: Sequence[Sequence[int]]) -> list[list[Row | BadRow]]:
    """Returns the rows of each group of positions. ``rows`` come in order; they are read no further than needed.

    Positions that are not among ``rows`` (they are done) are left out.
    """
    wanted = {position for group in groups for position in group}
    last = max(wanted, default=-1)
    by_position: dict[int, Row | BadRow] = {}
    while len(by_position) < len(wanted) and (row := next(rows, None)) is not None and row.position <= last:
        if row.position in wanted:
            by_position[row.position] = row
    return [[by_position[position] for position in group if position in by_position] for group in groups]


def isolated_outcomes(engine: EngineInterface, threads: IOThreads, groups: int, stopped: Callable[[], bool]) -> Iterator[Outcome]:
    """Yields all outcomes. Each of the first ``groups`` windows is run alone and saved before the engine sees the next one."""
    for _ in range(groups):
        yield from engine.run(one_window(threads.next_window(True) or []), stopped)
        threads.flush()
    yield from engine.run(threads.next_window, stopped)

"""Runs a config file's job, or its sweep, in this process, as the command ``mlx-bulk run`` does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlx_bulk.arguments import as_strings, names_nearest, require_progress
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.jobs import ROW_JOBS
from mlx_bulk.configs.load import either, load_config
from mlx_bulk.configs.schema import JobConfig
from mlx_bulk.configs.sweep import SweepConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.report import report
from mlx_bulk.jobs.sweep.results_table import sweep_table, write_sweep_table
from mlx_bulk.jobs.sweep.sweep import CellOutcome, run_sweep, sweep_exit_code
from mlx_bulk.jobs.worker.session_work import session_work
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.progress_display import Show
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.runs.run_files import needs_report
from mlx_bulk.runner.runs.summary import Summary

Config = str | Path | Mapping[str, object] | JobConfig | SweepConfig


@dataclass(frozen=True, slots=True)
class CellResult:
    """How a cell of a sweep ended.

    name: of its folder. settings: each key that some cell of the sweep changes, with this cell's value. output: its run
    directory. summary: None where it failed or was not begun. exit_code: what the command would return for this cell alone, None for
    one that has not come to its end. message: why it failed, else "".
    """

    name: str
    settings: dict[str, object]
    output: Path
    state: Literal["complete", "stopped", "failed", "waiting"]
    summary: Summary | None
    exit_code: int | None
    message: str


@names_nearest
def run(
    config: Config,
    overrides: Sequence[str] = (),
    *,
    overwrite: bool = False,
    retry_errors: bool = False,
    adopt: Sequence[str] = (),
    progress: Show = "progress",
    stopped: Callable[[], bool] | None = None,
) -> Summary:
    """Runs the job in ``config``, or continues it where its run directory left off, and returns how it ended.

    config: the path of a YAML file, a mapping of the same keys, or what ``load_config`` returned. overrides: "data.limit=8", as
    ``--set``. overwrite, retry_errors, adopt: as the command's options. progress: what stderr shows: "progress" (a bar on a terminal,
    else lines), "json" (lines of JSON) or "nothing". stopped: asked between steps, from this thread; once it returns True the run saves
    what is finished and ends, and the summary's ``complete`` is False.

    As the command it writes report.html when the run is complete. It does not print the summary, takes no signals, and runs the
    model in this process, never supervised. Rows that cannot be done are counted in ``Summary.errors``; they raise nothing.

    Raises BulkError where the command would end with an error; its ``exit_code`` is the command's, and what was finished is safe.
    ConfigError for a sweep: see ``sweep``.
    """
    require_progress(progress)
    job = _parsed(config, overrides)
    if isinstance(job, SweepConfig):
        raise ConfigError(f"job: found sweep; expected {either(ROW_JOBS)}: mlx_bulk.sweep runs a sweep")
    start = Start(overwrite=overwrite, retry_errors=retry_errors, adopt=as_strings(adopt, "adopt", '["data.path"]'))
    with session_work(job.cluster, job.batch.deterministic) as work:
        summary = session.run_job(job, KINDS[job.job], start, _host(stopped), progress, work)
    if needs_report(summary):
        report.report_at_end(summary.output)
    return summary


@names_nearest
def sweep(
    config: Config,
    overrides: Sequence[str] = (),
    *,
    overwrite: bool = False,
    retry_errors: bool = False,
    adopt: Sequence[str] = (),
    progress: Show = "progress",
    stopped: Callable[[], bool] | None = None,
) -> list[CellResult]:
    """Runs the sweep in ``config``, or continues it, and returns how each cell ended, in the cells' order. Arguments: see ``run``.

    A cell that fails stops no other: its ``state`` is "failed". Writes the sweep's table after each cell, and its report.html at the end.

    Raises BulkError where nothing can begin: for a config that is wrong, or a folder that another process has open. ConfigError for
    a config that is no sweep.
    """
    require_progress(progress)
    parsed = _parsed(config, overrides)
    if not isinstance(parsed, SweepConfig):
        raise ConfigError(f"job: found {parsed.job}; expected sweep: mlx_bulk.run runs one job")
    folder = Path(parsed.output.path)
    source = str(config) if isinstance(config, str | Path) else "the config"
    start = Start(overwrite=overwrite, retry_errors=retry_errors, adopt=as_strings(adopt, "adopt", '["data.path"]'))

    def write_table(ended: Sequence[CellOutcome]) -> None:
        write_sweep_table(sweep_table(ended), folder)

    made = cells(parsed, source)
    with session_work(parsed.cluster, any(cell.config.batch.deterministic for cell in made)) as work:
        ended = run_sweep(made, KINDS, folder, start, _host(stopped), progress, write_table, work)
    if sweep_exit_code(ended) is not None:
        report.report_at_end(folder)
    return [_result(each) for each in ended]


def _parsed(config: Config, overrides: Sequence[str]) -> JobConfig | SweepConfig:
    settings = as_strings(overrides, "overrides", '["data.limit=8"]')
    if not isinstance(config, JobConfig | SweepConfig):
        if not isinstance(config, str | Path | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - the caller may not check types
            raise TypeError(f"config: found {type(config).__name__}; expected a path, a mapping, or what load_config returned")
        return load_config(config, settings)
    return load_config(config.model_dump(exclude_unset=True), settings) if settings else config


def _host(stopped: Callable[[], bool] | None) -> HostProcess:
    return HostProcess() if stopped is None else HostProcess(stopped)


def _result(ended: CellOutcome) -> CellResult:
    cell = ended.cell
    settings: dict[str, object] = dict(cell.settings)
    return CellResult(cell.name, settings, Path(cell.config.output.path), ended.state, ended.summary, ended.exit_code, ended.message)

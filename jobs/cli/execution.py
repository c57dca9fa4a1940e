"""A config's job or sweep, run in this process: its exit code, its closing text, and its report.

Knows no option of the command line. Heavy libraries are imported once the config is read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runner.core.host_process import HostProcess
from ..supervision.signals import Stop
from ..terminal.closing_line import QUARANTINED, closing_text, continue_command
from ..terminal.engine_imports import engine_imports
from .options import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...configs.cells import Cell
    from ...runner.pipeline.progress_display import Show
    from ..sweep.sweep import CellOutcome


@dataclass(slots=True, frozen=True)
class RunOutcome:
    """The end of a run.

    code: its exit code; None for a run that a signal stopped, whose code is the signal's. text: closes the output on stderr.
    report_folder: the run or sweep that needs a new report, or None.
    """

    code: int | None
    text: str
    report_folder: Path | None


def run_config(source: ConfigSource, start: dict[str, Any], host: HostProcess, show: "Show") -> RunOutcome:
    """Runs the job or the sweep of ``source``; ``start`` holds the fields of ``runs.run_dir.Start``. Raises BulkError."""
    from ...configs.cells import cells
    from ...configs.load import load_config
    from ...configs.sweep import SweepConfig

    config = load_config(source.file, source.overrides, source.options)
    if isinstance(config, SweepConfig):
        return _run_sweep(cells(config, str(source.file)), Path(config.output.path), start, host, show)
    with engine_imports(config.data.reads_hub, kernels=config.cluster is None):
        from ...runner.pipeline import session
        from ...runner.runs.run_dir import Start
        from ...runner.runs.run_files import needs_report
        from ..kinds import KINDS
        from ..worker.session_work import session_work

    with session_work(config.cluster, config.batch.deterministic) as work:
        summary = session.run_job(config, KINDS[config.job], Start(**start), host, show, work)
    code = QUARANTINED if summary.errors else 0
    report_folder = summary.output if needs_report(summary) else None
    return RunOutcome(code if summary.complete else None, closing_text(summary, continue_command(start["overwrite"])), report_folder)


def _run_sweep(sweep_cells: "list[Cell]", folder: Path, start: dict[str, Any], host: HostProcess, show: "Show") -> RunOutcome:
    local = sweep_cells[0].config.cluster is None
    with engine_imports(any(cell.config.data.reads_hub for cell in sweep_cells), kernels=local):
        from ...runner.runs.run_dir import Start
        from ...runner.runs.run_files import TABLE_FILE, has_complete_cells
        from ..kinds import KINDS
        from ..sweep import sweep
        from ..sweep.results_table import closing_table, sweep_table, write_sweep_table
        from ..worker.session_work import session_work

    earlier = has_complete_cells(folder) and not start["overwrite"]

    def keeps_table(ended: "Sequence[CellOutcome]") -> bool:
        return earlier and sweep.nothing_done(ended)

    def write_table(ended: "Sequence[CellOutcome]") -> None:
        if not keeps_table(ended):
            write_sweep_table(sweep_table(ended), folder)

    deterministic = any(cell.config.batch.deterministic for cell in sweep_cells)
    with session_work(sweep_cells[0].config.cluster, deterministic) as work:
        ended = sweep.run_sweep(sweep_cells, KINDS, folder, Start(**start), host, show, write_table, work)
    code = sweep.sweep_exit_code(ended)
    lines = [closing_table(ended), sweep.closing_line(ended, folder, continue_command(start["overwrite"]))]
    if keeps_table(ended):
        lines.insert(1, f"No cell did any work: {TABLE_FILE} and the report stay as the last start left them.")
    return RunOutcome(code, "\n".join(lines), None if code is None or keeps_table(ended) else folder)


def draw_report(folder: Path, stop: Stop) -> None:
    """Writes the report of a complete run or sweep, unless a signal came while the run was ending."""
    from ..report.report import report_at_end, say_left_out

    if stop.code:
        say_left_out(folder, "interrupted")
    else:
        report_at_end(folder)

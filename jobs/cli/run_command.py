"""``mlx-bulk run CONFIG``: parses its options and runs it, in this process or in a second one under a supervisor.

A run in this process ends on SIGINT, SIGTERM and SIGHUP between two steps. ``execution.py`` does the work.
"""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ...runner.core.host_process import HostProcess, Supervisor
from ..supervision.signals import Stop, interrupted
from ..supervision.supervisor_link import Link, report_exit
from ..terminal.closing_line import continue_command
from ..terminal.console import one_line_errors, print_message, set_log
from .execution import RunOutcome, draw_report, run_config
from .options import ConfigSource, RepeatableCommand, config_source, log_level_option, quiet_option, start_options, typed_words

if TYPE_CHECKING:
    from ...runner.pipeline.progress_display import Show


@dataclass(slots=True, frozen=True)
class RunOptions:
    """The options of ``mlx-bulk run`` beside its config; words: the command line after the ``command``, as typed."""

    overwrite: bool
    retry_errors: bool
    adopt: tuple[str, ...]
    supervised: bool
    json_progress: bool
    log_level: str
    quiet: bool
    words: tuple[str, ...]
    command: str = "run"

    @property
    def show(self) -> "Show":
        """The way to show progress."""
        return "nothing" if self.quiet else "json" if self.json_progress else "progress"

    @property
    def start(self) -> dict[str, Any]:
        """The fields of ``runs.run_dir.Start``, which is imported later."""
        words = (self.command, *self.words)
        return {"overwrite": self.overwrite, "retry_errors": self.retry_errors, "adopt": self.adopt, "words": words}

    @property
    def continuing(self) -> str:
        """The command that continues the run."""
        return continue_command(self.overwrite)


@click.command("run", cls=RepeatableCommand)
@config_source("model", "data", "limit", "output", "workers", example="sampling.n=4")
@start_options
@click.option(
    "--supervised/--no-supervised",
    default=sys.platform == "darwin",
    help="Runs the model in a second process, which is started again when it dies; a row that kills it goes to errors/.  "
    "[default: --supervised on macOS only]",
)
@click.option("--json-progress", is_flag=True, help="Tells progress as JSON, a line every 5 seconds on stderr (docs/status.md).")
@log_level_option
@quiet_option
def run_command(source: ConfigSource, **values: Any) -> None:
    """Runs the job or the sweep in CONFIG, or continues it where its run directory left off."""
    options = RunOptions(**values, words=typed_words())
    if options.quiet and options.json_progress:
        raise click.UsageError("--json-progress and --quiet exclude each other: the one tells progress, the other nothing.")
    set_log(options.log_level, options.quiet)
    link = Link.inherited()
    if options.supervised and link is None:
        run_supervised("run", options.words)
    else:
        run_here(source, options, link)


def run_supervised(command: str, words: tuple[str, ...]) -> None:
    """Runs the command in a second process, starts it again when it dies, and exits with its code."""
    from ..supervision.supervisor import supervise

    with one_line_errors():
        # -P as with the installed script: the working folder is no place to import from.
        sys.exit(supervise([sys.executable, "-P", "-m", "mlx_bulk.jobs", command, *words]))


def run_here(source: ConfigSource, options: RunOptions, link: Link | None, completed: Callable[[], str] | None = None) -> None:
    """Runs the config in this process, and exits with the run's code, or with the signal's where one stopped the run.

    completed: called once the run is complete, before its report; it returns a text for the end.
    """
    command = options.continuing
    stop = Stop(command=command) if link is None else Stop(link.signalled, command)
    host = HostProcess(stop.requested, stop.saving, link or Supervisor())
    outcome: RunOutcome | None = None
    more = ""
    with report_exit(link), one_line_errors():
        try:
            with stop:
                outcome = run_config(source, options.start, host, options.show)
                if outcome.code is not None:
                    more = "" if completed is None else completed()
                    stop.finish(outcome.code)
                if outcome.report_folder is not None:
                    draw_report(outcome.report_folder, stop)
        except KeyboardInterrupt:
            if outcome is None or outcome.code is None:
                print_message(f"mlx-bulk: {interrupted(command)}")
                sys.exit(stop.code or 128 + signal.SIGINT)
        with suppress(KeyboardInterrupt):
            if not options.quiet:
                print_message(f"{outcome.text}\n{more}" if more else outcome.text)
        # A signal that comes when all is done does not change the exit code.
        sys.exit(stop.code if outcome.code is None else outcome.code)

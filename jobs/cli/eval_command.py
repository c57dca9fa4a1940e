"""``mlx-bulk eval CONFIG``: parses its options, and runs the evaluation, or what is left of it, in this process.

A run ends on SIGINT, SIGTERM and SIGHUP between two steps. ``jobs/evals`` does the work.
"""

import logging
import os
import signal
import sys
from typing import Any

import click

from ...runner.core.host_process import HostProcess
from ..supervision.signals import Stop, interrupted
from ..terminal.closing_line import continue_command
from ..terminal.console import one_line_errors, print_message, set_log
from ..terminal.engine_imports import prepare_mlx
from .execution import draw_report
from .options import ConfigSource, RepeatableCommand, config_source, log_level_option, quiet_option, start_options, typed_words


@click.command("eval", cls=RepeatableCommand)
@config_source("model", "output", example="limit=100")
@start_options
@log_level_option
@quiet_option
def eval_(source: ConfigSource, log_level: str, quiet: bool, **start: Any) -> None:
    """Runs the tasks of lm-evaluation-harness that CONFIG names, or continues them, and prints their table."""
    set_log(log_level, quiet)
    with one_line_errors():
        from ...configs.load import load_eval

        config = load_eval(source.path, source.overrides, source.options)
        if quiet:
            os.environ["TQDM_DISABLE"] = "1"  # lm-eval's bars have no other switch
            logging.getLogger("lm_eval").setLevel(logging.ERROR)
        prepare_mlx()
        from ...runner.runs.run_dir import Start
        from ..evals.evaluation import run_evaluation

        command = continue_command(start["overwrite"])
        stop = Stop(command=command)
        try:
            with stop:
                host = HostProcess(stop.requested, stop.saving)
                evaluation = run_evaluation(config, Start(**start, words=("eval", *typed_words())), host)
                stop.finish(0)
                draw_report(evaluation.results.parent, stop)
        except KeyboardInterrupt:
            print_message(
                f"mlx-bulk: {interrupted(command)}" if not stop.begun else f"stopped; {command} continues -> {config.output.path}"
            )
            sys.exit(stop.code or 128 + signal.SIGINT)
        click.echo(evaluation.tables)
        if not quiet:
            click.echo(_last_line(evaluation), err=True)


def _last_line(evaluation: Any) -> str:
    known = f", {evaluation.known:,} from before" if evaluation.known else ""
    failed = f", {evaluation.failed:,} without an answer (errors/)" if evaluation.failed else ""
    return f"complete: {evaluation.requests:,} requests{known}{failed} -> {evaluation.results}"

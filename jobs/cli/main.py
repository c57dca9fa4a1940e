"""The command line, ``mlx-bulk run CONFIG`` first. Errors become one readable message and an exit code here, at the edge, and only here.

Heavy libraries are imported when a command needs them, so that ``--help`` and config errors answer at once.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...runner.core.host_process import HostProcess, Supervisor
from ..terminal.closing_line import QUARANTINED, continuing, ending
from ..terminal.console import LEVELS, one_line_errors, ready, set_log, tell
from .commands import COMMANDS
from .signals import SIGNALS, Stop, interrupted
from .supervisor_link import Link, telling_exit

if TYPE_CHECKING:
    from ...configs.cells import Cell
    from ...runner.pipeline.progress_display import Show

log = logging.getLogger("mlx_bulk")

_WORDS = "mlx_bulk.words"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mlx-bulk")
def cli() -> None:
    """Bulk LLM generation and scoring on Apple's MLX: a dataset in, Arrow files out."""


class _Repeatable(click.Command):
    """A command that keeps the words it was called with."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


@cli.command(cls=_Repeatable)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--model", help="Short for --set model.path=…")
@click.option("--data", help="Short for --set data.path=…")
@click.option("--output", help="Short for --set output.path=…")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Overrides a key, for example sampling.n=4. Repeatable.")
@click.option("--overwrite", is_flag=True, help="Removes the run that the output folder holds, and starts over.")
@click.option("--retry-errors", is_flag=True, help="Does the rows in errors/ again; those that succeed move to the results.")
@click.option("--adopt", multiple=True, metavar="KEY", help="Goes on although KEY has changed, as you vouch for it. Repeatable.")
@click.option(
    "--supervised/--no-supervised",
    default=sys.platform == "darwin",
    help="Runs the model in a second process, which is started again when it dies; a row that kills it goes to errors/.  "
    "[default: --supervised on macOS only]",
)
@click.option("--json-progress", is_flag=True, help="Tells progress as JSON, a line every 5 seconds on stderr (docs/status.md).")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Errors only: no progress, no log.")
def run(
    config: Path,
    model: str | None,
    data: str | None,
    output: str | None,
    overrides: tuple[str, ...],
    overwrite: bool,
    retry_errors: bool,
    adopt: tuple[str, ...],
    supervised: bool,
    json_progress: bool,
    log_level: str,
    quiet: bool,
) -> None:
    """Runs the job or the sweep in CONFIG, or continues it where its run directory left off."""
    if quiet and json_progress:
        raise click.UsageError("--json-progress and --quiet exclude each other: the one tells progress, the other nothing.")
    set_log(log_level, quiet)
    link = Link.inherited()
    if supervised and link is None:
        from .supervisor import supervise

        with one_line_errors():
            # -P as with the installed script: the working folder is no place to import from.
            sys.exit(supervise([sys.executable, "-P", "-m", "mlx_bulk.jobs", "run", *click.get_current_context().meta[_WORDS]]))
    paths = {key: value for key, value in (("model.path", model), ("data.path", data), ("output.path", output)) if value is not None}
    words = ("run", *click.get_current_context().meta[_WORDS])
    start = {"overwrite": overwrite, "retry_errors": retry_errors, "adopt": adopt, "words": words}
    command = continuing(overwrite)
    stop = Stop(command=command) if link is None else Stop(link.signalled, command)
    show: Show = "nothing" if quiet else "json" if json_progress else "progress"
    outside = HostProcess(stop.asked, stop.saving, link or Supervisor())
    with telling_exit(link), one_line_errors():
        code, said = None, ""
        try:
            with stop:
                code, said, finished = _run(config, overrides, paths, start, outside, show)
                if code is not None:
                    stop.finished(code)
                if finished is not None:
                    _draw(finished, stop)
        except KeyboardInterrupt:
            if code is None:
                tell(f"mlx-bulk: {interrupted(command)}")
                sys.exit(stop.code or 128 + signal.SIGINT)
        with suppress(KeyboardInterrupt):
            if not quiet:
                tell(said)
        # A signal that comes when all is done changes nothing of what the run has come to.
        sys.exit(stop.code if code is None else code)


@cli.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the most different documents to list.")
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object in place of text.")
@click.option("--html", type=click.Path(path_type=Path), metavar="PATH", help="Writes the comparison as a page, in place of text.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def compare(run_a: Path, run_b: Path, top: int, as_json: bool, html: Path | None, log_level: str) -> None:
    """Shows two runs side by side: what differs in their configs and figures, and in which documents most."""
    if as_json and html is not None:
        raise click.UsageError("--json and --html exclude each other: the one prints, the other writes a page.")
    set_log(log_level)
    with one_line_errors():
        if html is not None:
            from ..report.report import report_of_pair

            click.echo(report_of_pair(run_a, run_b, html))
            return
        from ..compare.compare import compared
        from ..compare.text import shown_as_json, shown_as_text

        comparison = compared(run_a, run_b, top)
        click.echo(shown_as_json(comparison) if as_json else shown_as_text(comparison))


@cli.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--rescore", "how", flag_value="rescore", help="Scores the stored tokens anew too, each under its own policy version.")
@click.option("--replay", "how", flag_value="replay", help="Decodes them step by step again too; in deterministic mode to the bit.")
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object in place of text.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def verify(run_folder: Path, how: str | None, as_json: bool, log_level: str) -> None:
    """Counts and hashes all that RUN holds anew, against its input: each row there once, no byte changed. Changes nothing."""
    set_log(log_level)
    with one_line_errors():
        if how is not None:
            ready()
        from ..verify.verify import account_as_json, account_as_text, compared_anew, verified, verify_exit_code

        found = verified(run_folder)
        anew = None if how is None else compared_anew(run_folder, how)
        click.echo(account_as_json(found, anew) if as_json else account_as_text(found, anew))
    sys.exit(verify_exit_code(found, anew))


@cli.command("eval")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--model", help="Short for --set model.path=…")
@click.option("--output", help="Short for --set output.path=…")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Overrides a key, for example limit=100. Repeatable.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Errors only: no progress, no log.")
def eval_(config: Path, model: str | None, output: str | None, overrides: tuple[str, ...], log_level: str, quiet: bool) -> None:
    """Runs the tasks of lm-evaluation-harness that CONFIG names, and prints their table."""
    set_log(log_level, quiet)
    paths = {key: value for key, value in (("model.path", model), ("output.path", output)) if value is not None}
    with one_line_errors():
        from ...configs.load import load_eval

        loaded = load_eval(config, overrides, paths)
        if quiet:
            os.environ["TQDM_DISABLE"] = "1"  # lm-eval's bars have no other switch
            logging.getLogger("lm_eval").setLevel(logging.ERROR)
        ready()
        from .evaluate import run_evaluation

        try:
            done = run_evaluation(loaded)
        except KeyboardInterrupt:
            click.echo("mlx-bulk: interrupted; nothing was written, the same command starts again", err=True)
            sys.exit(128 + signal.SIGINT)
        click.echo(done.tables)
        if not quiet:
            click.echo(f"complete -> {done.results}", err=True)


def _draw(finished: Path, stop: Stop) -> None:
    from ..report.report import report_at_end, say_left_out

    if stop.code:  # it came while the run was ending
        say_left_out(finished, "interrupted")
    else:
        report_at_end(finished)


def _is_drawn(run: Path) -> bool:
    """Whether the run's page is there and is of all that is committed: a process killed before it drew leaves the page before."""
    from ...runner.store.paths import RunPaths

    paths = RunPaths(run)
    return paths.report.exists() and paths.report.stat().st_mtime_ns >= paths.commits.stat().st_mtime_ns


def _run(
    config: Path, overrides: Sequence[str], paths: dict[str, str], start: dict[str, Any], outside: HostProcess, show: "Show"
) -> tuple[int | None, str, Path | None]:
    """Runs a job or a sweep; the exit code, what is to be said of how it ended, and the folder if it is to get a report.

    ``start`` by the fields of ``Start``. The code is None for what was stopped: the signal's.
    """
    from ...configs.cells import cells
    from ...configs.load import load_config
    from ...configs.sweep import SweepConfig

    loaded = load_config(config, overrides, paths)
    if isinstance(loaded, SweepConfig):
        return _run_sweep(cells(loaded, str(config)), Path(loaded.output.path), start, outside, show)
    ready()
    from ...runner.models.model_pool import ModelPool
    from ...runner.pipeline import session
    from ...runner.runs.run_dir import Start
    from ..kinds import KINDS

    summary = session.run_job(loaded, KINDS[loaded.job], Start(**start), outside, show, ModelPool())
    code = QUARANTINED if summary.errors else 0
    drawable = summary.complete and summary.records > 0
    finished = summary.output if drawable and (summary.worked or not _is_drawn(summary.output)) else None
    return code if summary.complete else None, ending(summary, continuing(start["overwrite"])), finished


def _run_sweep(
    cells: "list[Cell]", folder: Path, start: dict[str, Any], outside: HostProcess, show: "Show"
) -> tuple[int | None, str, Path | None]:
    ready()
    from ...runner.runs.run_dir import Start
    from ..kinds import KINDS
    from ..sweep import sweep
    from ..sweep.results_table import closing_table, sweep_table, write_sweep_table

    ended = sweep.run_sweep(
        cells, KINDS, folder, Start(**start), outside, show, lambda ended: write_sweep_table(sweep_table(ended), folder)
    )
    code, said = (
        sweep.sweep_exit_code(ended),
        f"{closing_table(ended)}\n{sweep.closing_line(ended, folder, continuing(start['overwrite']))}",
    )
    return code, said, None if code is None else folder


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The console script ``mlx-bulk``."""
    try:
        cli()
    except SystemExit as error:
        _flush()
        if error.code in [128 + number for number in SIGNALS]:
            os._exit(int(error.code))  # libraries take seconds to be unloaded, and the end is to be prompt
        raise


def _flush() -> None:
    """Writes out what was said. Where nobody reads it any more it goes nowhere: else Python would return 120 in place of the code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)

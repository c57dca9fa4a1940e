"""The command line, ``mlx-bulk run CONFIG`` first. Errors become one readable message and an exit code here, at the edge, and only here.

Heavy libraries are imported when a command needs them, so that ``--help`` and config errors answer at once.
"""

import logging
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..configs.errors import BulkError
from .ending import QUARANTINED, ending
from .stopping import Stop

if TYPE_CHECKING:
    from ..configs.cells import Cell

log = logging.getLogger("mlx_bulk")

LEVELS = ("debug", "info", "warning", "error")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mlx-bulk")
def cli() -> None:
    """Bulk LLM generation and scoring on Apple's MLX: a dataset in, Arrow files out."""


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--model", help="Short for --set model.path=…")
@click.option("--data", help="Short for --set data.path=…")
@click.option("--output", help="Short for --set output.path=…")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Overrides a key, for example sampling.n=4. Repeatable.")
@click.option("--overwrite", is_flag=True, help="Removes the run that the output folder holds, and starts over.")
@click.option("--retry-errors", is_flag=True, help="Does the rows in errors/ again; those that succeed move to the results.")
@click.option("--adopt", multiple=True, metavar="KEY", help="Goes on although KEY has changed, as you vouch for it. Repeatable.")
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
    log_level: str,
    quiet: bool,
) -> None:
    """Runs the job or the sweep in CONFIG, or continues it where its run directory left off."""
    _set_log(log_level, quiet)
    paths = {key: value for key, value in (("model.path", model), ("data.path", data), ("output.path", output)) if value is not None}
    stop = Stop()
    with _one_line_errors():
        try:
            code = _run(config, overrides, paths, {"overwrite": overwrite, "retry_errors": retry_errors, "adopt": adopt}, stop, quiet)
        except KeyboardInterrupt:
            click.echo("mlx-bulk: interrupted before the first step; the same command starts again", err=True)
            code = 128 + signal.SIGINT
    sys.exit(stop.code or code)


@cli.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the most different documents to list.")
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object in place of text.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def compare(run_a: Path, run_b: Path, top: int, as_json: bool, log_level: str) -> None:
    """Shows two runs side by side: what differs in their configs and figures, and in which documents most."""
    _set_log(log_level, quiet=False)
    with _one_line_errors():
        from .compare import compared
        from .side_by_side import shown_as_json, shown_as_text

        comparison = compared(run_a, run_b, top)
        click.echo(shown_as_json(comparison) if as_json else shown_as_text(comparison))


@cli.command("eval")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--model", help="Short for --set model.path=…")
@click.option("--output", help="Short for --set output.path=…")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Overrides a key, for example limit=100. Repeatable.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Errors only: no progress, no log.")
def eval_(config: Path, model: str | None, output: str | None, overrides: tuple[str, ...], log_level: str, quiet: bool) -> None:
    """Runs the tasks of lm-evaluation-harness that CONFIG names, and prints their table."""
    _set_log(log_level, quiet)
    paths = {key: value for key, value in (("model.path", model), ("output.path", output)) if value is not None}
    with _one_line_errors():
        from ..configs.load import load_eval

        loaded = load_eval(config, overrides, paths)
        if quiet:
            os.environ["TQDM_DISABLE"] = "1"  # lm-eval's bars have no other switch
            logging.getLogger("lm_eval").setLevel(logging.ERROR)
        _ready()
        from .evaluate import evaluate

        try:
            done = evaluate(loaded)
        except KeyboardInterrupt:
            click.echo("mlx-bulk: interrupted; nothing was written, the same command starts again", err=True)
            sys.exit(128 + signal.SIGINT)
        click.echo(done.tables)
        if not quiet:
            click.echo(f"complete -> {done.results}", err=True)


@contextmanager
def _one_line_errors() -> Generator[None]:
    """Ends the process with one readable line and an exit code for what is raised inside."""
    try:
        yield
    except BulkError as error:
        log.debug("the error below came from here:", exc_info=error)
        click.echo(f"mlx-bulk: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:  # a fault of ours, or of a library: still one line, and nothing finished is lost
        log.debug("the error below came from here:", exc_info=error)
        click.echo(f"mlx-bulk: {type(error).__name__}: {error} (finished rows are safe; --log-level debug shows where)", err=True)
        sys.exit(BulkError.exit_code)


def _run(config: Path, overrides: Sequence[str], paths: dict[str, str], start: dict[str, Any], stop: Stop, quiet: bool) -> int:
    """Runs a job or a sweep, says how it ended, and returns the exit code; ``start`` by the fields of ``Start``."""
    from ..configs.cells import cells
    from ..configs.load import load
    from ..configs.sweep import SweepConfig

    loaded = load(config, overrides, paths)
    if isinstance(loaded, SweepConfig):
        return _run_sweep(cells(loaded, str(config)), Path(loaded.output.path), start, stop, quiet)
    _ready()
    from ..runner import pipeline
    from ..runner.loaded import Models
    from ..runner.manifest import Start
    from .kinds import KINDS

    with stop:
        summary = pipeline.run(loaded, KINDS[loaded.job], Start(**start), stop.asked, quiet, Models())
    if not quiet:
        click.echo(ending(summary, bool(stop.code)), err=True)
    return QUARANTINED if summary.errors else 0


def _run_sweep(cells: "list[Cell]", folder: Path, start: dict[str, Any], stop: Stop, quiet: bool) -> int:
    _ready()
    from ..runner.manifest import Start
    from . import sweep
    from .kinds import KINDS
    from .sweep_table import closing_table, sweep_table, write_sweep_table

    with stop:
        ended = sweep.run(cells, KINDS, folder, Start(**start), stop.asked, quiet, lambda ended: write_sweep_table(sweep_table(ended), folder))
    if not quiet:
        click.echo(closing_table(ended), err=True)
        click.echo(sweep.closing_line(ended, folder), err=True)
    return sweep.exit_code(ended)


def _ready() -> None:
    """Loads mlx with its fast BLAS, before anything else imports it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are for those who call it
    from ..kernels.backend import BackendError, load_mlx
    from ..runner.errors import ModelError

    try:
        load_mlx()
    except BackendError as error:
        raise ModelError(str(error)) from error


def _set_log(level: str, quiet: bool) -> None:
    """Sets up the mlx_bulk logger alone: whoever else logs keeps their settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("mlx-bulk: %(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.ERROR if quiet else level.upper())
    log.propagate = False


def main() -> None:
    """The console script ``mlx-bulk``."""
    cli()

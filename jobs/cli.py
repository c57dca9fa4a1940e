"""The command line: ``mlx-bulk run CONFIG``. Errors become one readable message and an exit code here, at the edge, and only here.

Heavy libraries are imported when a command needs them, so that ``--help`` and config errors answer at once.
"""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ..configs.errors import BulkError

if TYPE_CHECKING:
    from ..runner.pipeline import Summary

log = logging.getLogger("mlx_bulk")

LEVELS = ("debug", "info", "warning", "error")
QUARANTINED = 3  # exit code: complete, some rows are in errors/


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mlx-bulk")
def cli() -> None:
    """Bulk LLM generation on Apple's MLX: a dataset in, Arrow files out."""


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--model", help="Short for --set model.path=…")
@click.option("--data", help="Short for --set data.path=…")
@click.option("--output", help="Short for --set output.path=…")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Overrides a key, for example sampling.n=4. Repeatable.")
@click.option("--overwrite", is_flag=True, help="Removes the run that the output folder holds, and starts over.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Errors only: no progress, no log.")
def run(
    config: Path,
    model: str | None,
    data: str | None,
    output: str | None,
    overrides: tuple[str, ...],
    overwrite: bool,
    log_level: str,
    quiet: bool,
) -> None:
    """Runs the job in CONFIG, or continues it where its run directory left off."""
    _set_log(log_level, quiet)
    short = {"model.path": model, "data.path": data, "output.path": output}
    given = [f"{key}={json.dumps(value)}" for key, value in short.items() if value is not None]
    stop = _Stop()
    try:
        summary = _run(config, [*overrides, *given], overwrite, stop, quiet)
    except KeyboardInterrupt:
        click.echo("mlx-bulk: interrupted before the first step; the same command starts again", err=True)
        sys.exit(stop.code or 128 + signal.SIGINT)
    except BulkError as error:
        log.debug("the error below came from here:", exc_info=error)
        click.echo(f"mlx-bulk: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:  # a fault of ours, or of a library: still one line, and nothing finished is lost
        log.debug("the error below came from here:", exc_info=error)
        click.echo(f"mlx-bulk: {type(error).__name__}: {error} (finished rows are safe; --log-level debug shows where)", err=True)
        sys.exit(BulkError.exit_code)
    if not quiet:
        if summary.closing:
            click.echo(summary.closing, err=True)
        click.echo(_last_line(summary, stop.code), err=True)
    sys.exit(stop.code or (QUARANTINED if summary.errors else 0))


def _run(config: Path, overrides: list[str], overwrite: bool, stop: "_Stop", quiet: bool) -> "Summary":
    from ..configs.load import load

    loaded = load(config, overrides)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are for those who call it
    from ..kernels.backend import BackendError, load_mlx
    from ..runner.errors import ModelError

    try:
        load_mlx()
    except BackendError as error:
        raise ModelError(str(error)) from error
    from ..runner import pipeline
    from ..runner.loaded import Models
    from .kinds import KINDS

    with stop:
        return pipeline.run(loaded, KINDS[loaded.job], overwrite, stop.asked, quiet, Models())


class _Stop:
    """SIGINT and SIGTERM ask the run to end between two steps; a second one ends it at once (what is on disk stays right).

    Before the first step there is nothing to save: reading the input or loading the model is broken off.
    """

    def __init__(self) -> None:
        self.code = 0
        self._stepping = False
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """True once a signal has come; who asks for the first time is about to take a step."""
        self._stepping = True
        return self._asked.is_set()

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self._asked.is_set():
            os._exit(128 + number)
        self.code = 128 + number
        if not self._stepping:
            raise KeyboardInterrupt
        self._asked.set()
        click.echo(f"\nmlx-bulk: {signal.Signals(number).name}: finishing this step and saving (again: stop at once)", err=True)


def _last_line(summary: "Summary", stopped: int) -> str:
    errors = f", {summary.errors:,} quarantined in errors/" if summary.errors else ""
    if summary.of and not summary.worked:
        return f"complete already: {summary.rows:,} of {summary.of:,} rows{errors} -> {summary.output}"
    tokens = summary.prompt_tokens + summary.generated_tokens
    counted = f"{summary.prompt_tokens:,} prompt + {summary.generated_tokens:,} generated"
    if summary.scored_tokens:
        tokens, counted = summary.scored_tokens, f"{summary.scored_tokens:,} scored"
    rate = tokens / summary.seconds if summary.seconds else 0.0
    state = "stopped; the same command continues" if stopped else "complete"
    return (
        f"{state}: {summary.rows:,} of {summary.of:,} rows{errors}; "
        f"{counted} tokens in {summary.seconds:,.1f} s ({rate:,.0f} tok/s, {summary.padding_waste:.1%} padding) -> {summary.output}"
    )


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

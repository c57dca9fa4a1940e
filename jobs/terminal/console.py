"""The edge to the terminal that all commands share: the log, errors as one line and an exit code, and mlx made ready.

Imports nothing heavy.
"""

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

import click

from ...configs.errors import BulkError
from ...configs.visible import visible, visible_lines

log = logging.getLogger("mlx_bulk")

LEVELS = ("debug", "info", "warning", "error")


@contextmanager
def one_line_errors() -> Generator[None]:
    """Ends the process with one readable line and an exit code for what is raised inside."""
    try:
        yield
    except BulkError as error:
        log.debug("the error below came from here:", exc_info=error)
        print_message(f"mlx-bulk: {error}")
        sys.exit(error.exit_code)
    except Exception as error:  # a fault of ours, or of a library: still one line, and nothing finished is lost
        log.debug("the error below came from here:", exc_info=error)
        found = visible(f"{type(error).__name__}: {error}")
        print_message(f"mlx-bulk: {found} (finished rows are safe; --log-level debug shows where)")
        sys.exit(BulkError.exit_code)


def print_message(text: str) -> None:
    """Says ``text`` on stderr; where nobody reads it any more, what is done is done all the same."""
    with suppress(OSError):
        click.echo(text, err=True)


def prepare_mlx() -> None:
    """Loads mlx with its fast BLAS, before anything else imports it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are for those who call it
    from ...kernels.backend import BackendError, load_mlx
    from ...runner.core.errors import ModelError

    try:
        load_mlx()
    except BackendError as error:
        raise ModelError(str(error)) from error


class _Visible(logging.Formatter):
    """Lines in which a terminal finds nothing to obey, whatever words of others stand in them."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


def set_log(level: str, quiet: bool = False) -> None:
    """Sets up the mlx_bulk logger alone: whoever else logs keeps their settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible("mlx-bulk: %(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.ERROR if quiet else level.upper())
    log.propagate = False

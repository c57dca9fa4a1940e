"""Sets up what all commands share: the log, and errors as one line and an exit code.

Imports nothing heavy.
"""

import logging
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
    """Ends the process with one readable line and an exit code for any exception inside the block."""
    try:
        yield
    except BulkError as error:
        log.debug("the error below came from here:", exc_info=error)
        print_message(f"mlx-bulk: {error}")
        sys.exit(error.exit_code)
    except Exception as error:  # a bug of ours, or of a library: still one line, and nothing finished is lost
        log.debug("the error below came from here:", exc_info=error)
        message = visible(f"{type(error).__name__}: {error}")
        print_message(f"mlx-bulk: {message} (finished rows are safe; --log-level debug shows where)")
        sys.exit(BulkError.exit_code)


@contextmanager
def warnings_said_once() -> Generator[None]:
    """Logs a warning of the same text once inside the block: runs of one sweep would repeat it."""
    said = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        repeated = record.levelno == logging.WARNING and text in said
        said.add(text)
        return not repeated

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def print_message(text: str) -> None:
    """Prints ``text`` on stderr. A closed stderr is no error: the work is done all the same."""
    with suppress(OSError):
        click.echo(text, err=True)


class _Visible(logging.Formatter):
    """Formats log lines without control characters, whatever text from outside they quote."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


def set_log(level: str, quiet: bool = False, name: str | None = None) -> None:
    """Sets up the mlx_bulk logger; other loggers keep their settings. name: of one process of several, in front of its lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible("mlx-bulk: %(message)s" if name is None else f"mlx-bulk: {name.replace('%', '%%')}: %(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.ERROR if quiet else level.upper())
    log.propagate = False

"""Sets up what all commands share: the log, errors as one line and an exit code, and mlx.

Imports nothing heavy.
"""

import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import click

from ...configs.errors import BulkError
from ...configs.visible import visible, visible_lines

log = logging.getLogger("mlx_bulk")

_own = threading.Event()

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


def prepare_mlx() -> None:
    """Loads mlx with its fast BLAS, before anything else imports it. Raises ModelError where that fails."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings address programmers
    from ...kernels.backend import BackendError, load_mlx
    from ...runner.core.errors import ModelError

    try:
        load_mlx()
    except BackendError as error:
        raise ModelError(str(error)) from error


def own_process() -> None:
    """Notes that this process is the command's alone, so that ``prepare_engine`` may decide which libraries are there."""
    _own.set()


def prepare_engine() -> None:
    """Loads mlx as ``prepare_mlx``. In the command's own process it also keeps transformers from importing PyTorch.

    Where PyTorch is installed, tokenizers would import it, which takes seconds and slows the model's thread. Nothing of ours needs it.
    Code that comes with a tokenizer can import it all the same.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if _own.is_set() and "torch" not in sys.modules:
        hidden: dict[str, Any] = {"torch": None}  # as Python marks a module that is not there
        sys.modules.update(hidden)
        try:
            from transformers.utils.import_utils import is_torch_available

            is_torch_available()  # it remembers the answer
        finally:
            del sys.modules["torch"]
    prepare_mlx()


class _Visible(logging.Formatter):
    """Formats log lines without control characters, whatever text from outside they quote."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


def set_log(level: str, quiet: bool = False) -> None:
    """Sets up the mlx_bulk logger; other loggers keep their settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible("mlx-bulk: %(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.ERROR if quiet else level.upper())
    log.propagate = False

"""The entry point of ``mlx-bulk``: the group of its commands, and the prompt end of the process.

Every command module imports heavy libraries late, so that ``--help`` and config errors answer at once.
"""

import os
import sys
from pathlib import Path

import click

from ..supervision.signals import SIGNALS
from ..terminal.engine_imports import own_process
from .batch_command import batch
from .cluster_keys_command import cluster_keys
from .config_commands import init, plan
from .eval_command import eval_
from .run_command import run_command
from .run_folder_commands import compare, export, report, status, verify
from .worker_command import worker, worker_engine, worker_rank


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mlx-bulk")
def cli() -> None:
    """Bulk LLM generation, scoring, embedding and classification on Apple's MLX: a dataset in, Arrow files out."""


_COMMANDS = (
    run_command,
    batch,
    plan,
    eval_,
    init,
    status,
    report,
    compare,
    verify,
    export,
    worker,
    worker_engine,
    worker_rank,
    cluster_keys,
)
for command in _COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Runs the console script ``mlx-bulk``."""
    _open_streams()
    own_process()
    try:
        cli()
    except SystemExit as error:
        _flush()
        if error.code in [128 + number for number in SIGNALS]:
            os._exit(int(error.code))  # libraries take seconds to be unloaded, and the end is to be prompt
        raise


def _open_streams() -> None:
    """Puts the null device in place of standard streams that are closed (``>&-``), so that no other file gets their numbers."""
    null_device = os.open(os.devnull, os.O_RDWR)
    while null_device <= 2:
        null_device = os.open(os.devnull, os.O_RDWR)
    os.close(null_device)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open as long as the process


def _flush() -> None:
    """Writes out stdout and stderr. If their reader is gone the text is dropped, or else Python would return 120 in place of the code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, stream.fileno())
            os.close(null_device)

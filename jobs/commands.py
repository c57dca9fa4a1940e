"""The commands beside ``run`` that look at runs and write configs: their words and options. What they do is in files of their names.

Heavy libraries are imported when a command needs them.
"""

import shutil
import signal
import sys
from pathlib import Path

import click

from .edge import LEVELS, one_line_errors, ready, set_log

_FORMATS = ("parquet", "jsonl", "csv", "openai")


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(_FORMATS), required=True, help="openai: lines as in an OpenAI Batch output file.")
@click.option("--to", required=True, metavar="PATH", help="A file, a folder (it is there, or the name ends in /), or hf:owner/name.")
@click.option("--partial", is_flag=True, help="Exports what is committed of a run that is not complete.")
@click.option("--overwrite", is_flag=True, help="Replaces what an earlier export left there.")
@click.option("--public", is_flag=True, help="With hf: everybody may see the dataset; else it is made private.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def export(run_folder: Path, kind: str, to: str, partial: bool, overwrite: bool, public: bool, log_level: str) -> None:
    """Writes RUN's records in input order for other programs, and prints the sha256 of each file as sha256sum -c reads it."""
    set_log(log_level)
    with one_line_errors():
        if kind == "openai":
            ready()
        from .export import exported, exported_as_text

        try:
            done = exported(run_folder, kind, to, partial=partial, overwrite=overwrite, public=public)
        except KeyboardInterrupt:
            click.echo("mlx-bulk: interrupted; no file was left half written", err=True)
            sys.exit(128 + signal.SIGINT)
        for digest, path in done.files:
            click.echo(f"{digest}  {path}")
        click.echo(exported_as_text(done), err=True)


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object in place of text.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def status(run_folder: Path, as_json: bool, log_level: str) -> None:
    """Shows how RUN stands, while it runs or after: rows, errors, speed, what is left, and what continues it."""
    set_log(log_level)
    with one_line_errors():
        from .status import status as status_of
        from .status_text import status_as_json, status_as_text

        found = status_of(run_folder)
        click.echo(status_as_json(found) if as_json else status_as_text(found, shutil.get_terminal_size((100, 0)).columns))


@click.command()
@click.argument("job", type=click.Choice(("generate", "score", "sweep")), default="generate")
def init(job: str) -> None:
    """Prints a config of a JOB (generate where none is said) with all settings, explained, which runs as it is: save it, and run it."""
    from .init import config_text

    click.echo(config_text(job), nl=False)


COMMANDS = (export, status, init)

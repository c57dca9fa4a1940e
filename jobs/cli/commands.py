"""The commands beside ``run`` that look at runs and write configs: their words and options. What they do is in files of their names.

Heavy libraries are imported when a command needs them.
"""

import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..terminal.console import LEVELS, one_line_errors, ready, set_log

_FORMATS = ("parquet", "jsonl", "csv", "openai", "trl", "verl", "prime-rl", "verifiers")
_FORMAT_HELP = "openai: lines as in an OpenAI Batch output file; trl, verl, prime-rl, verifiers: rollouts under their names, as Parquet."


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(_FORMATS), required=True, help=_FORMAT_HELP)
@click.option("--to", required=True, metavar="PATH", help="A file, a folder (it is there, or the name ends in /), or hf:owner/name.")
@click.option("--partial", is_flag=True, help="Exports what is committed of a run that is not complete.")
@click.option("--overwrite", is_flag=True, help="Replaces what an earlier export left there.")
@click.option("--public", is_flag=True, help="With hf: everybody may see the dataset; else it is made private.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def export(run_folder: Path, kind: str, to: str, partial: bool, overwrite: bool, public: bool, log_level: str) -> None:
    """Writes RUN's records in input order for other programs, and prints the sha256 of each file as sha256sum -c reads it."""
    set_log(log_level)
    with one_line_errors():
        if kind in ("openai", "trl"):  # they may need the tokenizer
            ready()
        from ..export.export import exported, exported_as_text

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
    """Shows how RUN stands, while it runs or after: rows, errors, speed, what is left, and what continues it; a sweep's cells."""
    set_log(log_level)
    with one_line_errors():
        from ...runner.runs.run_files import is_sweep
        from ...runner.runs.status import run_status
        from ..status.sweep import statuses, sweep_status_as_json, sweep_status_as_text
        from ..status.text import status_as_json, status_as_text

        if is_sweep(run_folder):
            cells = statuses(run_folder)
            click.echo(sweep_status_as_json(run_folder, cells) if as_json else sweep_status_as_text(run_folder, cells))
            return
        found = run_status(run_folder)
        click.echo(status_as_json(found) if as_json else status_as_text(found, shutil.get_terminal_size((100, 0)).columns))


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), metavar="PATH", help="A file or a folder.  [default: RUN/report.html]")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def report(run_folder: Path, to: Path | None, log_level: str) -> None:
    """Draws RUN, or a sweep's folder, as one HTML page with plots and samples, while it runs or after, and prints where it lies."""
    set_log(log_level)
    with one_line_errors():
        from ..report.report import write_report as written

        click.echo(written(run_folder, to))


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--model", help="Short for --set model.path=…")
@click.option("--data", help="Short for --set data.path=…")
@click.option("--output", help="Short for --set output.path=…")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Overrides a key, for example sampling.n=4. Repeatable.")
@click.option(
    "--calibrate", is_flag=True, help="Loads the model and times some of the rows, some 20 seconds: hours, tokens/s, finish time."
)
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object in place of text.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
def plan(
    config: Path,
    model: str | None,
    data: str | None,
    output: str | None,
    overrides: tuple[str, ...],
    calibrate: bool,
    as_json: bool,
    log_level: str,
) -> None:
    """Shows what a run of CONFIG would have to do and what it takes: rows, tokens, memory, disk. Writes nothing, loads no weights."""
    set_log(log_level)
    paths = {key: value for key, value in (("model.path", model), ("data.path", data), ("output.path", output)) if value is not None}
    with one_line_errors():
        try:
            code, said = _plan(config, overrides, paths, calibrate, as_json)
        except KeyboardInterrupt:
            click.echo("mlx-bulk: interrupted; nothing was written", err=True)
            sys.exit(128 + signal.SIGINT)
        click.echo(said)
    sys.exit(code)


def _plan(config: Path, overrides: Sequence[str], paths: dict[str, str], calibrate: bool, as_json: bool) -> tuple[int, str]:
    """The exit code and the text of a plan."""
    from ...configs.cells import cells
    from ...configs.load import load_config
    from ...configs.sweep import SweepConfig

    loaded = load_config(config, overrides, paths)
    swept = cells(loaded, str(config)) if isinstance(loaded, SweepConfig) else []
    ready()
    from ...runner.estimate.plan import planned
    from ...runner.models.model_pool import ModelPool
    from ..kinds import KINDS
    from ..plan.sweep import plan_exit_code, planned_sweep, planned_sweep_as_json, planned_sweep_as_text
    from ..plan.text import plan_as_json, plan_as_text

    if isinstance(loaded, SweepConfig):
        found = planned_sweep(swept, KINDS, calibrate)
        return plan_exit_code(found), planned_sweep_as_json(found) if as_json else planned_sweep_as_text(found)
    made = planned(loaded, KINDS[loaded.job], ModelPool() if calibrate else None)
    return 0, plan_as_json(made) if as_json else plan_as_text(made, shutil.get_terminal_size((100, 0)).columns)


@click.command()
@click.argument("job", type=click.Choice(("generate", "score", "rollout", "sweep")), default="generate")
def init(job: str) -> None:
    """Prints a config of a JOB (generate where none is said) with all settings, explained, which runs as it is: save it, and run it."""
    from .init_config import config_text

    click.echo(config_text(job), nl=False)


COMMANDS = (plan, report, export, status, init)

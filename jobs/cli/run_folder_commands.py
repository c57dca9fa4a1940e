"""Commands that read runs on disk: ``status``, ``report``, ``compare``, ``verify``, ``export``.

Each command states its options and imports heavy libraries when it needs them; the rooms of these names compute.
"""

import shutil
import signal
import sys
from pathlib import Path

import click

from ..terminal.console import one_line_errors, set_log
from ..terminal.engine_imports import engine_imports, prepare_engine
from .options import json_option, log_level_option, run_folder_argument

_FORMATS = ("parquet", "jsonl", "csv", "openai", "trl", "verl", "prime-rl", "verifiers")
_RESCORE_HELP = (
    "Scores the stored tokens anew too, each under its own policy version; of embed and classify jobs, computes some vectors anew."
)
_FORMAT_HELP = "openai: lines as in an OpenAI Batch output file; trl, verl, prime-rl, verifiers: rollouts under their names, as Parquet."


@click.command()
@run_folder_argument
@json_option
@log_level_option
def status(run_folder: Path, as_json: bool, log_level: str) -> None:
    """Shows how RUN stands, while it runs or after: rows, errors, speed, what is left, and what continues it; a sweep's cells."""
    set_log(log_level)
    with one_line_errors():
        from ...runner.runs.run_files import is_sweep
        from ...runner.runs.status import run_status
        from ..status.sweep import cell_statuses, sweep_status_as_json, sweep_status_as_text, sweep_status_exit_code
        from ..status.text import status_as_json, status_as_text

        if is_sweep(run_folder):
            cells = cell_statuses(run_folder)
            click.echo(sweep_status_as_json(run_folder, cells) if as_json else sweep_status_as_text(run_folder, cells))
            sys.exit(sweep_status_exit_code(cells))
        run = run_status(run_folder)
        click.echo(status_as_json(run) if as_json else status_as_text(run, shutil.get_terminal_size((100, 0)).columns))


@click.command()
@run_folder_argument
@click.option("--to", type=click.Path(path_type=Path), metavar="PATH", help="A file or a folder.  [default: RUN/report.html]")
@log_level_option
def report(run_folder: Path, to: Path | None, log_level: str) -> None:
    """Draws RUN, or a sweep's folder, as one HTML page with plots and samples, while it runs or after, and prints where it lies."""
    set_log(log_level)
    with one_line_errors():
        with engine_imports(reads_hub=False):
            from ..report.report import write_report

        click.echo(write_report(run_folder, to))


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the most different documents to list.")
@json_option
@click.option("--html", type=click.Path(path_type=Path), metavar="PATH", help="Writes the comparison as a page, in place of text.")
@log_level_option
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
        from ..compare.compare import compare_runs
        from ..compare.text import run_comparison_as_json, run_comparison_as_text

        comparison = compare_runs(run_a, run_b, top)
        click.echo(run_comparison_as_json(comparison) if as_json else run_comparison_as_text(comparison))


@click.command()
@run_folder_argument
@click.option("--rescore", "mode", flag_value="rescore", help=_RESCORE_HELP)
@click.option("--replay", "mode", flag_value="replay", help="Decodes them step by step again too; in deterministic mode to the bit.")
@json_option
@log_level_option
def verify(run_folder: Path, mode: str | None, as_json: bool, log_level: str) -> None:
    """Counts and hashes all that RUN holds anew, against its input: each row there once, no byte changed. Changes nothing."""
    set_log(log_level)
    with one_line_errors():
        if mode is not None:
            prepare_engine()
        from ..verify.verify import audit_as_json, audit_as_text, recompute, require_recomputable, verify_exit_code, verify_run

        if mode is not None:
            require_recomputable(run_folder, mode)
        account = verify_run(run_folder)
        comparison = None if mode is None else recompute(run_folder, mode)
        click.echo(audit_as_json(account, comparison) if as_json else audit_as_text(account, comparison))
    sys.exit(verify_exit_code(account, comparison))


@click.command()
@run_folder_argument
@click.option("--format", "kind", type=click.Choice(_FORMATS), required=True, help=_FORMAT_HELP)
@click.option("--to", required=True, metavar="PATH", help="A file, a folder (it is there, or the name ends in /), or hf:owner/name.")
@click.option("--partial", is_flag=True, help="Exports what is committed of a run that is not complete.")
@click.option("--overwrite", is_flag=True, help="Replaces what an earlier export left there.")
@click.option("--public", is_flag=True, help="With hf: everybody may see the dataset; else it is made private.")
@log_level_option
def export(run_folder: Path, kind: str, to: str, partial: bool, overwrite: bool, public: bool, log_level: str) -> None:
    """Writes RUN's records in input order for other programs, and prints the sha256 of each file as sha256sum -c reads it."""
    set_log(log_level)
    with one_line_errors():
        if kind in ("openai", "trl"):  # they may need the tokenizer
            prepare_engine()
        from ..export.export import export_as_text, export_run

        try:
            result = export_run(run_folder, kind, to, partial=partial, overwrite=overwrite, public=public)
        except KeyboardInterrupt:
            click.echo("mlx-bulk: interrupted; no file was left half written", err=True)
            sys.exit(128 + signal.SIGINT)
        for digest, path in result.files:
            click.echo(f"{digest}  {path}")
        click.echo(export_as_text(result), err=True)

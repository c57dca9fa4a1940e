"""``mlx-bulk batch REQUESTS --model M --to ANSWERS``: answers a file of OpenAI Batch requests, for those who know that file alone.

A thin front: ``run`` with ``data.format: openai``, then ``export --format openai``. The run directory lies in the folder of the answers.
"""

import json
import signal
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import click

from ...configs.errors import ConfigError
from ...runner.data.input_folder import is_input
from ...runner.runs.file_place import require_outside_runs, require_regular_files
from ..openai.endpoints import EMBEDDINGS
from ..supervision.supervisor_link import Link
from ..terminal.console import one_line_errors, print_message, set_log
from .config_commands import plan_text
from .options import ConfigSource, RepeatableCommand, log_level_option, quiet_option, start_options, typed_words
from .run_command import RunOptions, run_here, run_supervised

RUN_FOLDER = "run"  # in the folder of the answers

_FIRST_LINES = 100  # in which one must name an endpoint

# Keys that the command line itself gives, and how it writes them.
_GIVEN = {
    "job": "it follows from the requests",
    "data.path": "the file of requests stands by itself",
    "data.format": "this command is for openai alone",
    "model.path": "say --model",
    "output.path": "say --to",
}


@click.command("batch", cls=RepeatableCommand)
@click.argument("requests", type=str)
@click.option("--model", required=True, help="demo, a local folder, or a Hugging Face repo id; it answers whatever model the lines name.")
@click.option(
    "--to",
    "--output",
    "to",
    required=True,
    metavar="PATH",
    help="Folder for output.jsonl and errors.jsonl; or a file .jsonl for all lines.",
)
@click.option("--limit", type=int, help="Answers the first so many lines.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Sets a key of the config, for what lines leave out.")
@click.option("--plan", is_flag=True, help="Shows what there is to do and what it takes, and ends.")
@click.option("--calibrate", is_flag=True, help="With --plan: loads the model and times some of the lines.")
@start_options
@click.option(
    "--supervised/--no-supervised",
    default=sys.platform == "darwin",
    help="Runs the model in a second process, which is started again when it dies.  [default: --supervised on macOS only]",
)
@click.option("--json-progress", is_flag=True, help="Tells progress as JSON, a line every 5 seconds on stderr (docs/status.md).")
@log_level_option
@quiet_option
def batch(
    requests: str, model: str, to: str, limit: int | None, overrides: tuple[str, ...], plan: bool, calibrate: bool, **values: Any
) -> None:
    """Answers the requests of an OpenAI Batch file with MODEL, or goes on where it left off, and writes the answers as OpenAI does."""
    options = RunOptions(**values, words=typed_words(), command="batch")
    if options.quiet and options.json_progress:
        raise click.UsageError("--json-progress and --quiet exclude each other: the one tells progress, the other nothing.")
    if calibrate and not plan:
        raise click.UsageError("--calibrate goes with --plan.")
    set_log(options.log_level, options.quiet)
    answers = Path(to)
    with one_line_errors():
        _require_free(overrides)
    source = _source(requests, model, answers, limit, overrides)
    if plan:
        _show_plan(source, calibrate)
    link = Link.inherited()
    if options.supervised and link is None:
        run_supervised("batch", options.words)
    with one_line_errors():
        _require_place(requests, answers, options.overwrite)
    run_here(source, options, link, lambda: _export(run_folder(answers), answers))


def _require_free(overrides: tuple[str, ...]) -> None:
    """Raises ConfigError for a key that is set although this command gives it."""
    for override in overrides:
        key = override.partition("=")[0]
        for given, cure in _GIVEN.items():
            if key in (given, given.partition(".")[0]):
                raise ConfigError(f"--set {override}: {given} is not set here: {cure}")


def run_folder(answers: Path) -> Path:
    """Returns the run directory of ``answers``: a folder in their folder, or beside their file."""
    return answers.with_name(f"{answers.name}.{RUN_FOLDER}") if answers.suffix == ".jsonl" else answers / RUN_FOLDER


def _source(requests: str, model: str, answers: Path, limit: int | None, overrides: tuple[str, ...]) -> ConfigSource:
    settings = {
        "job": _job_of(requests),
        "data": {"format": "openai", "keep": "none"},
        "on_error": "quarantine_all",  # a line that is refused is an answer too
    }
    options = {"model.path": model, "data.path": requests, "output.path": str(run_folder(answers))}
    return ConfigSource(settings, overrides, options | ({} if limit is None else {"data.limit": limit}))


def _job_of(requests: str) -> str:
    """Returns the kind of job that answers the requests, by the first line that names an endpoint. A run generates or embeds."""
    import pyarrow as pa

    from ...runner.formats.source import Source, by_extension, open_stream

    path = Path(requests)
    if not path.is_file():  # stdin, a folder, or what is refused later
        return "generate"
    with open_stream(Source(requests, "jsonl", by_extension(path)[1])) as lines, suppress(OSError, EOFError, pa.ArrowException):
        for line in islice(lines, _FIRST_LINES):
            with suppress(ValueError, RecursionError):
                if isinstance(read := json.loads(line), dict) and isinstance(url := read.get("url"), str):
                    return "embed" if url == EMBEDDINGS else "generate"
    return "generate"


def _require_place(requests: str, answers: Path, overwrite: bool) -> None:
    """Raises ConfigError where the answers would replace the requests, be read as such, replace files that are not of this run, or lie
    in a run directory, and for a file that would not be JSON lines.
    """
    from ...runner.formats.source import by_extension

    run = run_folder(answers)
    if any(by_extension(answers)) and answers.suffix != ".jsonl" and not answers.is_dir():
        raise ConfigError(f"--to {answers}: answers are written to a file that ends in .jsonl, or to a folder")
    files = [answers] if answers.suffix == ".jsonl" else [answers / "output.jsonl", answers / "errors.jsonl"]
    for file in files:
        if is_input([requests], file):
            raise ConfigError(f"--to {answers}: {file} is one of the requests, or would be read as such; choose another place")
    require_outside_runs(f"--to {answers}", files)
    require_regular_files(f"--to {answers}", files)
    there = [file for file in files if file.exists()]
    if there and not overwrite and not (run / "run.json").exists():
        raise ConfigError(f"--to {answers}: {there[0]} is there already, and no run of this command ({run}); --overwrite replaces it")


def _export(run: Path, answers: Path) -> str:
    from ..export.export import export_as_text, export_run

    to = str(answers) if answers.suffix == ".jsonl" else f"{answers}/"
    return export_as_text(export_run(run, "openai", to, partial=False, overwrite=True, public=False))


def _show_plan(source: ConfigSource, calibrate: bool) -> None:
    """Prints the plan and ends the process."""
    with one_line_errors():
        try:
            code, text = plan_text(source, calibrate, as_json=False)
        except KeyboardInterrupt:
            print_message("mlx-bulk: interrupted; nothing was written")
            sys.exit(128 + signal.SIGINT)
        click.echo(text)
    sys.exit(code)

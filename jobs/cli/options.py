"""Options that several commands share, and the config file with the overrides that a command line names.

Imports nothing heavy: a config is read where a command asks for it.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ...configs.visible import visible
from ..terminal.console import LEVELS

Command = Callable[..., None]
Option = Callable[[Command], Command]

_SHORTHANDS = {"model": "model.path", "data": "data.path", "limit": "data.limit", "output": "output.path", "workers": "cluster.workers"}

run_folder_argument: Option = click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
json_option: Option = click.option("--json", "as_json", is_flag=True, help="Prints one JSON object in place of text.")
log_level_option: Option = click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
quiet_option: Option = click.option("-q", "--quiet", is_flag=True, help="Errors only: no progress, no log.")

_WORDS = "mlx_bulk.words"
_SETTING = re.compile(r"[a-z_]+(?:\.[\w.-]+)*=.*", re.DOTALL)


def start_options(command: Command) -> Command:
    """Adds the options of a start beside its config: ``--overwrite``, ``--retry-errors``, ``--adopt``."""
    options: list[Option] = [
        click.option("--overwrite", is_flag=True, help="Removes the run that the output folder holds, and starts over."),
        click.option("--retry-errors", is_flag=True, help="Does the rows in errors/ again; those that succeed move to the results."),
        click.option("--adopt", multiple=True, metavar="KEY", help="Goes on although KEY has changed, as you vouch for it. Repeatable."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


class ConfigCommand(click.Command):
    """A command of a config. It says how a setting is written that stands on the command line by itself."""

    allow_extra_args = True  # they are refused here

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as click does. Raises UsageError for words that are left."""
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            settings = [word for word in left if _SETTING.fullmatch(word)]
            written = [f"{word} stands by itself; a setting is written --set {shlex.quote(word)}" for word in settings]
            ctx.fail(written[0] if written else f"one CONFIG is expected; found {' '.join(map(visible, left))} beside it")
        return left


class RepeatableCommand(ConfigCommand):
    """A command that keeps its command line, so that it can be run again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as click does."""
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


def typed_words() -> tuple[str, ...]:
    """Returns the command line of the ``RepeatableCommand`` that is at work, after the command's name."""
    return tuple(click.get_current_context().meta[_WORDS])


@dataclass(slots=True, frozen=True)
class ConfigSource:
    """A config and the changes that the command line makes to it.

    file: of a command that has no config file, the settings themselves. overrides: the values of ``--set``, as KEY=VALUE. options:
    values of ``--model``, ``--data``, ``--limit``, ``--output`` and ``--workers`` by their config keys.
    """

    file: Path | Mapping[str, object]
    overrides: tuple[str, ...]
    options: dict[str, str | int]

    @property
    def path(self) -> Path:
        """The config file of a command that has one."""
        assert isinstance(self.file, Path)
        return self.file


def config_source(*shorthands: str, example: str) -> Option:
    """Adds the argument CONFIG, the options of ``shorthands`` and ``--set``; the command takes them as ``source``, a ``ConfigSource``.

    shorthands: of "model", "data", "limit", "output" and "workers". example: an override that the help text shows.
    """
    help_text = f"Overrides a key, for example {example}. Repeatable."
    parameters: list[Option] = [
        click.argument("config", type=click.Path(path_type=Path)),
        *(_shorthand(name) for name in shorthands),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=help_text),
    ]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_source(config: Path, overrides: tuple[str, ...], **options: Any) -> None:
            values = {_SHORTHANDS[name]: options.pop(name) for name in shorthands}
            given = {key: value for key, value in values.items() if value is not None}
            _require_one_value(given, overrides)
            command(ConfigSource(config, overrides, given), **options)

        decorated: Command = with_source
        for parameter in reversed(parameters):
            decorated = parameter(decorated)
        return decorated

    return decorate


def _require_one_value(options: Iterable[str], overrides: Iterable[str]) -> None:
    """Raises click.UsageError where ``--set`` sets a key that another option sets too. options: their keys."""
    names = {key: name for name, key in _SHORTHANDS.items()}
    overridden = {override.partition("=")[0].strip() for override in overrides}
    for key in options:
        if key in overridden:
            raise click.UsageError(f"--{names[key]} and --set {key} set the same key. Leave one of them out.")


def _shorthand(name: str) -> Option:
    kind = int if name in ("limit", "workers") else str
    return click.option(f"--{name}", type=kind, help=f"Short for --set {_SHORTHANDS[name]}=…")

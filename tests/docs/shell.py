"""Runs a page as its reader would: its files are saved, its commands given one after another, in one folder.

The command mlx-bulk itself runs in this process, as its libraries take seconds to load; what else there is goes through bash.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from mlx_bulk.configs.load import load_config, load_eval
from mlx_bulk.jobs.cli.main import cli

from ..reward_checkpoints import write_reward_model
from .pages import ROOT, Block, blocks, commands
from .showing import difference

# Models that a page names as an example, where the test has the one that needs no download.
STAND_INS = ("mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-4B-bf16", "./model-4bit", "./demo-4bit", "./model")
REWARD_MODEL = "Skywork/Skywork-Reward-V2-Qwen3-0.6B"  # a tiny one in the page's folder stands in for it
_INSTALLS = re.compile(r"^(?:pip|apt|apt-get|sudo apt) install [^&]*(?:&& )?")


@dataclass(slots=True)
class Shell:
    """A page's session: its folder, the names that its Python has defined, what that printed last, the last exit code."""

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""
    code: int = 0

    def __post_init__(self) -> None:
        for name in ("configs", "docs"):  # pages are read in a clone
            (self.folder / name).symlink_to(ROOT / name)

    def run(self, block: Block) -> None:
        """Does what a reader does with a block; AssertionError where it fails or prints something else than the page shows."""
        if block.language == "text" and block.title == "output":
            assert (unlike := difference(block.text, self.printed, str(self.folder))) is None, unlike
        elif block.language == "yaml" and block.runs:
            self._config(block)
        elif block.title and not block.not_run:
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and block.runs:
            self._python(block)
        elif block.runs:
            self._commands(block)

    def _config(self, block: Block) -> None:
        text = block.text
        for model in STAND_INS:
            text = re.sub(rf"(?<=[ :\[]){re.escape(model)}(?=[\s,\]}}]|$)", "demo", text, flags=re.MULTILINE)
        if REWARD_MODEL in text:
            text = text.replace(REWARD_MODEL, str(write_reward_model(self.folder / "reward-model")))
        values = yaml.safe_load(text)
        path = self.folder / (block.title or "unnamed.yaml")
        path.write_text(text, encoding="utf-8")
        if isinstance(values, dict) and "job" in values:
            (load_eval if values["job"] == "eval" else load_config)(path)
        if not block.title:
            path.unlink()

    def _python(self, block: Block) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, f"line {block.line}", "exec"), self.names)
        self.printed = out.getvalue()

    def _commands(self, block: Block) -> None:
        given = commands(block)
        for n, (command, shown) in enumerate(given):
            printed = self._command(command)
            if shown is not None:
                unlike = difference(shown, printed, str(self.folder))
                assert unlike is None, f"$ {command}\n{unlike}"
            asked = n + 1 < len(given) and given[n + 1][0] == "echo $?"
            expected = block.exits_with if n == len(given) - 1 else 0
            assert asked or self.code == expected, f"$ {command}\nexit code {self.code}\n{printed}"

    def _command(self, command: str) -> str:
        if command == "echo $?":
            code, self.code = self.code, 0
            return f"{code}\n"
        command = _INSTALLS.sub("", command)
        if re.fullmatch(r"mlx-bulk [^|;&<>$*]*(?:> \S+)?", command):
            return self._mlx_bulk(command)
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
        done = subprocess.run(
            ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False
        )
        self.code = done.returncode
        return done.stdout

    def _mlx_bulk(self, command: str) -> str:
        given, _, to = command.partition(" > ")
        _, *arguments = shlex.split(given)
        done = CliRunner().invoke(cli, arguments, prog_name="mlx-bulk")
        self.code = done.exit_code
        if not to:
            return done.output
        Path(to).write_text(done.stdout, encoding="utf-8")
        return done.stderr


def run_page(page: Path, folder: Path, extra: str | None = None) -> Shell:
    """Runs all blocks of a page in an empty folder, which is the working directory. AssertionError says where it went wrong.

    extra: blocks that are not run because they need this extra are run, too.
    """
    shell = Shell(folder)
    for block in blocks(page.read_text(encoding="utf-8")):
        wanted = extra is not None and block.not_run == f"it needs the extra {extra}"
        try:
            shell.run(replace(block, not_run="") if wanted else block)
        except AssertionError as error:
            raise AssertionError(f"{page.name}, line {block.line}: {error}") from None
    return shell

"""The page on export: its commands and its Python run as they stand, one after another."""

import re
import shlex
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")


def code(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's commands have been given (the config's path is the repository's)."""
    folder = tmp_path_factory.mktemp("export")
    with chdir(folder):
        for command in code("bash").splitlines():
            _, *arguments = shlex.split(command.replace("configs/", f"{ROOT}/configs/"))
            done = CliRunner().invoke(cli, arguments)
            assert done.exit_code == 0, done.output
    return folder


def test_the_commands_write_what_the_page_says(folder: Path):
    assert {path.name for path in folder.iterdir()} == {"outputs", "demo.parquet", "exported", "batch_output.jsonl"}
    assert {path.name for path in (folder / "exported").iterdir()} == {"results.csv", "SHA256SUMS"}


def test_the_python_reads_the_lines(folder: Path):
    done = subprocess.run([sys.executable, "-c", code("python")], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line[:1].isdigit()] == list("01234567")


def test_the_hubs_options_are_the_commands():
    done = CliRunner().invoke(cli, ["export", "--help"])
    for option in re.findall(r"`(--[a-z-]+)`", PAGE):
        assert option in done.stdout

"""Tests the page on export: the output of its commands and its Python, and the options that it names."""

import re
from contextlib import chdir

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from .pages import ROOT
from .shell import Shell, run_page

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "export.md"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A session in which all of the page has been done."""
    folder = tmp_path_factory.mktemp("export")
    with chdir(folder):
        return run_page(PAGE, folder)


def test_the_commands_write_what_the_page_says(shell: Shell):
    written = {path.name for path in shell.folder.iterdir()} - {"configs", "docs"}
    assert written == {"outputs", "demo.parquet", "exported", "batch_output.jsonl"}
    assert {path.name for path in (shell.folder / "exported").iterdir()} == {"results.csv", "SHA256SUMS"}


def test_the_python_reads_the_lines(shell: Shell):
    assert [line.split()[0] for line in shell.printed.splitlines() if line[:1].isdigit()] == list("01234567")


def test_the_hubs_options_are_the_commands():
    done = CliRunner().invoke(cli, ["export", "--help"])
    for option in re.findall(r"`(--[a-z-]+)`", PAGE.read_text(encoding="utf-8")):
        assert option in done.stdout

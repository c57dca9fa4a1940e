"""Tests every command, file and snippet on every page, in the page's order. Exceptions are counted with their reason."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
from mlx_bulk.jobs.cli.main import cli

from .pages import PAGES, ROOT, anchors, blocks, inline_commands, links
from .shell import run_page

# Blocks that a page says cannot be run here; one more is to be noticed.
NOT_RUN = {
    "README.md": 1,
    "CONTRIBUTING.md": 1,
    "contributing.md": 2,
    "lm-eval.md": 2,
    "embeddings.md": 1,
    "python.md": 1,
    "cluster.md": 6,
    "images.md": 4,
}
# The scripts of models.md show faults, and fail: tests/zoo/test_faults.py runs each. export.md is run by test_export.py.
RUN_ELSEWHERE = {"models.md", "export.md"}
LANGUAGES = {"console", "sh", "bash", "python", "yaml", "json", "jsonl", "text", "xml", ""}


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in RUN_ELSEWHERE], ids=lambda page: page.name)
def test_a_page_works_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_blocks_are_of_known_kinds(page: Path):
    for block in blocks(page.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"line {block.line}"
        if block.language in ("", "text"):
            assert not re.search(r"^(\$ |mlx-bulk |pip install )", block.text, re.MULTILINE), (
                f"line {block.line}: a command that no test runs"
            )


def test_blocks_that_are_not_run_are_counted():
    found = {page.name: sum(bool(block.not_run) for block in blocks(page.read_text(encoding="utf-8"))) for page in PAGES}
    assert {name: n for name, n in found.items() if n} == NOT_RUN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_running_text_are_there(page: Path):
    for code in inline_commands(page.read_text(encoding="utf-8")):
        _, *words = shlex.split(re.split(r" [|>&<;]", code)[0])
        options = [word for word in words if word.startswith("-")]
        command = cli.commands.get(words[0]) if not words[0].startswith("-") else cli
        assert command is not None, f"{code}: no such command"
        known = {name for option in command.get_params(click.Context(command)) for name in (*option.opts, *option.secondary_opts)}
        assert {option.partition("=")[0] for option in options} <= known | {"--help", "--version"}, code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_index_leads_to_every_page():
    listed = links((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= {Path(link.partition("#")[0]).name for link in listed}


def test_extras_that_pages_install_are_there():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    for page in PAGES:
        for found in re.findall(r"'(?:\.|mlx-bulk)\[([\w,]+)\]'", page.read_text(encoding="utf-8")):
            assert set(found.split(",")) <= extras, f"{page.name}: {found}"

"""Tests when ``mlx-bulk report`` writes its page, where it goes, and that a page that fails costs no run."""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.report import svg
from mlx_bulk.jobs.report.page import Page, is_page_file, render_page

from ..support.bench import Bench

# ------------------------------------------------------------------------------------------------------- at the end of a run


@pytest.mark.usefixtures("no_charts")
@pytest.mark.draws
def test_a_run_writes_it_at_its_end(bench: Bench):
    done = bench.run()
    assert f"mlx-bulk: report: {done.output}/report.html\n" in done.stderr
    assert done.last_line.startswith("complete: 5 of 5 rows")
    written = (done.output / "report.html").stat().st_mtime_ns
    assert bench.command(bench.root / "config.yaml").code == 0
    assert (done.output / "report.html").stat().st_mtime_ns == written
    verified = CliRunner().invoke(cli, ["verify", str(done.output)])
    assert verified.exit_code == 0
    assert "report" not in verified.output
    (done.output / "report.html").write_text("changed by hand")
    assert CliRunner().invoke(cli, ["verify", str(done.output)]).exit_code == 0
    assert bench.command(bench.root / "config.yaml", "--overwrite").code == 0
    assert not list(done.output.glob(".report*"))


@pytest.mark.draws
def test_a_page_that_an_earlier_start_left_is_drawn_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mlx_bulk.jobs.report.report.render_page", lambda page: b"new")
    done = bench.run()
    assert done.code == 0, done.stderr
    page = done.output / "report.html"
    page.write_bytes(b"old")
    before = (page.parent / "commits.jsonl").stat().st_mtime_ns - 1  # killed between the closing line and the page
    os.utime(page, ns=(before, before))
    assert bench.command(bench.root / "config.yaml").code == 0
    assert page.read_bytes() == b"new"
    page.write_bytes(b"by hand")
    assert bench.command(bench.root / "config.yaml").code == 0
    assert page.read_bytes() == b"by hand"


@pytest.mark.draws
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.abort()", "the charts could not be drawn (exit code -6): no message"),
        (
            "import vl_convert_is_gone",
            "the charts could not be drawn (exit code 1): ModuleNotFoundError: No module named 'vl_convert_is_gone'",
        ),
        ("raise ImportError(\"No module named 'vl_convert'\")", "charts need vl-convert-python, which is not installed: pip install"),
        pytest.param(
            "import sys; sys.stdin.read(); import threading; threading.Event().wait()",
            "the charts were not drawn within 1 s",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failed_report_fails_no_run(bench: Bench, monkeypatch: pytest.MonkeyPatch, code: str, why: str):
    monkeypatch.setattr(svg, "_DRAW", code)
    monkeypatch.setattr(svg, "SECONDS", 1.0 if "threading" in code else 60.0)
    done = bench.run()
    assert done.code == 0
    assert f"report.html was not written: {why}" in done.stderr
    assert f"The run is complete; mlx-bulk report {done.output} writes it." in done.stderr
    assert done.last_line.startswith("complete: 5 of 5 rows")
    assert not list(done.output.glob("*report*"))


@pytest.mark.draws
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_is_drawn_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int):
    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("mlx_bulk.jobs.report.report.render_page", interrupted)
    done = bench.run()
    assert done.code == 0
    assert "report.html was not written: interrupted. The run is complete" in done.stderr


# ------------------------------------------------------------------------------------------------------------ where it goes


@pytest.mark.usefixtures("no_charts")
def test_where_it_goes(bench: Bench):
    done = bench.run()
    (bench.root / "pages").mkdir()
    for to, lies in (("one.html", "one.html"), ("pages", "pages/report.html"), ("new/two.html", "new/two.html")):
        result = CliRunner().invoke(cli, ["report", str(done.output), "--to", str(bench.root / to)])
        assert result.stdout == f"{bench.root / lies}\n"
        assert (bench.root / lies).read_text().startswith("<!doctype html>")
    assert not (done.output / "report.html").exists()


@pytest.mark.usefixtures("no_charts")
def test_no_device_or_pipe_is_replaced(bench: Bench):
    done, pipe = bench.run(), bench.root / "pipe"
    os.mkfifo(pipe)
    result = CliRunner().invoke(cli, ["report", str(done.output), "--to", str(pipe)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{pipe} is there and is no regular file" in result.stderr
    assert pipe.is_fifo()


def refused(*words: str | Path) -> str:
    """What a command says that ends with exit code 2 and prints nothing else."""
    result = CliRunner().invoke(cli, list(map(str, words)))
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return result.stderr


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("no_charts")
def test_a_run_directory_is_no_place_for_another_file(bench: Bench):
    done = bench.run()
    other, link = bench.root / "other", bench.root / "link.html"
    shutil.copytree(done.output, other)
    link.symlink_to(done.output / "run.json")
    (done.output / "outward.html").symlink_to(bench.root / "new.html")
    (bench.root / "inward").symlink_to(done.output / "results")
    (other / "report.html").write_text("the page of the other run")
    [part] = (done.output / "results").glob("part-*.arrow")
    before = bytes_below(bench.root)
    run = ("report", done.output)
    pair = ("compare", done.output, other)
    for to in ("run/run.json", part, "run/new.html", "run/new/two.html", "run/outward.html", "link.html", "inward/new.html", "other"):
        assert f"--to {bench.root / to}: lies in the run directory" in refused(*run, "--to", bench.root / to)
        assert f"--html {bench.root / to}: lies in the run directory" in refused(*pair, "--html", bench.root / to)
    assert f"lies in the run directory {done.output}, which holds" in refused(*pair, "--html", done.output / "report.html")
    assert bytes_below(bench.root) == before
    assert (done.output / "outward.html").is_symlink()


@pytest.mark.usefixtures("no_charts")
def test_the_default_place_may_be_named(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    done = bench.run()
    (done.output / "report.html").write_text("by hand")
    monkeypatch.chdir(bench.root)
    Path("linked").symlink_to("run")
    for to in ("run", "run/report.html", "linked/report.html"):
        assert CliRunner().invoke(cli, ["report", str(done.output), "--to", to]).exit_code == 0
        assert is_page_file(done.output / "report.html")
        (done.output / "report.html").write_text("by hand")


@pytest.mark.usefixtures("no_charts")
def test_a_place_that_may_not_be_written_is_told_with_the_option_that_named_it(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    done, page = bench.run(), bench.root / "page.html"

    def denied(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("mlx_bulk.jobs.report.report.atomic_write", denied)
    for words in (("report", done.output, "--to"), ("compare", done.output, done.output, "--html")):
        result = CliRunner().invoke(cli, [*map(str, words), str(page)])
        ways = f"Give this user the right to write there, or name another place with {words[-1]}."
        assert (result.exit_code, result.stderr) == (5, f"mlx-bulk: {page}: cannot be written (Permission denied). {ways}\n")


@pytest.mark.usefixtures("no_charts")
def test_only_a_page_is_replaced(bench: Bench):
    done, rows = bench.run(), bench.root / "rows.jsonl"
    page, empty, foreign = bench.root / "page.html", bench.root / "empty", bench.root / "foreign.html"
    empty.touch()
    foreign.write_text("<!doctype html>\n<title>mlx-bulk</title>")
    before = {path: path.read_bytes() for path in (rows, empty, foreign)}
    for words in (("report", done.output, "--to"), ("compare", done.output, done.output, "--html")):
        for path in before:
            said = f"{path} is there already and is no page of mlx-bulk's; name another file, or remove this one"
            assert refused(*words, path) == f"mlx-bulk: {words[-1]} {path}: {said}\n"
        for _ in range(2):
            result = CliRunner().invoke(cli, [*map(str, words), str(page)])
            assert (result.exit_code, result.stdout) == (0, f"{page}\n"), result.output
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("no_charts")
def test_a_page_is_known_by_its_head(tmp_path: Path):
    path = tmp_path / "page.html"
    assert not is_page_file(path)
    path.write_bytes(render_page(Page("A title", "a line below")))
    assert is_page_file(path)
    mark = '<meta name="generator" content="mlx-bulk 1">'
    for text in (mark, f"<!doctype html><title>{mark}</title>", f"<!doctype html>{' ' * 5000}{mark}"):
        path.write_text(text)
        assert not is_page_file(path)


@pytest.mark.parametrize("name", ["gone", "empty"])
def test_a_folder_that_is_no_run_gives_one_line(bench: Bench, name: str):
    (bench.root / "empty").mkdir()
    result = CliRunner().invoke(cli, ["report", str(bench.root / name)])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (5, "", 1)
    assert "is not a run directory" in result.stderr

"""The files that are read: links don't lead out of a folder, run directories are no input, and some names are refused."""

import bz2
import gzip
import json
import logging
import lzma
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data import scan as scans
from mlx_bulk.runner.data.sources import find_distinct_sources, find_sources

from ...jobs.support.bench import Bench


def found(path: Path | str, folder: Path) -> list[str]:
    """The names of the files that ``data.path`` comes to, below ``folder``."""
    sources = find_sources(DataConfig(path=str(path)), folder / "run")
    return [os.path.relpath(source.path, folder) for source in sources]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one file of its own, beside a secret that links in it lead to."""
    for name in ("in/sub/rows.jsonl", "secret/rows.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(json.dumps({"q": name}) + "\n")
    return tmp_path / "in"


def test_links_out_of_a_folder_are_not_followed_however_they_get_there(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = folder.parent / "secret"
    (folder / "file.jsonl").symlink_to(secret / "rows.jsonl")
    (folder / "relative.jsonl").symlink_to("../secret/rows.jsonl")
    (folder / "first.jsonl").symlink_to(folder / "second.jsonl")
    (folder / "second.jsonl").symlink_to(folder / "sub" / "third.jsonl")
    (folder / "sub" / "third.jsonl").symlink_to(folder / "there" / "rows.jsonl")
    (folder / "there").symlink_to(secret)
    (folder / "up").symlink_to("..")
    (folder / "gone.jsonl").symlink_to("/no/such/place.jsonl")
    assert found(folder, folder) == ["sub/rows.jsonl"]
    assert all(f"/{name}" in caplog.text for name in ("file", "relative", "first", "second", "sub/third", "there", "up", "gone"))


def test_a_link_to_a_file_of_the_folder_is_read(folder: Path) -> None:
    (folder / "_kept").mkdir()
    (folder / "_kept" / "rows.jsonl").write_text("{}\n")
    (folder / "again.jsonl").symlink_to("_kept/rows.jsonl")
    assert found(folder, folder) == ["again.jsonl", "sub/rows.jsonl"]


def test_a_broken_link_within_the_folder_is_named(folder: Path) -> None:
    (folder / "gone.jsonl").symlink_to("sub/nothing.jsonl")
    with pytest.raises(DataError, match=r"gone\.jsonl is a link to sub/nothing\.jsonl, which does not exist"):
        found(folder, folder)


def test_links_that_lead_to_each_other_are_named(folder: Path) -> None:
    (folder / "a.jsonl").symlink_to("b.jsonl")
    (folder / "b.jsonl").symlink_to("a.jsonl")
    for path in (folder, folder / "a.jsonl", folder / "*.jsonl"):
        with pytest.raises(DataError, match=r"[ab]\.jsonl is a link to [ab]\.jsonl, which does not exist|no file matches"):
            found(path, folder)


def test_two_stars_do_not_go_through_links_out_of_where_they_begin(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "there").symlink_to(folder.parent / "secret")
    assert found(folder / "**" / "*.jsonl", folder) == ["sub/rows.jsonl"]
    assert "there/rows.jsonl" in caplog.text
    assert found(folder / "*" / "*.jsonl", folder) == ["sub/rows.jsonl", "there/rows.jsonl"]  # a pattern that names the link itself


@pytest.mark.parametrize(
    "name", ["a\nmlx-bulk: complete.jsonl", "\x1b]0;title\x07.jsonl", "gnp\u202elnosj.jsonl", os.fsdecode(b"\xff.jsonl")]
)
def test_names_that_a_terminal_would_obey_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("{}\n")
    for path in (folder, folder / "*.jsonl"):
        with pytest.raises(DataError, match=r"holds characters that no terminal shows\. Rename it") as refused:
            found(path, folder)
        assert str(refused.value).isprintable()


def test_names_in_all_scripts_are_read(folder: Path) -> None:
    (folder / "データ　1 – naïve.jsonl").write_text("{}\n")
    assert found(folder / "*.jsonl", folder) == ["データ　1 – naïve.jsonl"]


def run_directory(path: Path) -> None:
    """Makes the marks of a run directory, with records in it."""
    for folder in ("results", "errors"):
        (path / folder).mkdir(parents=True)
        (path / folder / "part-00000000.arrow").write_bytes(b"")
    (path / "run.json").write_text(json.dumps({"schema_version": 2, "identity": {}, "inputs": {}}))
    (path / "summary.json").write_text("{}")


def test_run_directories_below_a_folder_are_no_input(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run_directory(folder / "older")
    (folder / "sweep").mkdir()
    (folder / "sweep" / "sweep.json").write_text(json.dumps({"schema_version": 2, "cells": []}))
    (folder / "run").mkdir()  # where this run writes
    (folder / "run" / "stdin.jsonl").write_text("{}\n")
    for path in (folder, folder / "**"):
        assert found(path, folder) == ["sub/rows.jsonl"]
    left_out = f"{folder}/older, {folder}/run, {folder}/sweep"
    assert [record.message for record in caplog.records] == [f"data.path: leaves out {left_out}, as run directories are not input."]
    (folder / "run.json").write_text('{"q": 1}\n')  # rows that are merely called so
    assert found(folder, folder) == ["run.json", "sub/rows.jsonl"]


def test_the_records_of_other_runs_can_be_named(folder: Path) -> None:
    run_directory(folder / "a")
    run_directory(folder / "b")
    assert found(folder / "a" / "results", folder) == ["a/results/part-00000000.arrow"]
    assert found(folder / "*" / "results" / "*.arrow", folder) == ["a/results/part-00000000.arrow", "b/results/part-00000000.arrow"]
    with pytest.raises(DataError, match=r"a is a run directory, which is not input\. Name its results/ to read the records"):
        found(folder / "a", folder)
    with pytest.raises(DataError, match=r"no file matches .*besides those in run directories"):
        found(folder / "*" / "*.json", folder)


def test_a_run_writes_below_its_input_and_is_continued(bench: Bench) -> None:
    (bench.root / "in").mkdir()
    bench.write_rows([{"q": "a"}], "in/rows.jsonl")
    sections: dict[str, Any] = {"data": {"path": str(bench.root / "in")}, "output": {"path": str(bench.root / "in" / "out")}}
    options = ("--output", str(bench.root / "in" / "out"))
    assert bench.run(*options, **sections).code == 0
    bench.write_rows([{"q": "a"}, {"q": "b"}], "in/rows.jsonl")
    again = bench.run(*options, **sections)
    assert (again.code, len(again.records), again.errors) == (0, 2, [])


def twice(paths: str | list[str], run: Path | None = None) -> str:
    """The words by which a start refuses inputs that hold a file twice."""
    with pytest.raises(DataError) as refused:
        find_distinct_sources(DataConfig(path=paths), run or Path("run"))
    return str(refused.value)


def test_a_file_that_is_named_twice_is_refused_with_both_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    rows, cost = "sub/rows.jsonl", "its rows would be done twice. Name it once."
    for first, second in [(rows, f"./{rows}"), ("sub/*.jsonl", rows), (".", "sub"), ("sub", "**/*.jsonl")]:
        assert twice([first, second]) == f"data.path: {rows} is named twice by {first!r} and {second!r}: {cost}"
    whole = str(folder / rows)
    assert twice([rows, whole]) == f"data.path: {whole} and {rows} are the same file, named by {rows!r} and {whole!r}: {cost}"
    found_twice = f"data.path: {rows} is named twice by '**/**/*.jsonl': its rows would be done twice. Write it with one '**'."
    assert twice("**/**/*.jsonl") == found_twice


def test_a_link_to_a_file_that_is_read_too_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("again.jsonl").symlink_to("sub/rows.jsonl")
    same = "data.path: sub/rows.jsonl and again.jsonl are the same file, named by"
    assert twice(["again.jsonl", "sub"]).startswith(f"{same} 'again.jsonl' and 'sub': ")
    assert twice(".") == f"{same} '.': its rows would be done twice. Remove one of the two, or list in data.path the files to read."
    assert [source.path for source in find_distinct_sources(DataConfig(path="again.jsonl"), Path("run"))] == ["again.jsonl"]


def test_files_with_the_same_rows_are_two_files(folder: Path) -> None:
    """Copies and hard links have names of their own, and a file that ``data.split`` leaves out is not read twice."""
    rows = folder / "sub" / "rows.jsonl"
    (folder / "copy.jsonl").write_bytes(rows.read_bytes())
    (folder / "hard.jsonl").hardlink_to(rows)
    assert len(find_distinct_sources(DataConfig(path=str(folder)), folder / "run")) == 3
    for split in ("train", "test"):
        (folder / split).mkdir()
        (folder / split / "a.jsonl").symlink_to(rows)
    assert len(find_distinct_sources(DataConfig(path=str(folder), split="test"), folder / "run")) == 1


def test_names_that_some_file_systems_do_not_tell_apart(folder: Path) -> None:
    (folder / "É.jsonl").write_text("{}\n")
    with suppress(FileExistsError):  # raised by such a file system
        (folder / "e\u0301.jsonl").hardlink_to(folder / "É.jsonl")
    assert "are the same file" in twice([str(folder / "É.jsonl"), str(folder / "e\u0301.jsonl")])


def test_a_run_that_began_with_a_file_twice_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = bench.write_rows([{"q": "a"}, {"q": "b"}], "rows.jsonl")
    paths = [str(rows), f"{rows.parent}/./rows.jsonl"]
    with monkeypatch.context() as before:
        before.setattr(scans, "find_distinct_sources", find_sources)
        assert bench.run(data={"path": paths}).code == 0
    again = bench.run(data={"path": paths})
    assert (again.code, len(again.records)) == (0, 4)
    assert f"data.path: {rows} is read twice, as it was when the run began." in again.stderr
    assert bench.run("--set", f"data.path={json.dumps([str(rows), f'{rows.parent}/../{rows.parent.name}/rows.jsonl'])}").code == 0
    third = twice([*paths, str(rows.parent / "*.jsonl")], bench.root / "run")
    assert f"by {paths[0]!r} and {str(rows.parent / '*.jsonl')!r}" in third
    refused = bench.run("--overwrite", data={"path": paths})
    assert (refused.code, refused.last_line, len(refused.records)) == (5, f"mlx-bulk: {twice(paths)}", 4)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (gzip.compress(b"{}\n"), "is compressed by gzip, and its name does not say so. Add .gz to its name."),
        (bz2.compress(b"{}\n", 5), "is compressed by bzip2, and its name does not say so. Add .bz2 to its name."),
        (pa.compress(b"{}\n", "zstd", asbytes=True), "is compressed by Zstandard, and its name does not say so. Add .zst to its name."),
        (lzma.compress(b"{}\n"), "is compressed by xz, which is not read here. Decompress it."),
        ('{"q": "a"}\n'.encode("utf-16"), "is text in UTF-16. Save it as UTF-8."),
        (b"PAR1\x15\x04 and the rest", "is a file of parquet, and is read as jsonl. Set data.format to parquet."),
        (b"ARROW1\0\0 and the rest", "is a file of arrow, and is read as jsonl. Set data.format to arrow."),
        (b"\xff\xff\xff\xff and the rest", "is a file of arrow, and is read as jsonl. Set data.format to arrow."),
        (b"PK\x03\x04 and the rest", "is a ZIP archive. Unpack it."),
    ],
    ids=["gzip", "bzip2", "zstd", "xz", "UTF-16", "parquet", "arrow", "arrow stream", "zip"],
)
def test_a_file_that_holds_no_text_is_named_as_what_it_is(tmp_path: Path, content: bytes, line: str) -> None:
    """Each of its lines would be an error otherwise."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        found(path, tmp_path)
    assert str(error.value) == f"{path} {line}"

"""``mlx-bulk export`` on real runs: its files and their sums, and refusals."""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click import Choice
from datasets import Dataset
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.export import files, table_writers
from mlx_bulk.jobs.export.export import FORMATS, export_as_text
from mlx_bulk.jobs.export.result import ExportResult
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.paths import RunPaths

from ..support.bench import Bench, Done
from ..support.exported_runs import export

# --------------------------------------------------------------------------------------------------- files and sums


def test_a_folder_holds_results_errors_and_their_sums(generated: Done, tmp_path: Path):
    result = export(generated.output, "jsonl", f"{tmp_path}/new/")
    folder = tmp_path / "new"
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "errors.jsonl", "results.jsonl"]
    sums = {name: digest for digest, name in (line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines())}
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("results.jsonl", "errors.jsonl")}
    assert result.stdout.splitlines() == [f"{sums[name]}  {folder}/{name}" for name in ("results.jsonl", "errors.jsonl")]
    assert result.stderr == f"exported 12 records and 1 failure -> {folder}/\n"
    [failure] = [json.loads(line) for line in (folder / "errors.jsonl").read_text().splitlines()]
    assert failure == generated.errors[0]


def test_a_file_leaves_the_failures_out_and_says_so(generated: Done, tmp_path: Path):
    result = export(generated.output, "parquet", tmp_path / "deep" / "er.parquet")
    assert result.stdout == f"{hashlib.sha256((tmp_path / 'deep/er.parquet').read_bytes()).hexdigest()}  {tmp_path}/deep/er.parquet\n"
    assert "note: not in it: 1 quarantined in errors/\n" in result.stderr
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["er.parquet"]


def test_a_link_stays_and_its_target_is_replaced(generated: Done, tmp_path: Path):
    file, link, folder = tmp_path / "disk" / "out.jsonl", tmp_path / "link.jsonl", tmp_path / "folder"
    file.parent.mkdir()
    folder.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    for name in ("results.jsonl", "errors.jsonl", "SHA256SUMS"):
        (folder / name).symlink_to(tmp_path / "disk" / name)  # these lead to nothing yet
    export(generated.output, "jsonl", link, "--overwrite")
    export(generated.output, "jsonl", folder)
    assert link.is_symlink()
    assert len(file.read_text().splitlines()) == 12
    assert all(path.is_symlink() and path.is_file() for path in folder.iterdir())
    assert [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()] == ["results.jsonl", "errors.jsonl"]


def test_two_exports_into_one_folder_do_not_merge_their_sums_at_once(generated: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    waiting: list[bool] = []
    write = files._write_sums  # pyright: ignore[reportPrivateUsage]

    def write_alone(sums: Path, lines: list[bytes]) -> None:
        other = os.open(sums.parent, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting.append(True)
        os.close(other)
        write(sums, lines)

    monkeypatch.setattr(files, "_write_sums", write_alone)
    export(generated.output, "jsonl", f"{tmp_path}/both/")
    export(generated.output, "csv", f"{tmp_path}/both/")
    assert waiting == [True] * 4  # what each removes, and what it adds
    names = [line.split("  ")[1] for line in (tmp_path / "both/SHA256SUMS").read_text().splitlines()]
    assert names == ["results.jsonl", "errors.jsonl", "results.csv", "errors.csv"]


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_only_a_regular_file_is_written(generated: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: tuple[str, ...]):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("folder/results.jsonl").mkdir(parents=True)
    Path("inward").symlink_to(generated.output / "results")
    for to, said in (
        ("-", "--to -: an export appears whole or not at all, which a stream cannot; name a file"),
        ("fifo", "--to fifo: fifo is there and is no regular file"),
        ("/dev/null", "/dev/null is there and is no regular file"),
        ("folder", "--to folder: folder/results.jsonl is there and is no regular file"),
        ("inward/new.jsonl", "lies in the run directory"),
    ):
        result = export(generated.output, "jsonl", to, *overwrite, code=2)
        assert said in result.stderr
        assert "--overwrite" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "folder", "inward"]


def test_a_format_of_another_job_names_those_that_fit(generated: Done, scored: dict[str, Done], tmp_path: Path):
    for done, kind, fit in ((generated, "trl", "parquet, jsonl, csv, openai"), (scored["text"], "openai", "parquet, jsonl, csv")):
        result = export(done.output, kind, tmp_path / "out", code=2)
        assert result.stderr.rstrip().endswith(f"; use one of {fit}")


def test_an_export_is_the_same_bytes_each_time(generated: Done, tmp_path: Path):
    digests = {
        kind: {export(generated.output, kind, tmp_path / f"{n}.{kind}").stdout[:64] for n in (1, 2)}
        for kind in ("parquet", "jsonl", "openai")
    }
    assert [len(found) for found in digests.values()] == [1, 1, 1]


def test_existing_files_are_replaced_only_on_request(generated: Done, scored: dict[str, Done], tmp_path: Path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text("precious")
    refused = export(generated.output, "jsonl", mine, code=2)
    assert refused.stderr == f"mlx-bulk: --to {mine}: {mine} is there already; --overwrite replaces it\n"
    assert mine.read_text() == "precious"
    export(generated.output, "jsonl", mine, "--overwrite")
    assert len(mine.read_text().splitlines()) == 12


def test_the_input_of_a_run_is_never_replaced(generated: Done, tmp_path: Path):
    [rows] = generated.output.parent.glob("*.jsonl")
    before = rows.read_bytes()
    refused = export(generated.output, "jsonl", rows, "--overwrite", code=2)
    assert refused.stderr == f"mlx-bulk: --to {rows}: {rows} is the run's input, or would be read as such; choose another place\n"
    assert rows.read_bytes() == before


def test_an_overwritten_folder_keeps_no_failures_of_an_earlier_export(generated: Done, scored: dict[str, Done], tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    export(generated.output, "jsonl", tmp_path)
    export(scored["text"].output, "jsonl", tmp_path, "--overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SHA256SUMS", "notes.txt", "results.jsonl"]


def test_two_exports_share_a_folder_and_its_sums(generated: Done, scored: dict[str, Done], tmp_path: Path):
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(f"{'0' * 64} *binary.bin\n")  # as sha256sum -b writes it
    export(generated.output, "jsonl", tmp_path)
    export(scored["text"].output, "parquet", tmp_path)
    export(scored["text"].output, "jsonl", tmp_path, "--overwrite")
    lines = sums.read_text().splitlines()
    assert [line[66:] for line in lines] == ["binary.bin", "results.parquet", "results.jsonl"]
    assert [line[:64] for line in lines[1:]] == [hashlib.sha256((tmp_path / line[66:]).read_bytes()).hexdigest() for line in lines[1:]]


def test_a_failed_export_leaves_what_was_there(generated: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(file: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> list[str]:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(table_writers.WRITERS, "jsonl", full)
    (tmp_path / "out.jsonl").write_text("before")
    result = export(generated.output, "jsonl", tmp_path / "out.jsonl", "--overwrite", code=6)
    assert result.stderr.startswith(f"mlx-bulk: --to {tmp_path}/out.jsonl: cannot be written: [Errno 28] No space left on device")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.jsonl": "before"}


def test_an_interrupted_export_leaves_nothing(generated: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(file: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setitem(table_writers.WRITERS, "csv", interrupted)
    result = export(generated.output, "csv", tmp_path / "out.csv", code=130)
    assert result.stderr == "mlx-bulk: interrupted; no file was left half written\n"
    assert list(tmp_path.iterdir()) == []


def test_all_formats_are_offered():
    offered = next(option for option in cli.commands["export"].params if option.name == "kind").type
    assert isinstance(offered, Choice)
    assert tuple(offered.choices) == FORMATS


def test_a_place_that_cannot_be_written(generated: Done, tmp_path: Path):
    (tmp_path / "file").write_text("")
    result = export(generated.output, "jsonl", tmp_path / "file" / "out.jsonl", code=5)
    assert f"--to {tmp_path}/file/out.jsonl: cannot be written" in result.stderr


def test_the_run_directory_is_no_place(generated: Done):
    before = sorted(path.name for path in generated.output.rglob("*"))
    for to in (f"{generated.output}/", f"{generated.output}/results/x.csv"):
        assert "lies in the run directory" in export(generated.output, "csv", to, code=2).stderr
    assert sorted(path.name for path in generated.output.rglob("*")) == before


def test_the_directory_of_another_run_is_no_place(generated: Done, scored: dict[str, Done]):
    other = scored["text"].output
    before = (other / "run.json").read_bytes()
    for to in ("run.json", "new.csv"):
        refused = export(generated.output, "csv", other / to, "--overwrite", code=2)
        said = f"lies in the run directory {other}, which holds the run's own files alone; choose another place"
        assert refused.stderr == f"mlx-bulk: --to {other / to}: {said}\n"
    assert (other / "run.json").read_bytes() == before
    assert not (other / "new.csv").exists()


# ------------------------------------------------------------------------------------------------------------ refused


def test_an_incomplete_run_is_exported_when_asked_for_only(incomplete: Done, tmp_path: Path):
    refused = export(incomplete.output, "jsonl", tmp_path / "out.jsonl", code=2)
    assert refused.stderr.startswith(
        f"mlx-bulk: {incomplete.output}: is not complete: 2 of 5 rows are committed. Finish it with the command"
    )
    assert not (tmp_path / "out.jsonl").exists()
    done = export(incomplete.output, "jsonl", tmp_path / "out.jsonl", "--partial")
    assert "note: the run is not complete: 2 of 5 rows are committed" in done.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_scores_have_no_place_in_openais_format(scored: dict[str, Done], tmp_path: Path):
    result = export(scored["text"].output, "openai", tmp_path / "out.jsonl", code=2)
    assert result.stderr == (
        "mlx-bulk: --format openai: holds completions or embeddings, and this is a run of job: score; use one of parquet, jsonl, csv\n"
    )


def test_a_run_without_records(bench: Bench, tmp_path: Path):
    done = bench.run(rows=[{"q": None}])
    assert read_commits(RunPaths(done.output)).closing is not None
    assert "has no records to export" in export(done.output, "csv", tmp_path / "out.csv", code=5).stderr


def test_a_folder_that_is_no_run(tmp_path: Path):
    assert "is not a run directory: it holds no run.json" in export(tmp_path, "csv", tmp_path / "x" / "out.csv", code=5).stderr


def test_public_is_for_the_hub(generated: Done, tmp_path: Path):
    assert "--public: goes with --to hf:owner/name" in export(generated.output, "parquet", tmp_path / "x", "--public", code=2).stderr


def test_maps_of_the_input_are_loaded_by_datasets(bench: Bench):
    counts = pa.map_(pa.string(), pa.int64())
    columns = {"q": ["a", "b"], "m": pa.array([[("k", 1)], None], counts), "l": pa.array([[[("x", 2)]], []], pa.list_(counts))}
    pq.write_table(pa.table(columns), bench.root / "maps.parquet")
    done = bench.run(data={"path": str(bench.root / "maps.parquet")})
    result = export(done.output, "parquet", bench.root / "out.parquet")
    assert "note: maps are lists of {key, value} here" in result.stderr
    table = Dataset.from_parquet(str(bench.root / "out.parquet"), cache_dir=str(bench.root / "cache"))
    assert list(table["input"]) == [
        {"q": "a", "m": [{"key": "k", "value": 1}], "l": [[{"key": "x", "value": 2}]]},
        {"q": "b", "m": None, "l": []},
    ]


def test_one_record_is_not_called_records():
    assert export_as_text(ExportResult("there", 1)) == "exported 1 record -> there"
    assert export_as_text(ExportResult("there", 2_000, 1)) == "exported 2,000 records and 1 failure -> there"

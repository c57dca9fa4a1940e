"""What ``status``, ``report``, ``verify``, ``export`` and ``compare`` say of an evaluation."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from ..jobs.support.eval_commands import bulk, computed, eval_config, offline

pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:  # pyright: ignore[reportUnusedFunction]
    offline(monkeypatch, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The folder of a complete evaluation of three documents a task, with samples."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        offline(patch, tmp_path_factory.getbasetemp())
        result = bulk("eval", eval_config(folder, model, limit=3, log_samples=True))
    assert result.exit_code == 0, result.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The folder of an evaluation that ended behind ten answers, the first eight of which are a shard."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch, computed(10):
        offline(patch, tmp_path_factory.getbasetemp())
        assert bulk("eval", eval_config(folder, model, limit=3)).exit_code == 130
    return folder / "out"


def test_status_shows_the_figures_of_a_complete_evaluation(finished: Path):
    found = bulk("status", finished)
    assert found.exit_code == 0, found.stderr
    head, figures = found.stdout.split("\n\n")
    assert "(eval with\n" in head
    assert "state     complete" in head
    assert "rows      16 of 16 (100 %)" in head
    results = json.loads((finished / "results.json").read_text())["results"]
    assert [line.split()[0] for line in figures.splitlines() if not line.startswith(" ")] == ["task", "questions", "plays", "sums"]
    [accuracy] = [line.split() for line in figures.splitlines() if " acc ↑" in line]
    assert float(accuracy[4]) == pytest.approx(results["questions"]["acc,none"], abs=0.01)
    assert float(accuracy[6]) == pytest.approx(results["questions"]["acc_stderr,none"], abs=0.01)
    values = json.loads(bulk("status", finished, "--json").stdout)
    assert (values["job"], values["rows"], values["of"], values["state"]) == ("eval", 16, 16, "complete")
    assert values["statistics"]["metric"] == "acc"


def test_status_of_a_stopped_evaluation_says_what_continues_it(stopped: Path):
    found = bulk("status", stopped)
    assert "state     stopped" in found.stdout
    assert "rows      10 of 16 (62.5 %); 2 in the journal, not in results/ yet" in found.stdout
    assert f"mlx-bulk eval {stopped.parent / 'eval.yaml'}" in found.stdout


def test_the_page_of_a_complete_evaluation_has_figures_and_documents(finished: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    assert bulk("report", finished, "--to", page).exit_code == 0
    text = page.read_text()
    assert "lm-evaluation-harness with " in text
    for shown in ("questions, plays, sums", "word_perplexity ↓", "acc_norm ↑", "exact_match ↑", "± ", "each request has its answer"):
        assert shown in text
    samples = json.loads(re.findall(r"<script[^>]*json[^>]*>(.*?)</script>", text, re.DOTALL)[0])
    assert len(samples["records"]) == 9  # all documents, as there are so few
    assert samples["sorts"] == [["questions", 3], ["plays", 3], ["sums", 3]]
    by_name = {record["name"]: record for record in samples["records"]}
    question = by_name["questions · document 0"]
    assert [part["name"] for part in question["parts"]][:3] == ["prompt", "continuation 0", "continuation 1"]
    assert question["parts"][0]["text"].startswith("Question: ")
    assert sum("the likeliest" in part.get("note", "") for part in question["parts"]) == 1
    assert {"acc", "acc_norm", "target"} <= {name for name, _ in question["facts"]}
    assert [part["name"] for part in by_name["sums · document 1"]["parts"]] == ["prompt", "generated"]


def test_the_page_of_a_stopped_evaluation_says_so(stopped: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    assert bulk("report", stopped, "--to", page).exit_code == 0
    assert "This run is not complete (stopped): 8 of 16 rows are committed" in page.read_text()
    assert "lm-eval computes them when all requests have their answers." in page.read_text()


@pytest.mark.draws
def test_a_complete_evaluation_draws_its_page(tmp_path: Path, model: Path):
    assert bulk("eval", eval_config(tmp_path, model, limit=1, tasks=["plays"])).exit_code == 0
    assert "byte_perplexity ↓" in (tmp_path / "out/report.html").read_text()


def _changed(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"acc", b"ACC", 1))


@pytest.mark.parametrize(
    ("name", "spoil", "line"),
    [
        ("results.json", _changed, "results.json: is changed or damaged: its sha256 is not the one in summary.json"),
        ("samples_questions.jsonl", Path.unlink, "samples_questions.jsonl: is missing; run the same command again: it is written anew"),
    ],
)
def test_verify_reads_the_result_files_too(finished: Path, tmp_path: Path, name: str, spoil: Callable[[Path], None], line: str):
    assert "complete and sound: 16 rows, each once" in bulk("verify", finished).stdout
    copy = shutil.copytree(finished, tmp_path / "copy")
    spoil(copy / name)
    found = bulk("verify", copy)
    assert found.exit_code == 5
    assert line in found.stdout


def test_verify_hashes_the_requests_in_the_records(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from mlx_bulk.jobs.evals import request_audit

    read = request_audit.read_results

    def other(*arguments: object) -> object:
        for batch in read(*arguments):  # pyright: ignore[reportArgumentType]
            at = batch.schema.get_field_index("continuation")
            texts = [text and text.replace(" 4", " 5") for text in batch.column(at).to_pylist()]
            yield batch.set_column(at, batch.schema.field(at), pa.array(texts))

    monkeypatch.setattr(request_audit, "read_results", other)
    found = bulk("verify", finished)
    assert found.exit_code == 5
    assert "the requests of questions in the records are not those that run.json has the hash of" in found.stdout


def test_records_can_be_exported_and_are_not_compared(finished: Path, tmp_path: Path):
    assert bulk("export", finished, "--format", "jsonl", "--to", tmp_path / "x.jsonl").exit_code == 0
    first = json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])
    assert (first["task"], first["request_type"], first["row"]) == ("questions", "loglikelihood", 0)
    refused = bulk("compare", finished, finished)
    assert refused.exit_code == 5
    assert "is an evaluation, whose records mlx-bulk compare does not read" in refused.stderr

"""Tests ``mlx-bulk report``: pages of finished and unfinished runs, text that must not act as HTML, and failures."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.report.page import Card, Page, render_page, script_json
from mlx_bulk.jobs.terminal.tables import figure
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.files.checked_json import write_document
from mlx_bulk.runner.files.checked_lines import append_line
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.pipeline.session import run_job as run_job
from mlx_bulk.runner.runs.run_dir import Start

from ...runner.support.sessions import flip
from ..support.bench import ROWS, Bench, Record, table_of

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028\u2029 \x00\x1b[2J & \" ' ]]> {{ 7 * 7 }} 🙂"


class Reader(HTMLParser):
    """Reads a page: its elements with their attributes, the text that is shown, and the text of its scripts."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def samples(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def reported(run: Path, *options: str) -> Reader:
    """The page that the command writes, read."""
    result = CliRunner().invoke(cli, ["report", str(run), *options])
    assert result.exit_code == 0, result.output
    path = Path(result.stdout.strip())
    return Reader(path.read_text(encoding="utf-8"))


@pytest.mark.usefixtures("no_charts")
def test_a_page_begins_with_what_was_not_compared(bench: Bench):
    done = bench.run(sampling={"max_tokens": 2})
    append_line(done.output / "sessions.jsonl", {"event": "models", "unchecked_images": "of_next_year"})
    said = "pictures of the model type of_next_year were compared with mlx-vlm alone and not with transformers"
    assert said in reported(done.output).text


def test_a_generation_with_everything(bench: Bench):
    sampling: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "n": 2}
    done = bench.run(sampling=sampling, logprobs={"top": 3, "stats": True, "prompt": True}, data={"key": "id"})
    page = reported(done.output)
    assert "Records10results; one a sample" in page.text
    figures = {attributes["aria-label"] for tag, attributes in page.elements if tag == "figure"}
    assert figures == {"Prompt length", "Completion length", "Logprobs", "Perplexity by completion", "Finish reasons"}
    assert len(page.samples["records"]) == 10
    for shown, record in zip(page.samples["records"], done.records, strict=True):
        prompt, completion = shown["parts"]
        assert (shown["name"], shown["key"]) == (f"row {record['row']} · sample {record['sample']}", record["key"])
        assert "".join(token[0] for token in prompt["tokens"]).endswith(record["prompt"])
        assert len(completion["tokens"]) == len(record["completion_ids"])
        for token, logprob, rank, top in zip(
            completion["tokens"], record["logprobs"], record["ranks"], record["top_logprobs"], strict=True
        ):
            assert token[1] == pytest.approx(logprob, abs=6e-4)
            assert token[2] == rank
            assert [value for _, value in token[4]] == pytest.approx(top, abs=6e-4)
            if rank == 1:
                assert token[4][0][1] == token[1]


@pytest.mark.usefixtures("no_charts")
def test_the_perplexity_is_that_of_all_completions(bench: Bench):
    """Of a Batch file's requests only some may ask for logprobs; each record has their sum."""
    done = bench.run(logprobs={"tokens": False})
    (row,) = pa.ipc.open_file(done.output / "stats.arrow").read_all().to_pylist()
    total = sum(record["cumulative_logprob"] for record in done.records)
    assert row["completion_perplexity"] == pytest.approx(math.exp(-total / sum(record["completion_tokens"] for record in done.records)))
    assert (
        f"Perplexity{figure(row['completion_perplexity'])}of all completions, as the model itself sees them" in reported(done.output).text
    )


@pytest.mark.usefixtures("no_charts")
def test_a_run_that_grows_has_the_figures_of_the_records_that_are_there(bench: Bench):
    """Until it is complete again, stats.arrow and summary.json are those of the run that it was."""
    run = bench.run(rows=ROWS[:1]).output
    old = {name: (run / name).read_bytes() for name in ("stats.arrow", "summary.json")}
    records = bench.run(rows=ROWS[:3]).records
    for name, content in old.items():
        (run / name).write_bytes(content)
    commits = run / "commits.jsonl"
    commits.write_bytes(b"".join(commits.read_bytes().splitlines(keepends=True)[:-1]))  # without the closing line
    page = reported(run).text
    logprobs = [logprob for record in records for logprob in record["logprobs"]]
    assert f"Perplexity{figure(math.exp(-sum(logprobs) / len(logprobs)))}of the tokens with a logprob" in page
    assert "This run is not complete" in page


@pytest.mark.usefixtures("no_charts")
def test_scores_of_texts_and_of_choices(bench: Bench):
    texts = bench.score(rows=ROWS, score={"text": "{{ q }}", "group_by": "id"})
    page = reported(texts.output)
    assert "Perplexity by document" in page.text
    assert [["".join(token[0] for token in record["parts"][0]["tokens"]) for record in page.samples["records"]]] == [
        [f"<|endoftext|>{row['q']}" for row in ROWS]
    ]
    choices = bench.score(
        "--output", str(bench.root / "choices"), rows=ROWS, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "y"}
    )
    assert choices.code == 5
    rows = [{**row, "c": ["yes", "no"], "y": 0} for row in ROWS]
    choices = bench.score("--output", str(bench.root / "c"), rows=rows, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "y"})
    page = reported(choices.output)
    assert "Accuracy" in page.text
    assert ["".join(token[0] for token in part["tokens"]) for part in page.samples["records"][0]["parts"]] == ["yes", "no"]
    assert any("label" in part["note"] for part in page.samples["records"][0]["parts"])


# --------------------------------------------------------------------------------------------------------- text is text


def test_text_of_others_stays_text(bench: Bench):
    rows: list[Record] = [{"id": HOSTILE, "q": HOSTILE, "\u2028<b>": HOSTILE}, {"id": "b", "q": None, "\u2028<b>": "x"}]
    done = bench.run(rows=rows, data={"key": "id"}, prompt={"text": "{{ q }}"})
    page = reported(done.output)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not [tag for tag, _ in page.elements if tag in ("img", "b", "iframe", "object", "form", "base")]
    record = page.samples["records"][0]
    assert record["key"] == HOSTILE
    assert HOSTILE in record["parts"][0]["text"]
    raw = (done.output / "report.html").read_text(encoding="utf-8")
    for sign in ("<!--", "alert(1)</script>", "<img", "\x1b", "\x00"):
        assert sign not in raw, f"{sign!r} is in the page"
    assert not set("\u2028\u2029<>&") & set(page.scripts[0])


def test_text_that_ends_the_script_stays_text():
    text = script_json({"completion": HOSTILE + "\ud800", "number": 1.5})
    assert not re.search(r"[<>&\u2028\u2029\x00-\x1f]|[^\x00-\x7f]", text)
    assert json.loads(text) == {"completion": HOSTILE + "\ud800", "number": 1.5}
    page = Page(title=HOSTILE, subtitle=HOSTILE + "\ud800", banner=[HOSTILE], cards=[Card(HOSTILE, HOSTILE, HOSTILE)], footer=HOSTILE)
    page.browser = {"words": HOSTILE, "records": [], "sorts": [[HOSTILE, 1]]}
    found = Reader(render_page(page).decode("utf-8"))
    assert [tag for tag, _ in found.elements].count("script") == 2
    assert not [tag for tag, _ in found.elements if tag == "img"]
    assert "\\ud800" in found.text
    assert found.samples["sorts"] == [[HOSTILE, 1]]
    assert "49" not in found.text


def test_nothing_is_fetched(bench: Bench):
    reported((done := bench.run()).output)
    raw = (done.output / "report.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"' <)]+", raw)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src 'none'" in raw
    names = re.findall(r'\bid="([^"]+)"', raw)
    assert len(names) == len(set(names))


# ------------------------------------------------------------------------------------------------- runs that are not whole


@pytest.mark.usefixtures("no_charts")
def test_a_stopped_run_is_drawn_as_far_as_it_is(bench: Bench):
    bench.write_config(batch={"rows_per_shard": 2, "rows": 1})
    asked = iter([False] * 24 + [True] * 1000)
    config: Any = load_config(bench.root / "config.yaml", [])
    summary = run_job(config, KINDS["generate"], Start(), HostProcess(lambda: next(asked)), "nothing", ModelWork(ModelPool()))
    assert 2 <= summary.rows < 5
    page = reported(bench.root / "run")
    assert "This run is not complete (stopped): " in page.text
    assert " of 5 rows are committed and drawn here" in page.text
    assert len(page.samples["records"]) == len(table_of(bench.root / "run/results")) < 5


def test_a_run_without_results(bench: Bench):
    done = bench.run(rows=[{"q": None}])
    page = reported(done.output)
    assert "1quarantined" in page.text.replace("\n", "").replace(" ", "")
    assert "missing in this row: q" in page.text
    assert len(page.scripts) == 1


@pytest.mark.usefixtures("no_charts")
def test_another_tokenizer_leaves_ids(bench: Bench):
    done = bench.run(logprobs={"top": 2})
    run = json.loads((done.output / "run.json").read_text())
    del run["check"]
    run["identity"]["model.tokenizer"] = "another"
    write_document(done.output / "run.json", run)
    page = reported(done.output)
    assert "Tokens are shown by their ids" in page.text
    alternatives = [text for record in page.samples["records"] for token in record["parts"][-1]["tokens"] for text, _ in token[4]]
    assert alternatives
    assert all(re.fullmatch(r"#\d+", text) for text in alternatives)


def test_a_damaged_part_is_refused(bench: Bench):
    done = bench.run()
    flip(next((done.output / "results").glob("*.arrow")))
    result = CliRunner().invoke(cli, ["report", str(done.output)])
    assert result.exit_code == 5
    assert "is damaged" in result.stderr
    assert not (done.output / "report.html").exists()

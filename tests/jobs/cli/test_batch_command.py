"""Tests mlx-bulk batch: a file of requests in, answers out, and the same command again."""

from pathlib import Path

import pytest

from ..support.batch_files import batch, chat, completion, read_lines
from ..support.bench import Bench

LINES = [chat("a", max_tokens=3), completion("b", max_tokens=3), chat("c", max_tokens=3)]


@pytest.fixture
def words(bench: Bench) -> list[str]:
    return [str(bench.write_rows(LINES, "requests.jsonl")), "--model", str(bench.model)]


def test_a_folder_of_answers_and_the_same_command_again(bench: Bench, words: list[str]):
    to = bench.root / "answers"
    first = batch(*words, "--to", str(to))
    assert first.exit_code == 0
    assert f"-> {to / 'run'}\nexported 3 records -> {to}/" in first.stderr
    written = (to / "output.jsonl").read_bytes()
    (to / "output.jsonl").unlink()
    again = batch(*words, "--to", str(to))
    assert "complete already: 3 of 3 rows" in again.stderr
    assert (to / "output.jsonl").read_bytes() == written
    assert not (to / "errors.jsonl").exists()


def test_a_file_of_answers(bench: Bench, words: list[str]):
    to = bench.root / "answers.jsonl"
    assert batch(*words, "--to", str(to), "--limit", "2").exit_code == 0
    assert [line["custom_id"] for line in read_lines(to)] == ["a", "b"]
    assert batch(*words, "--to", str(to), "--limit", "3", "-q").exit_code == 0
    assert [line["custom_id"] for line in read_lines(to)] == ["a", "b", "c"]
    assert (bench.root / "answers.jsonl.run" / "run.json").is_file()


def test_the_advice_of_runs_to_choose_another_output_holds_here(bench: Bench, words: list[str]):
    to = bench.root / "answers"
    assert batch(*words, "--to", str(to), "-q").exit_code == 0
    bench.write_rows([*LINES[:2], chat("d", max_tokens=3)], "requests.jsonl")
    refused = batch(*words, "--to", str(to))
    assert refused.exit_code == 4
    assert "choose another --output" in refused.stderr
    other = bench.root / "other.jsonl"
    assert batch(*words, "--output", str(other), "-q").exit_code == 0
    assert [line["custom_id"] for line in read_lines(other)] == ["a", "b", "d"]


def test_settings_and_a_plan(bench: Bench, words: list[str]):
    to = bench.root / "answers.jsonl"
    planned = batch(*words, "--to", str(to), "--plan")
    assert planned.exit_code == 0
    assert "rows      3 from" in planned.stdout
    assert "(--calibrate)" in planned.stdout
    assert "a completion as in the trial" in batch(*words, "--to", str(to), "--plan", "--calibrate").stdout
    assert batch(*words, "--to", str(to), "--calibrate").exit_code == 2
    assert not to.exists()
    assert batch(*words, "--to", str(to), "--set", "sampling.n=2").exit_code == 0
    assert [len(line["response"]["body"]["choices"]) for line in read_lines(to)] == [2, 2, 2]


def test_files_of_others_stay(bench: Bench, words: list[str]):
    to = bench.root / "answers"
    to.mkdir()
    (to / "output.jsonl").write_text("mine")
    refused = batch(*words, "--to", str(to))
    assert refused.exit_code == 2
    assert "output.jsonl is there already" in refused.stderr
    assert (to / "output.jsonl").read_text() == "mine"
    assert batch(*words, "--to", str(to), "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("requests", "to"),
    [
        ("requests.jsonl", "requests.jsonl"),
        ("requests.jsonl", "./link.jsonl"),
        ("output.jsonl", "."),
        (".", "answers"),
        ("*.jsonl", "requests.jsonl"),
    ],
)
def test_answers_never_replace_the_requests(bench: Bench, monkeypatch: pytest.MonkeyPatch, requests: str, to: str):
    monkeypatch.chdir(bench.root)
    for name in ("requests.jsonl", "output.jsonl"):
        bench.write_rows(LINES, name)
    Path("link.jsonl").symlink_to("requests.jsonl")
    before = Path("requests.jsonl").read_bytes()
    refused = batch(requests, "--model", str(bench.model), "--to", to, "--overwrite")
    assert refused.exit_code == 2
    assert "is one of the requests, or would be read as such; choose another place" in refused.stderr
    assert Path("requests.jsonl").read_bytes() == Path("output.jsonl").read_bytes() == before


def test_a_place_that_the_answers_cannot_have_is_refused_before_the_run(bench: Bench, words: list[str]):
    first = bench.root / "first"
    assert batch(*words, "--to", str(first)).exit_code == 0
    before = sorted(bench.root.rglob("*"))
    for to, said in (
        ("first/run/answers.jsonl", f"lies in the run directory {first}/run, which holds"),
        ("first/run/answers", f"lies in the run directory {first}/run, which holds"),
        ("folder.jsonl", f"{bench.root}/folder.jsonl is there and is no regular file"),
        ("answers.jsonl.gz", "answers are written to a file that ends in .jsonl, or to a folder"),
        ("answers.json", "answers are written to a file that ends in .jsonl, or to a folder"),
    ):
        (bench.root / "folder.jsonl").mkdir(exist_ok=True)
        refused = batch(*words, "--to", str(bench.root / to), "--overwrite")
        assert refused.exit_code == 2
        assert f"mlx-bulk: --to {bench.root / to}: {said}" in refused.stderr
    (bench.root / "folder.jsonl").rmdir()
    assert sorted(bench.root.rglob("*")) == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("output=elsewhere", "output.path is not set here: say --to"),
        ("output.path=elsewhere", "output.path is not set here: say --to"),
        ("model.path=other", "model.path is not set here: say --model"),
        ("data.path=other.jsonl", "data.path is not set here: the file of requests stands by itself"),
        ("data.format=jsonl", "data.format is not set here: this command is for openai alone"),
        ("job=score", "job is not set here: it follows from the requests"),
    ],
)
def test_what_the_command_gives_is_not_set(bench: Bench, words: list[str], override: str, message: str):
    refused = batch(*words, "--to", str(bench.root / "answers"), "--set", override)
    assert refused.exit_code == 2
    assert f"mlx-bulk: --set {override}: {message}\n" in refused.stderr
    assert not (bench.root / "answers").exists()


def test_another_model_is_a_drift(bench: Bench, words: list[str]):
    to = bench.root / "answers"
    assert batch(*words, "--to", str(to)).exit_code == 0
    drifted = batch(words[0], "--model", "demo", "--to", str(to))
    assert drifted.exit_code == 4
    assert "model" in drifted.stderr


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [chat("a"), chat("a")],
            "two rows have the key 'a' in 'custom_id': {path}, line 1, and {path}, line 2. Make the keys unique: answers",
        ),
        ([{"id": "a"}], "data.format: openai: no row has a column 'custom_id'"),
    ],
)
def test_files_that_stop_the_job(bench: Bench, lines: list[dict[str, object]], message: str):
    path = bench.write_rows(lines, "requests.jsonl")
    done = batch(str(path), "--model", str(bench.model), "--to", str(bench.root / "answers"))
    assert done.exit_code == 5
    assert message.format(path=path) in done.stderr


def test_all_lines_refused_is_an_answer_too(bench: Bench):
    path = bench.write_rows([chat(f"{i}", stream=True) for i in range(20)], "requests.jsonl")
    to = Path(bench.root / "answers")
    assert batch(str(path), "--model", str(bench.model), "--to", str(to)).exit_code == 3
    assert len(read_lines(to / "errors.jsonl")) == 20

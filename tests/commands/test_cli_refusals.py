"""Tests refusals of the command: one line that names the fix, and an exit code, for configs, inputs, models and folders."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx_bulk.configs
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from ..checkpoints import LLAMA
from ..jobs.support.bench import Bench, Record
from ..jobs.support.command_inputs import LOADING, THREE

DEMO = Path(mlx_bulk.configs.__path__[0]) / "demo"


def changed(bench: Bench, model: Path, **config: Any) -> Path:
    """A copy of the model with another config.json."""
    folder = shutil.copytree(model, bench.root / "changed", dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    return folder


@pytest.mark.parametrize(
    ("options", "sections", "message"),
    [
        (
            ("--set", "sampling.temprature=1"),
            {},
            "--set sampling.temprature=1: sampling.temprature: no such key; did you mean sampling.temp",
        ),
        ((), {"sampling": {"temprature": 1}}, "config.yaml: sampling.temprature: no such key; did you mean sampling.temperature?"),
        ((), {"sampling": {"max_tokens": 0}}, "config.yaml: sampling.max_tokens: found 0; expected a whole number of at least 1"),
        (
            ("--set", "batch.rows=none"),
            {},
            '--set batch.rows=none: batch.rows: found "none"; expected auto, or a whole number of at least 1',
        ),
        ((), {"prompt": {"text": "a\n{% if %}"}}, "prompt.text, line 2: the template cannot be parsed: Expected an expression"),
        ((), {"prompt": {"user": "{{ q", "system": "x"}}, "prompt.user, line 1: the template cannot be parsed: "),
        (
            (),
            {"prompt": {"text": "{% foo %}"}},
            "cannot be parsed: Encountered unknown tag 'foo'. A column is written {{ name }}, or",
        ),
        ((), {"prompt": {"text": "x", "user": "y"}}, "prompt: found text and user; expected exactly one of text, messages, user"),
    ],
)
def test_a_config_error_starts_nothing(bench: Bench, options: Sequence[str], sections: dict[str, Any], message: str):
    done = bench.run(*options, **sections)
    assert done.code == 2
    assert message in done.stderr
    assert done.stderr.startswith("mlx-bulk: ")
    assert done.stdout == ""
    assert not done.output.exists()


def test_every_problem_of_a_config_is_named_at_once(bench: Bench):
    done = bench.run(sampling={"max_tokens": "x", "top_p": 2}, batch={"memory": 0})
    assert done.code == 2
    assert [key in done.stderr for key in ("sampling.max_tokens", "sampling.top_p", "batch.memory")] == [True] * 3


def test_a_missing_config_names_an_example(bench: Bench):
    done = bench.command(bench.root / "gone.yaml")
    assert done.code == 2
    assert re.search(r"gone\.yaml: no such file; expected a job config \(\S+/demo\.yaml is an example\)$", done.stderr.strip())


@pytest.mark.parametrize("options", [["run"], ["run", "x.yaml", "--frobnicate"], ["rum"], ["run", "x.yaml", "--log-level", "loud"]])
def test_wrong_usage(options: list[str]):
    result = CliRunner().invoke(cli, options)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_settings_that_only_the_tokenizer_can_judge(bench: Bench):
    done = bench.run(prompt={"user": "{{ q }}", "chat_template": "{{ messages }}\n{% for %}"})
    assert done.code == 2
    assert "prompt.chat_template, line 2: the template cannot be parsed: " in done.stderr
    done = bench.run(prompt={"user": "{{ q }}", "chat_template": str(bench.root / "gone.jinja")})
    assert done.code == 2
    assert "gone.jinja is neither a readable file nor a template" in done.stderr
    done = bench.run(sampling={"stop_token_ids": [4096]})
    assert done.code == 2
    assert "sampling.stop_token_ids: found the id 4096; expected ids below 2048, the model's vocabulary" in done.stderr


def test_a_base_model_has_no_chat(bench: Bench, model: Path):
    base = changed(bench, model)
    (base / "chat_template.jinja").unlink()
    done = bench.run(model={"path": str(base)}, prompt={"user": "{{ q }}"})
    assert done.code == 2
    assert "has no chat template; set prompt.chat_template, or use prompt.text for a base model" in done.stderr
    assert bench.run(model={"path": str(base)}, prompt={"text": "{{ q }}"}).code == 0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"path": "ROOT/row.jsonl"}}, "row.jsonl does not exist (looked from "),
        ({"data": {"path": "ROOT/row.jsonl"}}, "Near names there: rows.jsonl."),
        ({"data": {"path": "ROOT/*.parquet"}}, "data.path: no file matches "),
        ({"prompt": {"text": "{{ question }}"}}, "prompt.text: no row has a column 'question'. The columns are: id, q."),
        ({"prompt": {"messages": "chat"}}, "prompt.messages: no row has a column 'chat'. The columns are: id, q."),
        ({"data": {"keep": ["qq"]}}, "data.keep: no row has a column 'qq'. Did you mean 'q'? The columns are: q, id."),
        ({"data": {"key": "name"}}, "data.key: no row has a column 'name'. The columns are: id, q."),
        ({"sampling": {"columns": {"n": "count"}}}, "sampling.columns.n: no row has a column 'count'. The columns are: id, q."),
        ({"model": {"path": "ROOT/tny"}}, "model.path: no folder ROOT/tny; expected demo, a local folder, or a hub id such as org/name"),
        ({"model": {"path": "ROOT"}}, "model.path: ROOT holds no config.json; expected a folder in Hugging Face or mlx-lm format"),
        ({"model": {"adapter": "ROOT"}}, "model.adapter: ROOT holds no adapter_config.json; expected a LoRA or DoRA adapter"),
    ],
)
def test_what_is_missing_is_named_before_a_model_is_loaded(bench: Bench, sections: dict[str, Any], message: str):
    here = json.loads(json.dumps(sections).replace("ROOT", str(bench.root)))
    done = bench.run(**here)
    assert done.code == 5
    assert message.replace("ROOT", str(bench.root)) in done.stderr
    assert not LOADING.search(done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_duplicate_keys_name_both_lines(bench: Bench):
    rows: list[Record] = [{"id": 1, "q": "a"}, {"id": 2, "q": "b"}, {"id": 1, "q": "c"}]
    done = bench.run(rows=rows, data={"key": "id"})
    assert done.code == 5
    assert (
        f"data.key: two rows have the key '1' in 'id': {bench.root}/rows.jsonl, line 1, and {bench.root}/rows.jsonl, line 3" in done.stderr
    )


def test_models_that_cannot_be_loaded(bench: Bench, model: Path):
    martian = changed(bench, model, model_type="martian")
    done = bench.run(model={"path": str(martian)})
    assert done.code == 5
    assert f"model.path: {martian} cannot be loaded: mlx-lm has no model type 'martian'" in done.last_line
    (martian / "model.safetensors").rename(martian / "pytorch_model.bin")
    done = bench.run("--overwrite", model={"path": str(martian)})
    assert done.code == 5
    assert done.last_line.endswith("holds no model*.safetensors (found pytorch_model.bin: only safetensors are read)")
    whole = changed(bench, model)
    (whole / "tokenizer.json").unlink()
    (whole / "tokenizer_config.json").unlink()
    done = bench.run("--overwrite", model={"path": str(whole)})
    assert done.code == 5
    assert done.last_line.endswith("holds no tokenizer; put the model's tokenizer files beside its weights")


def test_on_error_fail_stops_at_the_first_bad_row(bench: Bench):
    done = bench.run(rows=THREE, on_error="fail")
    assert done.code == 5
    assert "on_error: fail, and row 1 failed at template: prompt.text: null or missing in this row: q." in done.last_line
    # Mended, the same run goes on.
    assert bench.run(rows=THREE, on_error="quarantine").code == 3


def test_debug_shows_where_an_error_came_from(bench: Bench, model: Path):
    broken = changed(bench, model, hidden_size=32)
    quiet = bench.run(model={"path": str(broken)})
    loud = bench.run("--log-level", "DeBuG", model={"path": str(broken)})
    assert (quiet.code, loud.code) == (5, 5)
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert loud.last_line == quiet.last_line


def test_a_folder_that_is_no_run_stays_untouched(bench: Bench):
    folder = bench.root / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("all of it")
    for options in ((), ("--overwrite",)):
        done = bench.run("--output", str(folder), *options)
        assert done.code == 5
        assert (
            done.stderr
            == f"mlx-bulk: {folder}: is not an mlx-bulk run, it holds thesis.txt. Choose another --output, or an empty folder.\n"
        )
        assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--data", "typo.jsonl"], 5),
        (["--model", "typo"], 5),
        (["--adopt", "sampling.sed"], 2),
        (["--set", "data.key=q q"], 5),
    ],
)
def test_overwrite_removes_nothing_where_the_new_run_cannot_start(bench: Bench, options: list[str], code: int):
    assert bench.run(rows=THREE).code == 3
    before = {path: path.read_bytes() for path in (bench.root / "run").rglob("*") if path.is_file() and path.name != ".lock"}
    done = bench.run("--overwrite", *options, rows=THREE)
    assert done.code == code, done.stderr
    assert {path: path.read_bytes() for path in (bench.root / "run").rglob("*") if path.is_file() and path.name != ".lock"} == before


def test_overwrite_keeps_what_was_piped_in_until_the_new_run_takes_its_place(bench: Bench):
    rows = '{"q": "one"}\n'
    assert bench.run("--data", "-", stdin=rows).code == 0
    assert bench.run("--overwrite", "--data", "-", "--model", "typo", stdin='{"q": "other"}\n').code == 5
    assert [path.read_text() for path in (bench.root / "run").glob("stdin*")] == [rows]
    assert bench.run("--data", "-", stdin=rows).last_line.startswith("complete already")
    again = bench.run("--overwrite", "--data", "-", stdin='{"q": "other"}\n')
    assert [record["prompt"] for record in again.records] == ["other"]


def test_a_run_of_another_config_is_refused_with_the_difference(bench: Bench):
    assert bench.run().code == 0
    before = (bench.root / "run/commits.jsonl").read_bytes()
    done = bench.run(sampling={"max_tokens": 7, "temperature": 0})
    assert done.code == 4
    assert "  sampling.max_tokens: the run has 6, the config now says 7\n" in done.stderr
    assert "choose another --output, or start over with --overwrite" in done.last_line
    assert (bench.root / "run/commits.jsonl").read_bytes() == before
    assert bench.run("--overwrite", sampling={"max_tokens": 7, "temperature": 0}).code == 0
    assert {record["completion_tokens"] for record in bench.run(sampling={"max_tokens": 7}).records} == {7}


def test_another_model_or_input_is_refused(bench: Bench, model: Path):
    assert bench.run().code == 0
    twin = changed(bench, model)
    (twin / "config.json").write_bytes((model / "config.json").read_bytes())
    assert bench.run(model={"path": str(twin)}).code == 0  # the same contents at another place are the same model
    (twin / "tokenizer_config.json").write_text((model / "tokenizer_config.json").read_text() + "\n")
    done = bench.run(model={"path": str(twin)})
    assert done.code == 4
    assert "  model.tokenizer: the run has " in done.stderr
    done = bench.run(rows=[{"id": "z", "q": "other"}])
    assert done.code == 4
    assert "data.path: source 1 was " in done.stderr


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"path": "gone.jsonl"}},
        {"prompt": {"text": "{{ gone }}"}},
        {"model": {"path": "./gone"}},
        {"data": {"key": "gone"}},
    ],
)
def test_a_refused_start_leaves_no_folder(bench: Bench, sections: dict[str, Any]):
    output = bench.root / "new" / "deep" / "run"
    assert bench.run(**sections, output={"path": str(output)}).code > 0
    assert not (bench.root / "new").exists()


def test_a_refused_start_leaves_what_was_there(bench: Bench):
    output = bench.root / "run"
    output.mkdir()
    assert bench.run(prompt={"text": "{{ gone }}"}).code > 0
    assert list(output.iterdir()) == []
    assert bench.run().code == 0
    before = sorted(path.name for path in output.iterdir())
    assert bench.run(prompt={"text": "{{ gone }}"}).code > 0
    assert sorted(path.name for path in output.iterdir()) == before


def test_rows_from_stdin_are_refused_without_a_trace(bench: Bench):
    assert bench.run(data={"path": "-"}, prompt={"text": "{{ gone }}"}, stdin='{"q": "a"}\n').code > 0
    assert not (bench.root / "run").exists()


def test_config_json_is_blamed_where_the_tokenizer_stumbles_over_it(bench: Bench):
    """transformers reads config.json for a tokenizer too."""
    folder = shutil.copytree(DEMO, bench.root / "broken")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_attention_heads": 0}))
    done = bench.run(rows=[{"q": "a"}], model={"path": str(folder)})
    assert done.code == 5
    assert "cannot be loaded: config.json says num_attention_heads: 0; expected whole numbers of at least 1" in done.stderr

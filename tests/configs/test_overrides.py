"""Tests ``--set`` and the short options: YAML values laid over a config, and paths that expand."""

import json
from pathlib import Path

import pytest

from .written import LEAST, generation, lines, message, written


def test_overrides_are_yaml_and_create_sections(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST + "sampling: {logit_bias: {5: 1}}\n")
    config = generation(
        path,
        "sampling.temperature=1e-2",
        'sampling.stop=["\\n", END]',
        "sampling.logit_bias.5=2",
        "sampling.logit_bias.6=3",
        "sampling.columns.seed=meta.seed",
        "prompt.chat_template_args.enable_thinking=false",
        "batch.rows=4",
        "output.path=a=b",
        "data.limit=",
    )
    assert (config.sampling.temperature, config.sampling.stop) == (0.01, ["\n", "END"])
    assert config.sampling.logit_bias == {5: 2.0, 6: 3.0}
    assert config.sampling.columns == {"seed": "meta.seed"}
    assert config.prompt.chat_template_args == {"enable_thinking": False}
    assert (config.batch.rows, config.output.path, config.data.limit) == (4, "a=b", None)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("prompt.system= two spaces ", " two spaces "),
        ("prompt.system=one # and two", "one # and two"),
        ("prompt.system=[0-9]{3}-\\w+!", "[0-9]{3}-\\w+!"),
        ("prompt.system=[a, b]", "[a, b]"),
        ("prompt.system=- brief", "- brief"),
        ("prompt.system=*all*", "*all*"),
        ("prompt.system=' quoted '", " quoted "),
        ('prompt.system="a\\nb"', "a\nb"),
        ('prompt.system=""', ""),
        ("prompt.system=null", None),
        ("prompt.system=", None),
        ("sampling.stop= x", " x"),
        ("sampling.stop=[ x, y]", ["x", "y"]),
    ],
)
def test_a_text_is_taken_to_the_letter(tmp_path: Path, override: str, text: object) -> None:
    config = generation(written(tmp_path, LEAST), override)
    key, setting = override.partition("=")[0], {"prompt.system": config.prompt.system, "sampling.stop": config.sampling.stop}
    assert setting[key] == (text if key == "prompt.system" or isinstance(text, list) else [text])


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sampling.temprature=1", "--set sampling.temprature=1: sampling.temprature: no such key; did you mean sampling.temperature?"),
        ("n=4", "--set n=4: n: no such key; did you mean sampling.n?"),
        (
            "sampling.n.x=1",
            "--set sampling.n.x=1: sampling.n is a single value and has no keys; set sampling.n itself",
        ),
        ("sampling.n", "--set sampling.n: expected KEY=VALUE, for example sampling.temperature=0"),
        ("=1", "--set =1: expected KEY=VALUE, for example sampling.temperature=0"),
        ("sampling.stop=[a", "--set sampling.stop=[a: line 1, column 3: while parsing a flow sequence"),
    ],
)
def test_override_errors(tmp_path: Path, override: str, line: str) -> None:
    assert message(written(tmp_path, LEAST), override).startswith(line)


def test_an_override_does_not_reach_into_a_value(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST + "sampling: 3\n")
    assert message(path, "sampling.n=2") == "--set sampling.n=2: sampling is 3, not a mapping; set sampling itself"


def test_home_and_environment_expand_in_paths_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("WHERE", "/disk")
    text = """\
job: generate
model: {path: ~/model, adapter: "${WHERE}/adapter"}
data: {path: ["${WHERE}/a.jsonl", "~/b.jsonl"]}
prompt: {user: "~ ${WHERE}", chat_template: ~/chat.jinja}
output: {path: "${WHERE}/${WHERE}"}
"""
    config = generation(written(tmp_path, text))
    assert (config.model.path, config.model.adapter) == ("/home/me/model", "/disk/adapter")
    assert config.data.path == ["/disk/a.jsonl", "/home/me/b.jsonl"]
    assert (config.prompt.user, config.prompt.chat_template) == ("~ ${WHERE}", "/home/me/chat.jinja")
    assert config.output.path == "/disk//disk"
    literal = generation(written(tmp_path, text), "prompt.chat_template='~{{ messages }}'")
    assert literal.prompt.chat_template == "~{{ messages }}"


def test_a_template_needs_no_quotes_of_its_own_in_an_override(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("job: generate\nmodel: {path: demo}\ndata: {path: x.jsonl}\noutput: {path: out}\n")
    assert generation(path, "prompt.user={{ question }}?").prompt.user == "{{ question }}?"


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    found = lines(tmp_path, LEAST.replace("{path: out}", '{path: "${NOWHERE}/x"}') + "on_error: no\n")
    assert found == [
        'job.yaml: output.path: found "${NOWHERE}/x"; the environment variable NOWHERE is not set; set it, or write the path out',
        'job.yaml: on_error: found "no"; expected quarantine, quarantine_all or fail',
    ]


def test_shipped_data_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = generation(written(tmp_path, LEAST), "data.path=demo:questions.jsonl").data.path
    assert isinstance(path, str)
    assert set(json.loads(Path(path).read_text(encoding="utf-8").splitlines()[0])) == {"question", "answer"}
    for name in ("nothing.jsonl", "../demo.yaml"):
        found = message(written(tmp_path, LEAST), f"data.path=demo:{name}")
        shipped = "demo:choices.jsonl, demo:documents.jsonl, demo:questions.jsonl"
        assert found == f'--set data.path=demo:{name}: data.path: found "demo:{name}"; expected one of {shipped}'

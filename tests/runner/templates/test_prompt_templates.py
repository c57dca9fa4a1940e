"""Tests prompts and messages from a row's columns: templates, their errors, and missing columns."""

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.schema import PromptConfig
from mlx_bulk.runner.core.errors import DataError, RowError
from mlx_bulk.runner.data.column_paths import columns_on, lookup
from mlx_bulk.runner.templates import prompt_templates
from mlx_bulk.runner.templates.chat_messages import read_messages
from mlx_bulk.runner.templates.prompt_templates import Chat, Text, compile_prompt, compile_template, compile_value


def _text(template: str, row: dict[str, Any], columns: list[str] | None = None) -> str:
    rendered = compile_prompt(PromptConfig(text=template), columns or list(row))(row)
    assert isinstance(rendered, Text)
    return rendered.text


def _messages(row: dict[str, Any], path: str = "m") -> list[dict[str, Any]]:
    rendered = compile_prompt(PromptConfig(messages=path), list(row))(row)
    assert isinstance(rendered, Chat)
    return rendered.messages


def test_lookup_prefers_the_name_as_it_stands() -> None:
    row = {"a": {"b": {"c": 1}, "b.c": 2}, "a.b": {"c": 3}, "x": None}
    assert lookup(row, "a.b") == {"c": 3}
    assert lookup(row, "a.b.c") == 2
    assert [lookup(row, path) for path in ("x", "x.y", "a.z", "a.b.c.d", "")] == [None] * 5


def test_lookup_reads_names_that_hold_dots_as_a_whole_before_it_parts_them() -> None:
    assert lookup({"a.b": {"c.d": {"e": 1}}}, "a.b.c.d.e") == 1
    assert lookup({"a.b": {"c": 1}, "a": {"b": {"c": 2}}}, "a.b.c") == 2
    assert columns_on(["a.b", "a"], "a.b.c") == ["a", "a.b"]
    assert columns_on(["a.b", "a"], "a.b") == ["a.b"]
    assert columns_on(["x"], "a.b") == []


ODD = {"Question Text": "What?", "a.b": 1, "Unnamed: 0": 7, 'say "x"': "hi", "in": "within", "plain": "p", "gone": None, "keys": "k"}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('{{ row["Question Text"] }} {{ row["a.b"] }} {{ row["Unnamed: 0"] }} {{ row["in"] }}', "What? 1 7 within"),
        ("{{ row['say \"x\"'] }} {{ row.plain }} {{ row.keys }} {{ row['plain'] }} {{ plain }}", "hi p k p p"),
        ('{% if row["gone"] %}yes{% else %}no{% endif %} {{ row["gone"] | default("none") }}', "no none"),
        ('{% for name in ["a.b", "plain"] %}{{ row[name] }}{% endfor %}', "1p"),
        ('{% set row = {"x": "own"} %}{{ row["x"] }}', "own"),
        ("{{ row | length }}", "7"),
    ],
)
def test_any_column_is_reached_through_row(template: str, expected: str) -> None:
    assert _text(template, ODD) == expected
    assert compile_value('{{ row["Unnamed: 0"] }}', "score.label", list(ODD))(ODD) == 7


def test_binary_text_is_decoded_where_it_is_said() -> None:
    assert _text("{{ b.decode() }}", {"b": "säy".encode()}) == "säy"


def test_a_column_called_row_is_that_column() -> None:
    assert _text("{{ row.x }}{{ row['y'] }}", {"row": {"x": 1, "y": 2}, "z z": 3}) == "12"


def test_columns_of_row_are_checked_like_others() -> None:
    with pytest.raises(DataError, match=r"prompt\.text: no row has a column 'Question Txt'\. Did you mean 'Question Text'\?"):
        _text('{{ row["Question Txt"] }}', ODD)
    with pytest.raises(RowError, match=r"prompt\.text: null or missing in this row: gone\. Use"):
        _text('{{ row["gone"] }}', ODD)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ Question Text }}", r"""cannot be parsed: .* Where 'Question Text' is a column, write {{ row\["Question Text"\] }}\."""),
        ("Q: {{ Question Text | trim }}", r"""Where 'Question Text' is a column, write {{ row\["Question Text"\] }}\."""),
        ("{{ Unnamed: 0 }}", r"""Where 'Unnamed: 0' is a column, write {{ row\["Unnamed: 0"\] }}\."""),
        ("{{ not }}", r"""Where 'not' is a column, write {{ row\["not"\] }}\."""),
        ("{{ col1 }}", r"""no row has a column 'col1'\. The columns are:"""),
        ("{{ q", r"""A column is written {{ name }}, or {{ row\["any name"\] }}\."""),
        ("{{ 1 + }}", r"""A column is written {{ name }}, or {{ row\["any name"\] }}\."""),
        ("{{ a.b }}", r"""no row has a column 'a'\. The column 'a\.b' is written {{ row\["a\.b"\] }}\. The columns are:"""),
        ("{{ top-p }}", r"""no row has a column 'p'\. The column 'top-p' is written {{ row\["top-p"\] }}\."""),
    ],
)
def test_an_error_shows_how_to_write_such_a_column(template: str, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        compile_template(template, "prompt.text", [*ODD, "top-p", "1"])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ q }}\n", "<söme> & q\n"),
        ("{{ q | tojson }}", '"<söme> & q"'),
        ("{{ n }} {{ m.items }} {{ m.x[0] }}", "3 kept 1"),
        ("{{ gone | default('none given') }}", "none given"),
        ("{% if gone %}a{% else %}b{% endif %}{{ gone is defined }}{{ gone is none }}{{ gone or 'c' }}", "bFalseTruec"),
        ("{% for i in range(n) %}{{ loop.index }}{% endfor %}", "123"),
        ("{% set y = q %}{{ y | length }}", "10"),
    ],
)
@pytest.mark.parametrize("absent", [{"gone": None}, {}])
def test_templates(template: str, expected: str, absent: dict[str, Any]) -> None:
    row = {"q": "<söme> & q", "n": 3, "m": {"items": "kept", "x": [1]}, **absent}
    assert _text(template, row, ["q", "n", "m", "gone"]) == expected


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["{{ 7*7 }}", "{% raw %}", "{# x #}", "{{ self }}"]))
def test_code_in_columns_is_never_run(value: str) -> None:
    assert _text("a{{ q }}b", {"q": value}) == f"a{value}b"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ q }}", "null or missing in this row: q"),
        ("{{ q.x }}", "null or missing in this row: q"),
        ("{% for i in q %}{% endfor %}", "null or missing in this row: q"),
        ("{{ m.x }}", r"null in this row: m\.x\. Use {% if m\.x %} or m\.x \| default\(''\)"),
        ("{{ m.x.y }}", r"null in this row: m\.x\."),
        ("{{ m.nope }}", "no attribute 'nope'"),
        ("{{ m.__class__.__mro__ }}", "may not do this"),
        ("{{ m.update({}) }}", "may not do this"),
        ("{{ s.strip }}", "is a function"),
        ("{{ s / 2 }}", "TypeError"),
        ("{{ '\\ud800' }}", r"the text holds half of a surrogate pair \(\\ud800-\\udfff\), which is no character"),
        ("{{ range(10 ** 9) | list }}", "OverflowError"),
        ("{{ l }}", r"prompt.text: 'l' is a list; write {{ l \| join }} or {{ l \| tojson }}$"),
        ("{{ m }}", r"'m' is a mapping; write {{ m.key }} or {{ m \| tojson }}"),
        ("{{ l[:1] }}", r"a value is a list; write {{ value \| join }}"),
        ("{{ l | map('upper') }}", r"a value is a sequence; write {{ value \| join }}"),
        ("{{ b }}", r"prompt.text: 'b' is binary; write {{ b.decode\(\) }} where it is text in UTF-8$"),
        ("{{ b[:1] }}", r"a value is binary; write {{ value.decode\(\) }}"),
    ],
)
def test_a_template_that_fails_costs_its_row(template: str, message: str) -> None:
    with pytest.raises(RowError, match=message) as caught:
        _text(template, {"q": None, "m": {"x": None}, "s": "x", "l": ["B", "C"], "b": b"\xff\x00"})
    assert caught.value.stage == "template"
    assert "prompt.text" in str(caught.value)


def test_lists_that_are_joined_or_written_as_json() -> None:
    row = {"l": ["B", "é"], "m": {"x": 1}}
    assert _text("{{ l | join }}{{ l | map('lower') | join('-') }}{{ l | tojson }}{{ m | tojson }}", row) == 'Béb-é["B", "é"]{"x": 1}'


def test_a_scoring_jobs_list_may_be_choices() -> None:
    with pytest.raises(RowError, match=r"write \{\{ a \| join \}\} or \{\{ a \| tojson \}\}, or use score.choices"):
        compile_template("{{ a }}", "score.completion", ["a"])({"a": ["B"]})


@pytest.mark.parametrize("option", ["text", "user", "system", "prefill"])
def test_a_columns_name_where_a_template_is_expected(option: str) -> None:
    others = {} if option in ("text", "user") else {"user": "{{ q }}"}
    config = PromptConfig.model_validate(others | {option: "question"})
    with pytest.raises(DataError) as refused:
        compile_prompt(config, ["q", "question"])
    said = "found \"question\", which is a column's name; a template writes it {{ question }}, and the text itself {{ 'question' }}"
    assert str(refused.value) == f"prompt.{option}: {said}"
    compile_prompt(config, ["q", "questions"])
    compile_prompt(config, [])
    with pytest.raises(
        DataError, match=re.escape("a template writes it {{ row[\"Frage Text\"] }}, and the text itself {{ 'Frage Text' }}")
    ):
        compile_prompt(PromptConfig.model_validate(others | {option: "Frage Text"}), ["q", "Frage Text"])


@pytest.mark.parametrize(("template", "line"), [("a\n{{ q", 2), ("{% if %}", 1), ("a\n\n{{ q | nope }}", 3)])
def test_a_template_that_cannot_be_parsed(template: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"prompt\.user, line {line}: "):
        compile_prompt(PromptConfig(user=template), ["q"])


@pytest.mark.parametrize(
    ("prompt", "option"),
    [
        ({"text": "{{ qestion }}"}, "prompt.text"),
        ({"messages": "qestion.x"}, "prompt.messages"),
        ({"user": "a", "prefill": "{{ qestion }}"}, "prefill"),
    ],
)
def test_a_column_no_row_has(prompt: dict[str, Any], option: str) -> None:
    config = PromptConfig.model_validate(prompt)
    with pytest.raises(DataError, match=rf"{option}: no row has a column 'qestion.*Did you mean 'question'\?.*: question, answer\."):
        compile_prompt(config, ["answer", "question"])
    compile_prompt(config, [])  # an empty dataset is legal


def test_turns_and_prefill() -> None:
    prompt = PromptConfig(user="{{ q }}?", system="Be {{ how }}.", prefill="{{ q }}:")
    row = {"q": "Why", "how": "brief"}
    assert compile_prompt(prompt, list(row))(row) == Chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}], "Why:"
    )
    assert compile_prompt(PromptConfig(user="x"), [])({}) == Chat([{"role": "user", "content": "x"}], None)


def test_messages_are_read_from_lists_parts_and_json() -> None:
    given_ = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "image": None}],
            "name": "Al",
            "tool_calls": None,
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": ""},
    ]
    expected = [
        {"role": "user", "content": "ab", "name": "Al"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": ""},
    ]
    assert _messages({"m": given_}) == expected
    assert _messages({"m": json.dumps(given_)}) == expected
    assert _messages({"d": {"m": given_}}, "d.m") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "null or missing"),
        ([], "at least one"),
        ({}, "holds {}"),
        ("hello", "not the JSON"),
        ("[" * 100_000, "not the JSON"),
        ('[{"role": "user", "content": "\\ud800"}]', "surrogates not allowed"),
        ('"hello"', 'holds "hello"'),
        ([1], r"m\[0\] is 1"),
        ([{"content": "x"}], "the role as a string"),
        ([{"role": "user"}], r"m\[0\]\.content is missing"),
        ([{"role": "user", "content": None}], r"m\[0\]\.content is null"),
        ([{"role": "user", "content": 5}], "content is 5"),
        ([{"role": "user", "content": [{"type": "audio", "audio": "x"}]}], r"content\[0\] is .*audio.*a part {type: text"),
    ],
)
def test_messages_of_the_wrong_shape(value: Any, message: str) -> None:
    with pytest.raises(RowError, match=message) as caught:
        _messages({"m": value})
    assert caught.value.stage == "template"


def test_parts_of_pictures_stay_for_models_that_read_them() -> None:
    parts = [{"type": "input_text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "a.png"}, "detail": None}]
    with pytest.raises(RowError, match=r"m\[0\]\.content\[1\] is a picture, and only text is read here; .*, and in Python also") as caught:
        _messages({"m": [{"role": "user", "content": parts}]})
    assert caught.value.stage == "image"
    [message] = read_messages({"m": [{"role": "user", "content": parts}]}, "m", pictures=True)
    assert message["content"] == [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "a.png"}}]
    assert read_messages({"m": [{"role": "user", "content": parts[:1]}]}, "m", pictures=True)[0]["content"] == "What?"


PIECES = (
    "{{ }} {% %} {# #} q for in if endif endfor | tojson ( ) [ ] . ~ * 'a' 1 set = macro endmacro f() raw block include import as extends"
)


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=14).map(" ".join) | st.text(max_size=20))
def test_whatever_stands_in_a_template_it_is_one_or_refused(template: str) -> None:
    for compiled in (compile_template, compile_value):
        rendered: object = ""
        with suppress(ConfigError, DataError, RowError):
            rendered = compiled(template, "prompt.text", ["q"])({"q": "a"})
        assert compiled is compile_value or isinstance(rendered, str)


@pytest.mark.parametrize("template", ["{{ " + "(" * 2000 + ")" * 2000 + " }}", "{% for i in q %}" * 30 + "{% endfor %}" * 30])
def test_a_template_that_is_too_deep_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=r"prompt\.text: the template cannot be compiled: .*; write it simpler"):
        compile_template(template, "prompt.text", [])


def test_a_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    compile_template("{{ a }} once", "prompt.text", ["a"])
    monkeypatch.setattr(prompt_templates, "_Environment", lambda: made.append("an environment"))
    for option, columns in (("prompt.text", ["a"]), ("prompt.user", ["b", "a"])):
        assert compile_template("{{ a }} once", option, columns)({"a": 1}) == "1 once"
    with pytest.raises(DataError, match=r"prompt\.user"):  # of each caller's own columns
        compile_template("{{ a }} once", "prompt.user", ["b"])
    assert not made

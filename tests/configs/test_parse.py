"""Tests the YAML reader: types of YAML 1.2, errors with line and column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.parse import parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("5E3", 5000.0),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("0o17", 15),
        ("017", 17),
        ("0x1f", 31),
        ("-3", -3),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("12:30:45", "12:30:45"),
        ("~", None),
        ("", None),
        ("# nothing", None),
        ("'1'", "1"),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        ("[a, 1, {b: null}]", ["a", 1, {"b": None}]),
        ('"\\ud83d\\ude00"', "😀"),
        ("<<: 1", {"<<": 1}),
    ],
)
def test_types_are_yaml_1_2s(text: str, value: object) -> None:
    found = parse(text, "job.yaml")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "job.yaml: line 3, column 1: the key 'a' stands here and on line 1; remove one of them"),
        ("a:\n  b: 1\n  b: 2\n", "job.yaml: line 3, column 3: the key 'b' stands here and on line 2; remove one of them"),
        ("a: &x 1\nb: *x\n", "job.yaml: line 2, column 4: aliases (*name) are not read in a config; write the value out"),
        ("a: !!python/name:os.system ''\n", "the tag tag:yaml.org,2002:python/name:os.system is not read in a config; remove it"),
        ("user: {{ question }}\n", "a key is a list or a mapping; quote it if it is meant as text (a template needs quotes)"),
        ("a: [1\n", "job.yaml: line 2, column 1: "),
        ("a: 'x\n", "job.yaml: line 2, column 1: "),
        ("a\x07", "job.yaml: character 2 is U+0007, which YAML does not allow; remove it"),
        ('"\\ud800"', "half of a surrogate pair is not a character"),
        ('"\\UFFFFFFFF"', "job.yaml: not valid YAML: "),
        ("9" * 5000, "a number of this length has no use in a config"),
        ("[" * 5000, "job.yaml: nested too deeply to be a config"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("!!int abc", "job.yaml: not valid YAML: "),
    ],
)
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "job.yaml")
    assert message in str(caught.value)


def test_an_alias_cannot_contain_itself() -> None:
    with pytest.raises(ConfigError, match="aliases"):
        parse("&a [*a]", "job.yaml")


@given(st.one_of(st.text(), st.text(alphabet="ab:-{}[]&*!|>'\"\\%@`#?~,.01 \n\t<=ux")))
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    try:
        parse(text, "job.yaml")
    except ConfigError as error:
        assert str(error).startswith("job.yaml: ")  # noqa: PT017 - either outcome is right

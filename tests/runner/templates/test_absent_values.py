"""Tests what templates make of nulls inside columns: they can be asked for, and never become the text "None"."""

import pytest
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.templates.prompt_templates import compile_template

ROW = {"m": {"x": None}, "n": ["a", None], "q": None}


def made(template: str) -> str:
    return compile_template(template, "score.text", list(ROW))(ROW)


USED = (  # of each the filter, operator or method would make the text "None"
    "m.x | trim",
    "m.x ~ '!'",
    "'%s' | format(m.x)",
    "'%s' % m.x",
    "'{}'.format(m.x)",
    "m.x | replace('a', 'b')",
    "m.x | string",
    "row.m.x | trim",
    "row['m']['x'] | trim",
    "n | join",
    "n | map('upper') | join",
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ m.x | default('d') }}", "d"),
        ("{{ m.x is none }}{{ m.x == none }}{{ m.x != none }}{{ none in n }}", "TrueTrueFalseTrue"),
        ("{% if m.x %}yes{% else %}no{% endif %}", "no"),
        ("{{ m | tojson }} {{ n | tojson }}", '{"x": null} ["a", null]'),
        ("{{ n | select | join }}{{ n | length }}", "a2"),
        ("{{ n | string }}", "['a', None]"),
    ],
)
def test_a_null_inside_a_column_can_be_asked_for(template: str, expected: str) -> None:
    assert made(template) == expected


@pytest.mark.parametrize("used", USED)
def test_one_that_is_used_is_told_with_its_place(used: str) -> None:
    with pytest.raises(RowError, match=r"score\.text: null in this row: (m\.x|n\[1\])\. Use {% if "):
        made(f"{{{{ {used} }}}}")


def test_one_that_a_loop_meets_is_told_with_its_place() -> None:
    with pytest.raises(RowError, match=r"null in this row: n\[1\]\. Use"):
        made("{% for i in n %}{{ i | upper }}{% endfor %}")


def test_a_column_that_is_null_is_no_json() -> None:
    with pytest.raises(RowError, match="null or missing in this row: q"):
        made("{{ q | tojson }}")

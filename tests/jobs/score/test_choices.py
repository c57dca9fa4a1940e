"""Tests how choices and labels are read from rows."""

from typing import Any

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.jobs.score.choices import compile_label, label_index, read_choices
from mlx_bulk.runner.core.errors import DataError, RowError

CHOICES = ("yes", "no", "2", "no")


def test_choices_stand_in_a_column_or_deeper() -> None:
    assert read_choices({"answers": ["a", ""]}, "answers") == ("a", "")
    assert read_choices({"choices": {"text": ["a"], "label": ["A"]}}, "choices.text") == ("a",)


def test_choices_can_be_the_json_text_of_a_list() -> None:
    assert read_choices({"answers": '["a, b", "é"]'}, "answers") == ("a, b", "é")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "'answers' holds null; a list"),
        ([], r"'answers' holds \[\]; a list"),
        ("a, b", "'answers' holds \"a, b\"; a list"),
        ('{"a": 1}', r"'answers' holds .*; a list with at least one string, or the JSON text of one"),
        ('["\\ud800"]', "'answers' holds .*; a list"),
        ("[1]", "'answers' holds 1 among the choices"),
        (["a", None], "'answers' holds null among the choices"),
        (["a", 3], "'answers' holds 3 among the choices"),
    ],
)
def test_a_value_that_is_no_list_of_strings_fails_the_row(value: Any, said: str) -> None:
    with pytest.raises(RowError, match=said):
        read_choices({"answers": value}, "answers")


@pytest.mark.parametrize(
    ("label", "index"),
    [(0, 0), (3, 3), ("yes", 0), ("no", 1), ("2", 2), ("1", 1), ("03", 3), (1.0, 1), (None, None), ("", None)],
)
def test_a_label_is_an_index_or_a_text(label: Any, index: int | None) -> None:
    assert label_index(label, CHOICES) == index


@pytest.mark.parametrize("label", [4, -1, "4", "-1", "Yes", True, 0.5, float("nan"), ["yes"], "²"])
def test_any_other_label_costs_the_row(label: Any) -> None:
    with pytest.raises(RowError, match=r'score\.label: found .*; expected an index from 0 to 3, or the text of a choice: "yes", "no"'):
        label_index(label, CHOICES)


def test_a_label_is_read_from_a_column_or_made_by_a_template() -> None:
    columns = ["answer", "meta"]
    assert compile_label("answer", columns)({"answer": 3}) == 3
    assert compile_label("meta.key", columns)({"meta": {"key": "B"}}) == "B"
    assert compile_label("{{ 'ABCD'.index(answer) }}", columns)({"answer": "C"}) == 2
    with pytest.raises(DataError, match=r"score\.label: no row has a column 'anser'"):
        compile_label("anser", columns)
    with pytest.raises(ConfigError, match=r"score\.label, line 1"):
        compile_label("{{ answer", columns)


SUMS = ("1", "2", "3")


def test_a_template_that_is_one_expression_keeps_its_values_type() -> None:
    for template in ("{{ answer }}", " {{- answer -}}\n"):
        label = compile_label(template, ["answer"])
        assert label({"answer": 1}) == 1
        assert label_index(label({"answer": 1}), SUMS) == 1  # not the choice "1", as the column itself would not be
        assert label_index(label({"answer": 2.0}), SUMS) == 2
    assert compile_label("{{ a }}{{ b }}", ["a", "b"])({"a": 1, "b": 2}) == "12"
    assert compile_label("{% if a %}{{ a }}{% endif %}", ["a"])({"a": 1}) == "1"
    assert compile_label("{{ a }}{# why #}", ["a"])({"a": 1}) == "1"
    for row in ({}, {"answer": None}):
        with pytest.raises(RowError, match=r"score\.label: null or missing in this row: answer"):
            compile_label("{{ answer }}", ["answer"])(row)
    with pytest.raises(RowError, match=r"score\.label: the template may not do this"):
        compile_label("{{ answer.__class__.__mro__ }}", ["answer"])({"answer": 1})


def test_digits_that_are_one_choices_text_and_anothers_index_cost_the_row() -> None:
    said = 'found "1", which can be read in two ways: it is the text of choice 0 and the index of choice 1, "2"; set score.label to'
    with pytest.raises(RowError) as refused:
        label_index("1", SUMS)
    assert said in str(refused.value)
    assert label_index("3", SUMS) == 2  # no index
    assert label_index("0", SUMS) == 0  # no text
    assert label_index("1", ("0", "1")) == 1  # both say the same
    assert label_index("1", ("1", "1")) == 0


@pytest.mark.parametrize(("template", "index"), [("{{ answer | int }}", 1), ("{{ choices.index(answer) }}", 0)])
def test_the_advice_of_the_message_works(template: str, index: int) -> None:
    row = {"answer": "1", "choices": list(SUMS)}
    assert label_index(compile_label(template, list(row))(row), SUMS) == index

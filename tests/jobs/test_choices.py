"""Choices and labels as they stand in rows."""

from typing import Any

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.jobs.choices import choices_of, compile_label, label_index
from mlx_bulk.runner.errors import DataError, RowError

CHOICES = ("yes", "no", "2", "no")


def test_choices_stand_in_a_column_or_deeper() -> None:
    assert choices_of({"answers": ["a", ""]}, "answers") == ("a", "")
    assert choices_of({"choices": {"text": ["a"], "label": ["A"]}}, "choices.text") == ("a",)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "'answers' holds null; a list"),
        ([], r"'answers' holds \[\]; a list"),
        ("a, b", "'answers' holds \"a, b\"; a list"),
        (["a", None], "'answers' holds null among the choices"),
        (["a", 3], "'answers' holds 3 among the choices"),
    ],
)
def test_what_is_no_list_of_strings_costs_the_row(value: Any, said: str) -> None:
    with pytest.raises(RowError, match=said):
        choices_of({"answers": value}, "answers")


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
    assert compile_label("{{ 'ABCD'.index(answer) }}", columns)({"answer": "C"}) == "2"
    with pytest.raises(DataError, match=r"score\.label: no row has a column 'anser'"):
        compile_label("anser", columns)
    with pytest.raises(ConfigError, match=r"score\.label, line 1"):
        compile_label("{{ answer", columns)

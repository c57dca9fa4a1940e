"""Tests that a wrong argument of the public API is named, with what was expected."""

from pathlib import Path
from typing import Any

import mlx_bulk
import pytest
from mlx_bulk import arguments


@pytest.mark.parametrize(
    ("chats", "message"),
    [
        ([{"role": "user", "content": "x"}], r"chats\[0\]: found one message; .* a single chat is \[\[message, …\]\]"),
        ([["hello"]], r"chats\[0\]\[0\]: found str; expected a message with role and content"),
        ([None], r"chats\[0\]: found NoneType; expected a text or a list of messages"),
        ("hello", "chats: found one string; expected a list of texts or of lists of messages"),
        (None, "chats: found NoneType; expected a list"),
    ],
)
def test_a_value_that_is_no_chat_is_named(chats: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        arguments.as_chats(chats)


def test_a_text_is_one_turn_of_the_user() -> None:
    turn = {"role": "user", "content": "hello"}
    assert arguments.as_chats(["hello", [turn, turn]]) == [[turn], [turn, turn]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [("a", "prompts: found one string"), (None, "prompts: found NoneType"), (["a", 1], r"prompts\[1\]: found int; expected a string")],
)
def test_texts_are_a_list_of_strings(texts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        arguments.as_texts(texts, "prompts")


def test_one_string_stands_for_itself() -> None:
    assert arguments.as_strings("sampling.n=2", "overrides", "") == ("sampling.n=2",)
    assert arguments.as_strings(["a", "b"], "overrides", "") == ("a", "b")


def test_overrides_in_a_mapping_are_refused_with_an_example() -> None:
    with pytest.raises(TypeError, match=r'^overrides: found a mapping; expected a list of strings such as \["data.limit=8"\]$'):
        mlx_bulk.run({}, {"data.limit": 8})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"^adopt: found \[1\]; expected a list of strings such as"):
        arguments.as_strings([1], "adopt", "")


def test_settings_are_a_mapping() -> None:
    assert arguments.as_mapping(None, "logprobs", "{}") == {}
    with pytest.raises(TypeError, match=r'logprobs: found 5; expected a mapping such as \{"top": 5\}'):
        arguments.as_mapping(5, "logprobs", '{"top": 5}')


def test_a_progress_that_there_is_not_is_named() -> None:
    arguments.require_progress("json")
    with pytest.raises(ValueError, match="progress: found 'bar'; expected one of 'progress', 'json', 'nothing'"):
        arguments.require_progress("bar")


def test_an_argument_that_there_is_not_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^score\(\) has no argument contxt; did you mean context\?$"):
        mlx_bulk.Model.score(None, ["a"], contxt=8)  # pyright: ignore
    with pytest.raises(TypeError, match=r"^load\(\) has no argument adaptor; did you mean adapter\?$"):
        mlx_bulk.load("demo", adaptor="x")  # pyright: ignore
    with pytest.raises(TypeError, match=r"^results\(\) has no argument zzz; expected one of path, columns, errors, partial$"):
        mlx_bulk.results(tmp_path, zzz=1)  # pyright: ignore

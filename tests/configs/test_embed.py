"""Tests the settings of an embedding job: accepted values, and contradictions."""

from typing import Any

import pytest
from mlx_bulk.configs.embed import EmbedConfig
from mlx_bulk.configs.identity import identity
from pydantic import ValidationError


def config(embed: dict[str, Any], **sections: Any) -> EmbedConfig:
    least = {"job": "embed", "model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "output": {"path": "out"}}
    return EmbedConfig.model_validate(least | {"prompt": {"text": "{{ t }}"}, "embed": embed} | sections)


def test_what_is_not_set_is_the_models() -> None:
    found = config({}).embed
    assert found.dtype == "float32"
    assert {getattr(found, name) for name in type(found).model_fields if name != "dtype"} == {None}


@pytest.mark.parametrize(
    ("embed", "sections", "key", "said"),
    [
        ({"prompt": "a", "prompt_name": "query"}, {}, "prompt_name", "found query; expected null, since embed.prompt gives"),
        ({"dtype": "int8"}, {}, "calibration", "found null; expected what embed.dtype: int8 takes its ranges from"),
        ({"dtype": "ubinary", "calibration": "x.npy"}, {}, "calibration", "embed.dtype is ubinary and only int8 has ranges"),
        ({}, {"prompt": {}}, "prompt", "found nothing to embed; expected text, the Jinja template of the text to embed; user or messages"),
        (
            {},
            {"prompt": {"text": "{{ t }}", "tool_choice": "none"}},
            "prompt.tool_choice",
            "an embedding job completes no prompt; remove it",
        ),
        ({"prompt": "a"}, {"prompt": {"user": "b", "system": "c"}}, "prompt.system", "embed.prompt is the system turn of a chat"),
        ({}, {"prompt": {"text": "{{ t }}", "too_long": "truncate_left"}}, "prompt.too_long", "embed.too_long says what happens"),
        ({}, {"logprobs": {"top": 3}}, "logprobs.top", "an embedding job computes no logprobs"),
    ],
)
def test_contradictions_name_the_key_and_the_cure(embed: dict[str, Any], sections: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        config(embed, **sections)
    [problem] = error.value.errors()
    context = problem.get("ctx", {})
    assert context["key"] == key
    assert said in context["text"]


@pytest.mark.parametrize("wrong", [{"dimensions": 0}, {"dtype": "int4"}, {"pooling": "sum"}, {"max_length": -1}, {"too_long": "cut"}])
def test_values_have_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(wrong)


def test_what_shapes_vectors_is_the_runs_identity() -> None:
    known = identity(config({"dtype": "int8", "calibration": "a.npy"}))
    assert "embed.calibration" not in known  # a path: the ranges that it gives are part of the identity
    assert {"embed.prompt", "embed.prompt_name", "embed.dimensions", "embed.dtype", "embed.max_length", "embed.too_long"} <= known.keys()

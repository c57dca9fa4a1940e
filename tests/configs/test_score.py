"""Tests the settings of a scoring job: accepted values, and contradictions."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.identity import identity
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.score import ScoreConfig
from pydantic import ValidationError

TEXT = {"text": "{{ t }}"}
CHOICES = {"choices": "c"}
PROMPT = {"prompt": {"text": "{{ q }}"}}


def config(score: dict[str, Any], **sections: Any) -> ScoreConfig:
    least = {"job": "score", "model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "score": score, "output": {"path": "out"}}
    return ScoreConfig.model_validate(least | sections)


def test_the_defaults_are_the_contracts() -> None:
    score = config(TEXT).score
    assert (score.kind, score.context, score.windows, score.stride, score.prefix) == ("text", "auto", "lm_eval", None, "bos")
    assert (score.bos_every_window, score.boundary, score.group_by, score.reference) == ("auto", "lm_eval", None, None)


def test_the_reference_is_a_path_or_a_models_settings() -> None:
    found = config({**TEXT, "reference": "other"}).reference
    assert (found and found.path, found and found.dtype) == ("other", "auto")
    found = config({**TEXT, "reference": {"path": "other", "dtype": "float16"}}).reference
    assert (found and found.dtype) == "float16"
    assert config(TEXT).reference is None


@pytest.mark.parametrize(
    ("score", "sections", "kind"),
    [
        (TEXT, {}, "text"),
        ({**TEXT, "windows": "strided", "stride": 4, "context": 4}, {}, "text"),
        ({**TEXT, "prefix": "bos_or_eos", "bos_every_window": True, "reference": "x"}, {"logprobs": {"top": 3, "stats": True}}, "text"),
        ({"completion": "{{ a }}", "prefix": "none", "context": 64}, PROMPT, "completion"),
        ({"completion": "{{ a }}"}, {"prompt": {"user": "{{ q }}", "prefill": "So", "too_long": "truncate_left"}}, "completion"),
        ({**CHOICES, "label": "{{ l }}", "group_by": "subject"}, PROMPT, "choices"),
        ({"messages": "m"}, {"prompt": {"chat_template": "{{ m }}", "too_long": "truncate_right"}}, "messages"),
    ],
)
def test_what_goes_together(score: dict[str, Any], sections: dict[str, Any], kind: str) -> None:
    assert config(score, **sections).score.kind == kind


@pytest.mark.parametrize(
    ("score", "sections", "key", "said"),
    [
        ({}, {}, "", "found none of them; expected exactly one of text, completion, choices, messages"),
        ({**TEXT, **CHOICES}, {}, "", "found text and choices; expected exactly one"),
        ({**TEXT, "label": "l"}, {}, "label", "it goes with score.choices only"),
        ({**TEXT, "windows": "strided"}, {}, "stride", "found null; expected a number of tokens, since score.windows is strided"),
        ({**TEXT, "stride": 4}, {}, "stride", "found 4; expected null, since score.windows is lm_eval"),
        ({**TEXT, "windows": "strided", "stride": 5, "context": 4}, {}, "stride", "found 5; expected at most score.context, which is 4"),
        ({**TEXT, "prefix": "none", "bos_every_window": True}, {}, "bos_every_window", "since score.prefix is none"),
        ({"completion": "x", "windows": "strided", "stride": 4}, PROMPT, "windows", "this scores completion"),
        ({"completion": "x", "bos_every_window": False}, PROMPT, "bos_every_window", "it goes with score.text"),
        ({"messages": "m", "prefix": "bos_or_eos"}, {}, "prefix", "the chat template says what stands before the first token"),
        ({**CHOICES, "reference": "x"}, PROMPT, "reference", "models are compared on text, completion or messages"),
        (CHOICES, {**PROMPT, "logprobs": {"top": 1}}, "logprobs.top", "the records of choices do not hold it"),
        (CHOICES, {**PROMPT, "logprobs": {"stats": True}}, "logprobs.stats", "the records of choices do not hold it"),
        (TEXT, {"logprobs": {"tokens": False, "prompt": True}}, "logprobs.tokens", "a scoring job is about them"),
        (CHOICES, {}, "prompt", "score.choices completes one: give one of them"),
        ({"completion": "x"}, {}, "prompt", "score.completion completes one: give one of them"),
        (TEXT, PROMPT, "prompt.text", "score.text has no prompt before it"),
        (TEXT, {"prompt": {"too_long": "truncate_left"}}, "prompt.too_long", "score.text has no prompt before it"),
        ({"messages": "m"}, {"prompt": {"prefill": "x"}}, "prompt.prefill", "score.messages has no prompt before it"),
        ({"messages": "m"}, {"prompt": {"messages": "m"}}, "prompt.messages", "score.messages has no prompt before it"),
    ],
)
def test_contradictions_name_the_setting(score: dict[str, Any], sections: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        config(score, **sections)
    (problem,) = refused.value.errors()
    assert problem.get("ctx", {})["key"] == key
    assert said in problem["msg"]


@pytest.mark.parametrize("value", [{"context": 0}, {"stride": 0}, {"windows": "rolling"}, {"prefix": "eos"}, {"bos_every_window": "yes"}])
def test_values_out_of_bounds_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config({**TEXT, **value})


def test_settings_that_shape_results_are_in_the_identity() -> None:
    settings = identity(config({**TEXT, "reference": "x"}))
    for name in ("text", "context", "windows", "stride", "prefix", "bos_every_window", "boundary", "group_by", "reference.dtype"):
        assert f"score.{name}" in settings
    assert "score.reference.path" not in settings  # its contents are fingerprinted


def test_a_references_paths_are_expanded_in_both_its_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/disk")
    job = {"job": "score", "model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "output": {"path": "out"}}
    for given in ("${WHERE}/ref", {"path": "${WHERE}/ref", "adapter": "${WHERE}/lora"}):
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "score": {**TEXT, "reference": given}}))
        found = load_config(tmp_path / "job.yaml")
        assert isinstance(found, ScoreConfig)
        assert found.reference is not None
        assert (found.reference.path, found.reference.adapter) == ("/disk/ref", "/disk/lora" if isinstance(given, dict) else None)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"path": "demo", "dtyp": "float32"}, "score.reference.dtyp: no such key; did you mean score.reference.dtype?"),
        ({"path": "demo", "dtype": "int4"}, 'score.reference.dtype: found "int4"; expected auto, float32, float16 or bfloat16'),
        ({"dtype": "float32"}, "score.reference.path: missing; expected"),
        (3, "score.reference: found 3; expected a model's path, or a mapping with path"),
    ],
)
def test_a_mistake_in_the_reference_is_named_to_its_key(tmp_path: Path, reference: Any, said: str) -> None:
    job = {"job": "score", "model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "output": {"path": "out"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "score": {**TEXT, "reference": reference}}))
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "job.yaml")
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1

"""Tests the settings of a classification job: what goes together, and contradictions."""

from typing import Any

import pytest
from mlx_bulk.configs.classify import ClassifyConfig
from pydantic import ValidationError

PAIR = {"query": "{{ q }}", "document": "{{ d }}"}
PREFERENCE = {"chosen": "chosen", "rejected": "rejected"}
TEXT = {"prompt": {"text": "{{ t }}"}}
USER = {"prompt": {"user": "{{ t }}"}}


def config(classify: dict[str, Any], **sections: Any) -> ClassifyConfig:
    least = {"job": "classify", "model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "output": {"path": "out"}}
    return ClassifyConfig.model_validate(least | {"classify": classify} | sections)


@pytest.mark.parametrize(
    ("classify", "sections", "form"),
    [
        ({}, TEXT, "prompt"),
        ({"label": "{{ l }}", "max_length": 8, "too_long": "truncate_left"}, {"prompt": {"messages": "m"}}, "prompt"),
        ({"completion": "{{ c }}", "activation": "sigmoid"}, USER, "prompt"),
        ({"true_token": "yes"}, {"prompt": {"user": "{{ t }}", "prefill": "So:"}}, "prompt"),
        ({**PAIR, "instruction": "Find it.", "true_token": "yes", "false_token": "no"}, {}, "pair"),
        (PAIR, {"prompt": {"chat_template": "{{ messages }}"}}, "pair"),
        ({"query": "{{ q }}", "documents": "docs", "label": "best"}, {}, "documents"),
        (PREFERENCE, {}, "preference"),
        (PREFERENCE, TEXT, "preference"),
        (PREFERENCE, {"prompt": {"messages": "prompt"}}, "preference"),
    ],
)
def test_what_goes_together(classify: dict[str, Any], sections: dict[str, Any], form: str) -> None:
    assert config(classify, **sections).classify.form == form


@pytest.mark.parametrize(
    ("classify", "sections", "key", "said"),
    [
        ({}, {}, "prompt", "found nothing to classify; expected one of text, messages or user; or classify.query"),
        (PAIR, TEXT, "prompt.text", "expected null, since classify.query makes the model's input"),
        ({"query": "{{ q }}"}, {}, "query", "found neither of document and documents"),
        ({**PAIR, "documents": "d"}, {}, "query", "found both of document and documents"),
        ({"document": "{{ d }}"}, TEXT, "document", "it goes with classify.query"),
        ({"instruction": "Find."}, TEXT, "instruction", "it goes with classify.query"),
        ({"chosen": "c"}, {}, "chosen", "found no classify.rejected; expected both"),
        ({"rejected": "c"}, TEXT, "rejected", "found no classify.chosen; expected both"),
        ({"chosen": "c", "rejected": "c"}, {}, "rejected", "found c, as classify.chosen; expected the column of the worse answer"),
        ({**PREFERENCE, **PAIR}, {}, "query", "classify.chosen and classify.rejected are compared"),
        ({**PREFERENCE, "label": "l"}, {}, "label", "classify.chosen and classify.rejected are compared"),
        ({**PAIR, "completion": "{{ c }}"}, {}, "completion", "it follows a prompt and classify.query makes pairs"),
        ({"false_token": "no"}, TEXT, "false_token", "there is no classify.true_token"),
        ({"true_token": "no", "false_token": "no"}, TEXT, "false_token", 'found "no", as classify.true_token; expected another'),
        ({}, {"prompt": {"text": "a", "too_long": "truncate_left"}}, "prompt.too_long", "set classify.too_long in its place"),
        ({}, {"prompt": {"user": "a", "tools": "t"}}, "prompt.tools", "a classification reads no calls of tools"),
        ({"completion": "c"}, {"prompt": {"user": "a", "prefill": "t"}}, "prompt.prefill", "it begins an answer, and answers are given"),
        ({}, {**TEXT, "logprobs": {"top": 3}}, "logprobs", "a classification has no logprobs"),
    ],
)
def test_contradictions_name_the_key_and_the_way_out(classify: dict[str, Any], sections: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        config(classify, **sections)
    found = error.value.errors()[0].get("ctx", {})
    assert (found["key"], said in found["text"]) == (key, True), found

"""Tests the conversion of lm-eval's requests: cuts, and the meaning of generation_kwargs."""

from types import ModuleType
from typing import Any

import pytest
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.requests import Sampling

pytestmark = pytest.mark.oracle  # the module imports lm-eval

BOS = 99


@pytest.fixture
def cuts() -> ModuleType:
    from mlx_bulk.jobs.harness import requests

    return requests


def asked(gen_kwargs: dict[str, Any], ids: int = 5, max_length: int = 64, **checkpoint: Any) -> Sampling:
    from mlx_bulk.jobs.harness.requests import continuation

    return continuation(list(range(ids)), gen_kwargs, "</s>", {"</s>": 2, "<|im_end|>": 7}, checkpoint, max_length).sampling


def test_a_passage_scores_the_continuation_and_loses_its_beginning_where_it_is_too_long(cuts: ModuleType):
    whole = cuts.passage([1, 2, 3], [4, 5], 4)
    assert (whole.ids.tolist(), whole.positions.tolist()) == ([1, 2, 3, 4, 5], [3, 4])
    cut = cuts.passage([0, 1, 2, 3], [4, 5], 4)
    assert (cut.ids.tolist(), cut.positions.tolist()) == ([1, 2, 3, 4, 5], [3, 4])
    least = cuts.passage([1, 2, 3], [4, 5], 2)
    assert (least.ids.tolist(), least.positions.tolist()) == ([3, 4, 5], [1, 2])


def test_rows_that_cannot_be_scored_name_the_reason(cuts: ModuleType):
    with pytest.raises(DataError, match="no tokens of its own"):
        cuts.passage([1], [], 4)
    with pytest.raises(DataError, match=r"5 tokens at once; max_length is 4"):
        cuts.passage([1], [1, 2, 3, 4, 5], 4)


def test_rolling_windows_score_each_token_once_and_the_last_has_full_context(cuts: ModuleType):
    found = [(p.ids.tolist(), p.positions.tolist()) for p in cuts.rolling_windows(list(range(10)), BOS, 4)]
    assert found == [([BOS, 0, 1, 2, 3], [1, 2, 3, 4]), ([3, 4, 5, 6, 7], [1, 2, 3, 4]), ([5, 6, 7, 8, 9], [3, 4])]
    assert cuts.rolling_windows([], BOS, 4) == ()


def test_greedy_is_the_default_and_takes_nothing_but_the_penalty_of_the_checkpoint():
    settings = asked({"until": ["\n"]}, max_length=512, top_k=20, top_p=0.8, repetition_penalty=1.05, temperature=0.6)
    assert (settings.temperature, settings.top_k, settings.top_p, settings.repetition_penalty) == (0.0, 0, 1.0, 1.05)
    assert settings.max_tokens == 256
    assert asked({"temperature": 0.7, "do_sample": False, "max_gen_toks": 8}).temperature == 0.0


def test_sampling_takes_the_task_before_the_checkpoint_before_transformers():
    sampled = {"do_sample": True, "temperature": 0.7, "max_gen_toks": 8}
    assert (asked(sampled).temperature, asked(sampled).top_k, asked(sampled).top_p) == (0.7, 50, 1.0)
    assert (asked(sampled, top_k=20).top_k, asked({**sampled, "top_k": 5}, top_k=20).top_k) == (20, 5)
    assert (asked(sampled, typical_p=0.9).typical_p, asked({**sampled, "typical_p": 0.5}, typical_p=0.9).typical_p) == (0.9, 0.5)
    assert asked({"until": ["\n"]}, max_length=512, typical_p=0.9).typical_p == 1.0
    assert asked({"temperature": 0.5, "max_gen_toks": 8}).temperature == 0.5  # a temperature alone means sampling


def test_stop_strings_are_listed_with_eos_and_special_tokens_stop_by_their_id():
    settings = asked({"until": "\n", "max_gen_toks": 8})
    assert (settings.stop, settings.stop_token_ids) == (("\n", "</s>"), (2,))
    assert asked({"until": ["<|im_end|>"], "max_gen_toks": 8}).stop_token_ids == (2, 7)
    assert asked({"until": [""], "max_gen_toks": 8}).max_tokens == 1


def test_lengths_have_their_aliases_and_prompts_lose_their_beginning(cuts: ModuleType):
    assert [asked({name: 3}).max_tokens for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")] == [3] * 4
    assert asked({"max_length": 9, "max_gen_toks": 20}).max_tokens == 4  # of the whole, prompt and all
    assert cuts.continuation(list(range(10)), {"max_gen_toks": 6}, None, {}, {}, 10).ids == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("gen_kwargs", "message"),
    [
        ({"num_beams": 4}, "num_beams: found 4; expected 1"),
        ({"temprature": 1.0}, "temprature: mlx-bulk does not serve it; did you mean temperature"),
        ({"do_sample": True, "max_gen_toks": 8}, "temperature: found 0; expected a number above 0, since do_sample is true"),
        ({"max_gen_toks": 64}, "max_gen_toks: found 64; expected at least 1, and less than max_length, 64"),
        ({"max_gen_toks": 0}, "max_gen_toks: found 0"),
        ({"max_gen_toks": 8, "max_length": 5}, "5 tokens leaves no room"),
    ],
)
def test_unserved_settings_are_named(gen_kwargs: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        asked(gen_kwargs)


def test_text_lies_between_the_thinking_and_the_first_stop_string(cuts: ModuleType):
    assert cuts.postprocess("a b\nc", ["\n", "</s>"], None) == "a b"
    assert cuts.postprocess("let me\nsee</think>  4\n5", ["\n"], "</think>") == "4"

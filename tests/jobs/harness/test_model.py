"""Tests the arguments of our model for lm-eval, and the properties that lm-eval reads."""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.jobs.harness.model import load_for_eval, prepare_for_eval
from mlx_bulk.runner.core.errors import DataError, ModelError

from ...checkpoints import BOS, CONTEXT, EOS

oracle = pytest.mark.oracle


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "pretrained: missing; expected demo, a local folder"),
        ({"pretrain": "demo"}, "pretrain: no such argument; did you mean pretrained?"),
        ({"pretrained": "demo", "peft": "x"}, "peft: no such argument; expected pretrained, revision, adapter"),
        ({"pretrained": 4}, "pretrained: found 4; expected demo, a local folder"),
        ({"pretrained": "demo", "dtype": "int8"}, 'dtype: found "int8"; expected auto, float32, float16 or bfloat16'),
        ({"pretrained": "demo", "batch_size": "many"}, 'batch_size: found "many"; expected auto, or a whole number'),
        ({"pretrained": "demo", "batch_size": 0}, "batch_size: found 0; expected auto, or a whole number of at least 1"),
        ({"pretrained": "demo", "seed": "x"}, 'seed: found "x"; expected a whole number'),
        ({"pretrained": "demo", "enable_thinking": True}, "think_end_token: found null; expected a token, since enable_thinking is true"),
    ],
)
def test_arguments_that_are_wrong_are_named(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as error:
        load_for_eval(arguments)
    assert str(error.value).startswith(f"model_args: {message}")


def test_what_lm_eval_passes_to_every_model_is_taken(model: Path):
    given = {"device": "cuda:0", "max_batch_size": 64, "parallelize": True, "batch_size": "8", "dtype": "float32"}
    found = load_for_eval({"pretrained": str(model), **given})
    assert (found.batch_size, found.setup.limits.rows) == (8, 8)
    assert load_for_eval({"pretrained": str(model), "batch_size": "auto:4"}).batch_size == "auto"
    assert found.eos == {EOS, BOS}
    assert found.special["<|im_end|>"] == EOS
    assert found.info["model_dtype"] == "float32"


def test_another_eos_is_another_tokenizer(model: Path, tmp_path: Path):
    """It ends what is generated, so that answers of one are not taken for the other's."""

    def fingerprint(**changed: str) -> str:
        own = tmp_path / "-".join(["tokenizer", *changed])
        shutil.copytree(model, own)
        settings = json.loads((own / "tokenizer_config.json").read_text())
        (own / "tokenizer_config.json").write_text(json.dumps(settings | changed))
        return prepare_for_eval({"pretrained": str(model), "tokenizer": str(own)}).tokenizer_fingerprint

    assert fingerprint() != fingerprint(eos_token="<|endoftext|>")


def test_a_folder_without_a_model_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load_for_eval({"pretrained": str(tmp_path)})


@oracle
def test_lengths_and_prefixes_are_as_set_or_as_the_model_says(model: Path):
    plain, given = lm(model), lm(model, max_length=40, prefix_token_id=7, add_bos_token=False)
    assert (plain.max_length, plain.prefix_token_id) == (CONTEXT, BOS)
    assert (given.max_length, given.prefix_token_id) == (40, 7)
    assert plain.tok_encode("The king")[0] == BOS
    assert given.tok_encode("The king") == plain.tok_encode("The king")[1:] == plain.tok_encode("The king", add_special_tokens=False)
    assert plain.tok_encode("<|endoftext|>The king") == plain.tok_encode("The king")
    assert plain.tokenizer_name == str(model).replace("/", "__")


@oracle
def test_a_template_that_refuses_a_system_turn_gets_none(model: Path):
    ours = lm(model)
    ours.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert ours.apply_chat_template([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]) == "b"


@oracle
def test_what_a_template_may_take_is_bounded(model: Path):
    ours = lm(model)
    ours.tokenizer.chat_template = "{{ '{:>2000000000}'.format(5) }}"
    with pytest.raises(DataError, match="the chat template takes more than 1 GiB of memory with these messages"):
        ours.apply_chat_template([{"role": "user", "content": "b"}])


@oracle
def test_thinking_is_left_out_of_answers(model: Path):
    asked = instance("The king", {"until": ["\n\n"], "max_gen_toks": 12})
    plain = lm(model)
    text: str = plain.generate_until([asked])[0]
    ids = plain.tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > 4
    by_text = lm(model, think_end_token=text[3:6])
    assert by_text.generate_until([asked])[0] == text.split(text[3:6])[-1].lstrip()
    with pytest.raises(ConfigError, match="enable_thinking: found true; expected it off"):
        lm(model, enable_thinking=True, think_end_token="x").loglikelihood([instance("a", "b")])


@oracle
def test_samples_of_one_prompt_differ_and_a_seed_repeats_them(model: Path):
    sampled = {"until": ["\n"], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}
    asked = [instance("The king", sampled), instance("A longer prompt, of the queen", sampled), instance("The king", sampled)]
    first = lm(model).generate_until(asked)
    assert first[0] != first[2]
    assert lm(model, batch_size=1).generate_until(asked) == first
    assert lm(model).generate_until([asked[0]]) == first[:1]  # whatever stands beside it
    assert lm(model, seed=1).generate_until(asked) != first


@oracle
def test_answers_go_to_the_cache_of_lm_eval_as_they_come(model: Path):
    ours, kept = lm(model), list[tuple[str, Any, Any]]()

    class Hook:
        def add_partial(self, kind: str, request: Any, answer: Any) -> None:
            kept.append((kind, request, answer))

    ours.cache_hook = Hook()
    scored = ours.loglikelihood([instance("The king", " is dead")])
    rolling = ours.loglikelihood_rolling([instance("The king is dead")])
    settings = {"until": ["\n"], "max_gen_toks": 2}
    texts = ours.generate_until([instance("The king", settings)])
    assert kept == [
        ("loglikelihood", ("The king", " is dead"), scored[0]),
        ("loglikelihood_rolling", ("The king is dead",), rolling[0]),
        ("generate_until", ("The king", settings), texts[0]),
    ]


@oracle
def test_logits_that_are_no_numbers_give_nan_and_say_so(model: Path, caplog: pytest.LogCaptureFixture):
    ours = lm(model)
    ours._eval_model.setup.model.update({"lm_head": {"weight": mx.full(ours._eval_model.setup.model.lm_head.weight.shape, np.nan)}})
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        [(total, greedy)] = ours.loglikelihood([instance("The king", " is dead")])
    assert math.isnan(total)
    assert not greedy
    assert "request 0: " in caplog.text


def lm(model: Path, **arguments: Any) -> Any:
    from mlx_bulk.jobs.harness import BulkLM

    ours: Any = BulkLM
    return ours(pretrained=str(model), **arguments)


def instance(*arguments: Any) -> Any:
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

    return Instance("loglikelihood", {}, arguments, 0)

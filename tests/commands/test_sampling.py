"""Tests each setting of ``sampling``: every token of a run is drawn again, slowly, from the model's logits.

The slow way is tests/oracle.py over a full forward of prompt and completion, with the stream that the record's seed names.
"""

import functools
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.requests import Sampling
from mlx_lm.utils import load_model
from numpy.typing import NDArray

from ..checkpoints import BOS, EOS
from ..jobs.support.bench import Bench, Done, Record
from ..oracle import distribution, edited

NEAR = 1e-5  # a draw so close to a border of the cumulative distribution may fall on its other side in float32


LOGPROB_TOLERANCE = 2e-4  # decode against a full forward (the contract's)


@functools.cache
def network(model: Path) -> Any:
    return load_model(model)[0]


def logits_of(model: Path, record: Record) -> NDArray[np.float64]:
    """The model's logits [N, V] for each token of a record's completion, from one full forward."""
    whole = record["prompt_ids"] + record["completion_ids"]
    logits = network(model)(mx.array([whole]))[0, record["prompt_tokens"] - 1 : -1]
    return np.array(logits.astype(mx.float32)).astype(np.float64)


def uniforms(seed: int, n: int) -> NDArray[np.float64]:
    """Numbers 0 … n - 1 of the stream that belongs to a record's seed."""
    return (np.random.Philox(key=seed).random_raw(n) >> np.uint64(40)).astype(np.float64) * 2.0**-24


def coins(seed: int, n: int) -> NDArray[np.float64]:
    """XTC's numbers: the lower 24 bits of the same."""
    return (np.random.Philox(key=seed).random_raw(n) % np.uint64(2**24)).astype(np.float64) * 2.0**-24


def assert_drawn_as_stated(model: Path, record: Record, s: Sampling) -> None:
    """Each token is the one that its uniform picks from the stated distribution; its sampled logprob is the one there."""
    ids = record["completion_ids"]
    draws = uniforms(record["seed"], len(ids))
    chances = coins(record["seed"], len(ids))
    for t, (logits, token, u, coin) in enumerate(zip(logits_of(model, record), ids, draws, chances, strict=True)):
        p = distribution(edited(logits.tolist(), s, record["prompt_ids"], ids[:t], (EOS, BOS)), s, coin)
        below = p[:token].sum()
        assert p[token] > 0
        assert s.temperature == 0 or below - NEAR <= u <= below + p[token] + NEAR
        if "sampled_logprobs" in record:
            assert record["sampled_logprobs"][t] == pytest.approx(0.0 if s.temperature == 0 else np.log(p[token]), abs=LOGPROB_TOLERANCE)
        own = logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert record["logprobs"][t] == pytest.approx(own, abs=LOGPROB_TOLERANCE)


SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.3},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.4},
    "typical_p": {"typical_p": 0.3},
    "dry": {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_sequence_breakers": [], "temperature": 0.5,
            "logit_bias": {"300": 7.5, "301": 7.0, "302": 7.0}},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.001},
    "repetition_penalty": {"repetition_penalty": 1.7, "temperature": 0},
    "presence_penalty": {"presence_penalty": 2.0, "temperature": 0},
    "frequency_penalty": {"frequency_penalty": 1.5, "temperature": 0},
    "logit_bias": {"logit_bias": {"300": 7.5, "301": 6.5}},
    "all": {
        "temperature": 0.7, "top_p": 0.8, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.2,
        "typical_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.03,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {"77": 4.0}, "min_tokens": 3,
    },
}  # fmt: skip
QUICK = ("temperature", "top_p", "xtc", "frequency_penalty", "logit_bias", "all")  # one of each kind

REPEATS: dict[str, Any] = {"logit_bias": {"430": 30.0, "431": 29.0}}  # makes greedy text repeat, so that penalties have something to do


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    """The standard rows at temperature 1 with nothing else set."""
    return Bench(tmp_path_factory.mktemp("drawn"), model).run(sampling={"max_tokens": 8, "temperature": 1.0})


def test_plain_draws_follow_the_models_logits(model: Path, drawn: Done):
    assert "sampled_logprobs" not in drawn.table.schema.names
    for record in drawn.records:
        assert_drawn_as_stated(model, record, Sampling(max_tokens=8))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SETTINGS])
def test_tokens_are_drawn_from_the_stated_distribution(bench: Bench, model: Path, drawn: Done, name: str):
    base: dict[str, Any] = {"max_tokens": 8, **(REPEATS if "penalty" in name else {})}
    setting: dict[str, Any] = {"temperature": 1.0, **base, **SETTINGS[name]}
    done = bench.run(sampling=setting)
    bias = {int(token): value for token, value in setting.get("logit_bias", {}).items()}
    values: dict[str, Any] = {**setting, "logit_bias": bias}
    stated = Sampling(**values)
    for record in done.records:
        assert_drawn_as_stated(model, record, stated)
    off = bench.run("--overwrite", sampling={**base, "temperature": 0}) if "penalty" in name else drawn
    assert [r["completion_ids"] for r in done.records] != [r["completion_ids"] for r in off.records]


def test_greedy_takes_the_likeliest(bench: Bench, model: Path):
    for record in bench.run().records:
        assert record["completion_ids"] == logits_of(model, record).argmax(axis=-1).tolist()
        assert record["sampled_logprobs"] == [0.0] * 6


def test_max_tokens(bench: Bench):
    assert [record["completion_tokens"] for record in bench.run(sampling={"max_tokens": 3}).records] == [3] * 5


def test_n_samples_differ_in_seed_and_text_alone(bench: Bench):
    done = bench.run(sampling={"n": 3, "temperature": 1.0})
    records = done.records
    assert [(r["row"], r["sample"]) for r in records] == [(row, sample) for row in range(5) for sample in range(3)]
    for row in range(5):
        mine = records[3 * row : 3 * row + 3]
        assert len({r["seed"] for r in mine}) == len({tuple(r["completion_ids"]) for r in mine}) == 3
        assert len({tuple(r["prompt_ids"]) for r in mine}) == 1
    assert done.last_line.startswith("complete: 5 of 5 rows; ")


def test_seed_decides(bench: Bench):
    def ids(*options: str, **sampling: Any) -> list[list[int]]:
        return [r["completion_ids"] for r in bench.run("--overwrite", *options, sampling={"temperature": 1.0, **sampling}).records]

    first = ids()
    assert ids() == first
    assert ids(seed=0) == first
    assert ids(seed=1) != first
    # A sample's stream hangs on its row's key alone: not on the rows beside it, nor on how many decode at once.
    assert ids("--set", "batch.rows=1") == first
    assert ids("--set", "data.limit=2") == first[:2]


ALWAYS_EOS = {"logit_bias": {str(EOS): 100.0}}


def test_eos_stops_and_stays_in_the_ids(bench: Bench):
    for record in bench.run(sampling=ALWAYS_EOS).records:
        assert (record["completion_ids"], record["completion"]) == ([EOS], "")
        assert (record["finish_reason"], record["stop_reason"], record["truncated"]) == ("stop", None, False)


def test_eos_at_the_last_allowed_token_is_stop(bench: Bench):
    for record in bench.run(sampling={**ALWAYS_EOS, "max_tokens": 1}).records:
        assert (record["finish_reason"], record["completion_tokens"]) == ("stop", 1)


def test_eos_is_the_union_of_tokenizer_and_generation_config(bench: Bench):
    # The tokenizer names EOS alone; BOS is the generation config's second.
    for record in bench.run(sampling={"logit_bias": {str(BOS): 100.0}}).records:
        assert (record["completion_ids"], record["finish_reason"], record["stop_reason"]) == ([BOS], "stop", None)


def test_ignore_eos_samples_it_and_goes_on(bench: Bench):
    for record in bench.run(sampling={**ALWAYS_EOS, "ignore_eos": True}).records:
        assert (record["completion_ids"], record["finish_reason"], record["truncated"]) == ([EOS] * 6, "length", True)
        assert record["completion"] == ""
    for record in bench.run("--overwrite", sampling={**ALWAYS_EOS, "ignore_eos": True, "stop_token_ids": [EOS]}).records:
        assert (record["completion_ids"], record["stop_reason"]) == ([EOS], str(EOS))


def test_stop_token_ids(bench: Bench):
    free = bench.run().records
    token = free[0]["completion_ids"][2]
    done = bench.run("--overwrite", sampling={"stop_token_ids": [token]})
    record = done.records[0]
    assert record["completion_ids"] == free[0]["completion_ids"][:3]
    assert (record["finish_reason"], record["stop_reason"], record["truncated"]) == ("stop", str(token), False)


def test_min_tokens_masks_what_would_stop(bench: Bench):
    for record in bench.run(sampling={**ALWAYS_EOS, "min_tokens": 4}).records:
        ids = record["completion_ids"]
        assert len(ids) == 5
        assert ids[-1] == EOS
        assert not {EOS, BOS} & set(ids[:-1])
    token = bench.run("--overwrite").records[0]["completion_ids"][2]
    done = bench.run("--overwrite", sampling={"stop_token_ids": [token], "min_tokens": 4, "logit_bias": {str(token): 100.0}})
    assert [r["completion_ids"].index(token) for r in done.records] == [4] * 5


def two_token_stop(records: list[Record]) -> tuple[Record, str, int]:
    """Returns a record, a string that spans two of its tokens after the first two, and the number of tokens that complete it."""
    for record in records:
        text, starts = record["completion"], record["text_offset"]
        for i in range(3, len(starts)):
            stop = text[starts[i] - 1 : starts[i] + 1]
            if starts[i - 1] < starts[i] and len(stop) == 2 and text.count(stop) == 1 and "\ufffd" not in stop:
                return record, stop, i + 1
    raise AssertionError("no record has such a string")


def test_stop_strings_across_tokens(bench: Bench):
    free, stop, taken = two_token_stop(bench.run().records)
    cut = bench.run("--overwrite", sampling={"stop": stop}).records[free["row"]]
    assert cut["completion_ids"] == free["completion_ids"][:taken]
    assert cut["completion"] == free["completion"][: free["completion"].index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"], cut["truncated"]) == ("stop", stop, False)
    assert cut["text_offset"] == free["text_offset"][:taken]  # of the uncut text
    kept = bench.run("--overwrite", sampling={"stop": ["never there", stop], "include_stop": True}).records[free["row"]]
    assert kept["completion"] == cut["completion"] + stop
    assert kept["completion_ids"] == cut["completion_ids"]


def test_stop_strings_do_not_count_within_min_tokens(bench: Bench):
    free, stop, taken = two_token_stop(bench.run().records)
    later = bench.run("--overwrite", sampling={"stop": stop, "min_tokens": taken}).records[free["row"]]
    assert later["completion_ids"] == free["completion_ids"]
    assert later["completion"] == free["completion"]
    same = bench.run("--overwrite", sampling={"stop": stop, "min_tokens": taken - 1}).records[free["row"]]
    assert same["completion_tokens"] == taken

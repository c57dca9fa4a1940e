"""Tests rows under a grammar in the engine: what is drawn, where they end, and that other rows see nothing of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels.sampling.grammar_mask import Allowed, must_end
from mlx_bulk.runner.core.grammar_spec import GrammarSpec
from mlx_bulk.runner.core.guide import Guidance
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Generated
from mlx_bulk.runner.core.requests import Generate, Request, Sampling
from mlx_bulk.runner.engine.engine import Engine
from numpy.typing import NDArray

from ...checkpoints import VOCABULARY
from ..support.guided import ENDS, allowed, choice, demo_grammars, schema
from ..support.naive_truth import assert_same
from ..support.small_memory import Tight
from ..support.small_tokenizers import demo
from ..support.tiny import Chain, random_chain
from ..support.tiny_runs import outcomes_of, request, run, setup_of

EOS = tuple(sorted(ENDS))
NETWORK = random_chain(VOCABULARY)
PERSON = schema({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]})
BOOLEAN = schema({"type": "boolean"})
GRAMMARS = [PERSON, choice("yes", "no", "perhaps"), GrammarSpec("regex", "[a-z]{2,9}"), BOOLEAN, GrammarSpec("grammar", 'start: "a"+ "b"')]


def held(asked: Request, guidance: Guidance | GrammarSpec | None) -> Request:
    if isinstance(guidance, GrammarSpec):
        guidance = demo_grammars().compiled(guidance, asked.work.sampling.stop_token_ids)
    return replace(asked, work=Generate(asked.work.sampling, asked.work.samples, guidance))


def guided(row: int, spec: Guidance | GrammarSpec | None, seeds: Sequence[int] = (0,), **sampling: Any) -> Request:
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.5} | sampling
    return held(request(row, [5 + row, 7], Sampling(**options), seeds), spec)


def text(outcome: Generated) -> str:
    return demo().decode(outcome.ids)


def wide(rows: int = 4, **more: Any) -> Any:
    return setup_of(NETWORK, rows=rows, tokens=64, **more)


def mixed() -> list[Request]:
    specs = [None, GRAMMARS[0], None, *GRAMMARS[1:], None]
    asked = [guided(i, spec, range(10 * i, 10 * i + (4 if i in (1, 2) else 1)), max_tokens=9 + 5 * i) for i, spec in enumerate(specs)]
    return [*asked, guided(8, PERSON, temperature=0.0), guided(9, None, temperature=0.7, top_k=20), guided(10, PERSON, (3,), top_p=0.8)]


def test_rows_under_grammars_are_as_alone_and_other_rows_as_without_any():
    asked = mixed()
    outcomes = run(wide(rows=5), asked, EOS)
    alone = [o for one in asked for o in run(wide(rows=1), [one], EOS)]
    assert_same(alone, outcomes)
    free = [held(one, None) for one in asked]
    without = {(o.row, o.index): o for o in run(wide(rows=5), free, EOS)}
    compared = 0
    for outcome in outcomes:
        if asked[outcome.row].work.guidance is None:
            other = without[outcome.row, outcome.index]
            assert outcome.ids.tobytes() == other.ids.tobytes()
            assert outcome.sampled_logprobs.tobytes() == other.sampled_logprobs.tobytes()
            assert outcome.grammar_complete is None
            compared += 1
    assert compared == 7
    assert {o.grammar_complete for o in outcomes if asked[o.row].work.guidance is not None} == {True, False}


def test_samples_of_a_row_differ_and_each_is_whole():
    outcomes = run(wide(), [guided(0, GRAMMARS[2], range(20))], EOS)
    assert all(o.grammar_complete and o.finish_reason == "stop" and o.ids[-1] in ENDS for o in outcomes)
    assert len({text(o) for o in outcomes}) > 10
    assert all(2 <= len(text(o)) <= 9 and text(o).isalpha() for o in outcomes)


def walked(spec: GrammarSpec, outcome: Generated) -> list[list[int]]:
    """The ids that the grammar allowed before each token."""
    guide, sets = demo_grammars().compiled(spec).start(), list[list[int]]()
    for token in outcome.ids.tolist():
        sets.append(allowed(guide))
        guide.push(token)
    return sets


def logits_before(asked: Request, outcome: Generated) -> NDArray[np.float64]:
    before = [int(asked.prompt.ids[-1]), *outcome.ids[:-1].tolist()]
    return np.array(NETWORK(mx.array([before]))[0]).astype(np.float64)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
def test_logprobs_are_the_models_own_and_sampled_ones_are_under_the_mask(temperature: float):
    asked = guided(0, PERSON, (4,), temperature=temperature)
    (outcome,) = run(wide(wanted=LogprobOptions(tempered=True)), [asked], EOS)
    logits, sets = logits_before(asked, outcome), walked(PERSON, outcome)
    for t, token in enumerate(outcome.ids.tolist()):
        own = logits[t] - np.log(np.exp(logits[t]).sum())
        np.testing.assert_allclose(outcome.scores.logprobs[t], own[token], rtol=0, atol=2e-4)
        assert token in sets[t]
        if temperature:
            z = logits[t][sets[t]] / temperature
            expected = logits[t][token] / temperature - np.log(np.exp(z - z.max()).sum()) - z.max()
            np.testing.assert_allclose(outcome.sampled_logprobs[t], expected, rtol=0, atol=1e-5)
        else:
            assert token == sets[t][int(np.argmax(logits[t][sets[t]]))]
        if len(sets[t]) == 1 or not temperature:
            assert outcome.sampled_logprobs[t] == 0
    assert any(len(each) == 1 for each in sets)


def test_kept_ids_are_those_that_filters_and_grammar_leave():
    asked = [guided(0, PERSON, (4,), temperature=1.0, top_k=5), guided(1, PERSON, (4,), temperature=1.0)]
    filtered, plain = run(wide(wanted=LogprobOptions(kept=True)), asked, EOS)
    assert filtered.kept_ids is not None
    for kept, open_ids in zip(filtered.kept_ids, walked(PERSON, filtered), strict=True):
        assert set(kept.tolist()) <= set(open_ids)
        assert len(kept) == min(5, len(open_ids))
    assert plain.kept_ids is None


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_whole_text_ends_however_many_tokens_are_wanted(temperature: float):
    asked = [guided(i, BOOLEAN, (i,), min_tokens=30, temperature=temperature) for i in range(6)]
    outcomes = run(wide(), asked, EOS)
    assert {text(o) for o in outcomes} <= {"true", "false"}
    assert {(o.finish_reason, o.grammar_complete) for o in outcomes} == {("stop", True)}


def test_min_tokens_holds_where_the_text_can_go_on():
    asked = [guided(i, GrammarSpec("regex", "[ab]{1,30}"), (i,), min_tokens=12) for i in range(6)]
    assert min(len(o.ids) for o in run(wide(), asked, EOS)) > 12


def test_no_text_ends_before_it_is_whole():
    asked = [guided(i, PERSON, range(40 * i, 40 * i + 40), max_tokens=30) for i in range(5)]
    for outcome in run(wide(rows=16), asked, EOS):
        assert not set(outcome.ids[:-1].tolist()) & ENDS
        assert outcome.grammar_complete == (outcome.finish_reason == "stop")


def test_a_stop_id_ends_a_whole_text_alone():
    outcomes = run(wide(), [guided(0, choice("a", "ab"), range(30), stop_token_ids=(1,))], EOS)
    assert {o.stop_reason for o in outcomes} == {None, "1"}
    assert all(o.grammar_complete and text(o) in ("a", "ab") for o in outcomes)


class Finds:
    """Finds one token."""

    def __init__(self, token: int):
        self.token = token

    def push(self, token: int) -> str | None:
        return "found" if token == self.token else None


def test_a_stop_string_leaves_the_text_incomplete():
    (brace,) = demo().encode_text("}").ids.tolist()
    spec = schema({"const": {}}, whitespace="compact")
    engine = Engine(wide(), frozenset(EOS), lambda sampling: Finds(brace))
    windows = iter([[guided(0, spec, stop=("}",)), guided(1, spec)]])
    cut, whole = sorted(engine.run(lambda wait: next(windows, None)), key=lambda o: o.row)
    assert isinstance(cut, Generated)
    assert isinstance(whole, Generated)
    assert (cut.finish_reason, cut.stop_reason, cut.grammar_complete) == ("stop", "found", False)
    assert (whole.finish_reason, whole.grammar_complete) == ("stop", True)


class Failing:
    """A guide that allows one id, and fails at a step: while it says what may come, or while it takes a token in."""

    grammar = None

    def __init__(self, step: int, at: str):
        self.step, self.at, self.error, self.complete = step, at, None, False

    def start(self) -> "Failing":
        return Failing(self.step, self.at)

    def fill(self, into: NDArray[np.int32]) -> bool:
        assert self.error is None
        if self.step == 0 and self.at == "fill":
            self.error = "too many expressions"
        into[:] = 0
        into[0] = 1 << 9 if self.error is None else 1 << EOS[0]  # llguidance offers EOS then
        return True

    def push(self, token: int) -> None:
        assert self.error is None
        if self.step == 0 and self.at == "push":
            self.error = "too many expressions"
        self.step -= 1


@pytest.mark.parametrize("at", ["fill", "push"])
@pytest.mark.parametrize("static", [False, True])
def test_a_guide_that_fails_fails_its_row_and_no_other(at: str, *, static: bool):
    setup = wide(static=static)
    asked = [guided(0, None, max_tokens=12), guided(1, Failing(3, at), max_tokens=12), guided(2, BOOLEAN), guided(3, None, max_tokens=5)]
    failed = next(o for o in outcomes_of(setup, asked, EOS) if isinstance(o, Failure))
    assert (failed.row, failed.stage, failed.error) == (1, "generate", "GrammarError")
    assert failed.message == "the grammar cannot go on at generated token 3: too many expressions"
    others = [o for o in outcomes_of(setup, asked, EOS) if isinstance(o, Generated)]
    assert_same(run(setup, [one for one in asked if one.row != 1], EOS), others)


def test_rows_that_wait_in_a_static_batch_are_asked_nothing_more():
    outcomes = run(wide(static=True), [guided(0, BOOLEAN), guided(1, None, max_tokens=25), guided(2, PERSON, (8,))], EOS)
    assert text(outcomes[0]) in ("true", "false")
    assert len(outcomes[1].ids) == 25


def test_texts_are_the_same_where_memory_runs_out():
    asked = mixed()
    tight = Tight(NETWORK, lambda rows, width, cached: rows > 2)
    assert_same(run(wide(rows=8), asked, EOS), run(setup_of(tight, rows=8, tokens=64), asked, EOS))
    assert tight.refused


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 99), max_size=6), st.lists(st.integers(0, 99), min_size=1, max_size=6))
def test_rows_that_must_end(open_ids: set[int], ends: list[int]):
    bits = np.zeros(128, np.uint8)
    bits[list(open_ids)] = 1
    packed = np.packbits(bits, bitorder="little").view(np.int32)[None]
    ending = np.array(ends, np.int32)
    assert must_end(Allowed(np.array([3], np.int32), packed), 3, ending) == (open_ids <= set(ends))
    assert not must_end(Allowed(np.array([3], np.int32), packed), 2, ending)
    assert not must_end(None, 3, ending)


def test_a_model_that_rules_out_all_that_is_allowed_fails_the_row():
    table = np.zeros((VOCABULARY, VOCABULARY), np.float32)
    table[:, demo().encode_text("true").ids] = -np.inf
    table[:, [i for i in range(VOCABULARY) if demo().token_bytes(i)[:1] in b"tf"]] = -np.inf
    (failed,) = outcomes_of(setup_of(Chain(table), rows=2), [guided(0, BOOLEAN)], EOS)
    assert isinstance(failed, Failure)
    assert failed.error == "NotANumber"

"""Tests scores of text after a prompt, end to end on a tiny model: completions, choices, chat turns."""

import math
from typing import Any

import numpy as np
import pytest

from ..checkpoints import BOS, logprobs
from ..jobs.support.bench import Bench, Record
from ..jobs.support.score_truth import PAIRS, assert_close, completions, score_all
from ..runner.support.small_tokenizers import demo

# ---------------------------------------------------------------------------------------------------------- completions


def test_completions_have_the_logprobs_of_one_forward(bench: Bench, network: Any) -> None:
    done = completions(bench, PAIRS)
    assert done.code == 0
    for (prompt, completion), record in zip(PAIRS, done.records, strict=True):
        ids = demo().encode(prompt + completion).ids.tolist()
        n = max(1, len(demo().encode(prompt.rstrip()).ids))
        assert record["token_ids"] == ids
        assert record["scored"] == [at >= n for at in range(len(ids))]
        truth = logprobs(network, ids)
        expected = [None if at < n else float(truth[at - 1, token]) for at, token in enumerate(ids)]
        assert_close(record["token_logprobs"], expected)
        assert record["scored_tokens"] == len(ids) - n
        assert record["sum_logprob"] == math.fsum(x for x in record["token_logprobs"] if x is not None)
        assert record["is_greedy"] == all(truth[at - 1].argmax() == ids[at] for at in range(n, len(ids)))
    moved = done.records[1]
    assert [demo().decode(np.array([i], np.int32)) for i, s in zip(moved["token_ids"], moved["scored"], strict=True) if s] == ["\n", "B"]
    assert (moved["bytes"], moved["scored_bytes"], moved["chars"]) == (2, 2, 2)


def test_the_most_likely_completion_is_greedy(bench: Bench, network: Any) -> None:
    pairs: list[tuple[str, str]] = []
    for word in ("The", "A", "Is", "king", "my", "To", "1", "and", "we", "Sir"):
        ids = demo().encode(word).ids
        best = int(logprobs(network, ids.tolist())[-1].argmax())
        text = demo().decode(np.array([best], np.int32))
        if text.strip() and demo().encode(word + text).ids.tolist() == [*ids.tolist(), best]:
            pairs.append((word, text))
    assert pairs
    assert [record["is_greedy"] for record in completions(bench, pairs).records] == [True] * len(pairs)


def test_rows_that_cannot_be_scored_are_set_aside(bench: Bench) -> None:
    done = completions(bench, [("The king", ""), ("The ki", "ng"), ("The", " king")])
    assert done.code == 3
    assert [(error["row"], error["stage"]) for error in done.errors] == [(0, "tokenize"), (1, "tokenize")]
    assert "the completion is empty" in done.errors[0]["message"]
    assert "nothing is left to score" in done.errors[1]["message"]
    assert [record["row"] for record in done.records] == [2]


@pytest.mark.parametrize("too_long", ["error", "truncate_left", "truncate_right"])
def test_a_prompt_that_is_too_long(bench: Bench, network: Any, too_long: str) -> None:
    prompt, completion = "The king is dead and the queen", " is in the town"
    done = completions(
        bench, [(prompt, completion)], prompt={"text": "{{ q }}", "too_long": too_long}, score={"completion": "{{ a }}", "context": 9}
    )
    if too_long == "error":
        assert (done.code, done.errors[0]["stage"]) == (3, "too_long")
        return
    record, whole = done.records[0], demo().encode(prompt + completion).ids.tolist()
    assert record["token_ids"] == ([BOS, *whole[-9:]] if too_long == "truncate_left" else [*whole[:5], *whole[-5:]])
    assert (record["truncated"], record["scored_tokens"], record["scored_bytes"]) == (True, 5, len(completion))
    assert_close(record["token_logprobs"][5:], list(score_all(network, record["token_ids"][:-1], record["token_ids"][5:])))


# -------------------------------------------------------------------------------------------------------------- choices

QUESTIONS: list[Record] = [
    {"q": "The king is", "c": [" dead", " in the town", " dead"], "l": 1},
    {"q": "Who?\n", "c": ["A", "B", "C", "é"], "l": "B"},
    {"q": "", "c": ["The king"], "l": None},
]


def test_choices_are_completions_of_one_prompt(bench: Bench) -> None:
    done = bench.score("-q", rows=QUESTIONS, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "l"})
    assert done.code == 0
    pairs = [(row["q"], choice) for row in QUESTIONS for choice in row["c"]]
    alone = iter(completions(bench, pairs, "--overwrite").records)
    for row, record in zip(QUESTIONS, done.records, strict=True):
        for at, choice in enumerate(row["c"]):
            one = next(alone)
            scored = [i for i, s in enumerate(one["scored"]) if s]
            assert record["choice_token_ids"][at] == [one["token_ids"][i] for i in scored]
            assert_close(record["choice_token_logprobs"][at], [one["token_logprobs"][i] for i in scored])
            assert record["choice_logprobs"][at] == math.fsum(record["choice_token_logprobs"][at])
            assert record["choice_is_greedy"][at] == one["is_greedy"]
            assert (record["choice_tokens"][at], record["prompt_tokens"]) == (len(scored), one["scored"].index(True))
            assert (record["choice_bytes"][at], record["choice_chars"][at]) == (len(choice.encode()), len(choice))
        assert record["prediction"] == int(np.argmax(record["choice_logprobs"]))
    assert [record["label"] for record in done.records] == [1, 1, None]
    assert [record["correct"] for record in done.records] == [done.records[0]["prediction"] == 1, done.records[1]["prediction"] == 1, None]


def test_of_equal_choices_the_first_is_predicted(bench: Bench) -> None:
    done = bench.score(
        "-q", rows=[{"q": "The", "c": [" king"] * 3}], prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "{{ 2 }}"}
    )
    record = done.records[0]
    assert len(set(record["choice_logprobs"])) == 1
    assert (record["prediction"], record["label"], record["correct"]) == (0, 2, False)


def test_a_choice_is_greedy_when_all_its_tokens_are(bench: Bench, network: Any) -> None:
    ids = demo().encode("The king").ids
    best = demo().decode(np.array([int(logprobs(network, ids.tolist())[-1].argmax())], np.int32))
    done = bench.score(
        "-q", rows=[{"q": "The king", "c": [best, best + " xyz", " zz"]}], prompt={"text": "{{ q }}"}, score={"choices": "c"}
    )
    record, flags = done.records[0], []
    for chosen in record["choice_token_ids"]:
        truth = logprobs(network, [*ids.tolist(), *chosen])
        flags.append([bool(truth[len(ids) + at - 1].argmax() == token) for at, token in enumerate(chosen)])
    assert (all(flags[0]), flags[1][0], all(flags[1]), any(flags[2])) == (True, True, False, False)
    assert record["choice_is_greedy"] == [True, False, False]


def test_choices_and_labels_of_a_csv(bench: Bench) -> None:
    path = bench.root / "rows.csv"
    path.write_text('q,c,l\nThe king is,"["" dead"", "" in the town""]",1\n', encoding="utf-8")
    prompt = {"text": "{{ q }}"}
    done = bench.score("-q", rows=[], data={"path": str(path)}, prompt=prompt, score={"choices": "c", "label": "{{ l }}"})
    assert done.code == 0
    assert (len(done.records[0]["choice_logprobs"]), done.records[0]["label"]) == (2, 1)


@pytest.mark.parametrize("label", ["l", "{{ l }}"])
def test_a_number_is_an_index_in_a_column_and_in_a_template(bench: Bench, label: str) -> None:
    rows: list[Record] = [{"q": "1 + 1 =", "c": [" 1", " 2", " 3"], "l": 1}, {"q": "1 + 1 =", "c": ["1", "2", "3"], "l": 1}]
    done = bench.score("-q", rows=rows, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": label})
    assert [record["label"] for record in done.records] == [1, 1]


def test_choices_of_a_cut_prompt_follow_the_same_tokens(bench: Bench, network: Any) -> None:
    prompt, choices = "The king is dead and the queen", [" is", " is in the town"]
    row = {"q": prompt, "c": choices}
    done = bench.score("-q", rows=[row], prompt={"text": "{{ q }}", "too_long": "truncate_left"}, score={"choices": "c", "context": 9})
    record = done.records[0]
    assert (record["truncated"], record["choice_tokens"], record["prompt_tokens"]) == (True, [1, 5], 8)
    # Room for the longest leaves 5 of the prompt's tokens; the shorter choice stands behind the same ones.
    ids = demo().encode(prompt + choices[0]).ids.tolist()
    truth = logprobs(network, [BOS, *ids[-5:]])
    assert_close(record["choice_token_logprobs"][0], [float(truth[-2, ids[-1]])])


def test_bad_choices_and_labels_cost_their_rows(bench: Bench) -> None:
    rows: list[Record] = [{"q": "The", "c": [" king"], "l": 0}, {"q": "The", "c": [" king"], "l": 7}, {"q": "The", "c": [], "l": 0}]
    rows += [{"q": "The", "c": None, "l": 0}, {"q": "The", "c": ["x", ""], "l": 0}]
    done = bench.score("-q", rows=rows, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "l"})
    assert [(error["row"], error["stage"]) for error in done.errors] == [(1, "template"), (2, "template"), (3, "template"), (4, "tokenize")]
    assert "the completion at index 1 of 2 is empty" in done.errors[3]["message"]
    assert [record["row"] for record in done.records] == [0]


# ----------------------------------------------------------------------------------------------------------------- chat

CHAT = [
    {"role": "user", "content": "Who is there?"},
    {"role": "assistant", "content": "The king."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "The queen."},
]


def test_a_chat_scores_the_assistants_turns(bench: Bench, network: Any) -> None:
    rows = [{"m": CHAT}, {"m": CHAT[:1]}, {"m": CHAT[:3]}]
    done = bench.score("-q", rows=rows, score={"messages": "m"})
    assert done.code == 0
    turns = demo().encode_turns(CHAT)
    record, ids = done.records[0], turns.prompt.ids.tolist()
    truth = logprobs(network, ids)
    within = [any(start <= at < end for start, end in turns.tokens) for at in range(len(ids))]
    assert (record["token_ids"], record["scored"]) == (ids, within)
    assert_close(record["token_logprobs"], [float(truth[at - 1, ids[at]]) if within[at] else None for at in range(len(ids))])
    assert record["bytes"] == record["scored_bytes"] == len("The king.The queen.")
    nothing = done.records[1]
    assert (nothing["sum_logprob"], nothing["scored_tokens"], any(nothing["scored"])) == (None, 0, False)
    assert done.records[2]["scored_tokens"] == turns.tokens[0][1] - turns.tokens[0][0]


def test_a_chat_template_without_marks_stops_the_job(bench: Bench) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    done = bench.score("-q", rows=[{"m": CHAT}], score={"messages": "m"}, prompt={"chat_template": template})
    assert done.code == 2
    assert "score.messages: prompt.chat_template does not mark the assistant's turns" in done.stderr
    assert "put {% generation %} … {% endgeneration %} around them" in done.stderr


def test_a_turn_that_begins_inside_a_token_costs_the_row(bench: Bench) -> None:
    template = "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    template += "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    rows = [{"m": [{"role": "user", "content": "The ki"}, {"role": "assistant", "content": "ng"}]}]
    done = bench.score("-q", rows=rows, score={"messages": "m"}, prompt={"chat_template": template})
    assert (done.code, done.errors[0]["stage"]) == (3, "tokenize")
    assert "start of the assistant's turn 1" in done.errors[0]["message"]

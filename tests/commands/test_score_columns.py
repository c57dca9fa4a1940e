"""Tests the columns of scoring jobs: names, types, and the places of figures."""

from typing import Any

import numpy as np
import pytest

from ..checkpoints import logprobs
from ..jobs.support.bench import Bench
from ..jobs.support.score_truth import PROMPT, TOLERANCE

FRONT = {"row": "int64", "key": "string", "input": "struct<id: int64, t: large_string>"}
TOKENS = {"token_ids": "list<item: int32>", "token_logprobs": "list<item: float>", "text_offset": "list<item: int32>"}
SCORED = {"scored": "list<item: bool>"}
TOP = {"top_ids": "list<item: list<item: int32>>", "top_logprobs": "list<item: list<item: float>>"}
STATS = {"ranks": "list<item: int32>", "entropies": "list<item: float>"}
COMPARED = dict.fromkeys(("kls", "delta_ps"), "list<item: float>") | {
    "agreements": "list<item: bool>",
    "reference_logprobs": "list<item: float>",
}
COUNTS = {"sum_logprob": "double", "scored_tokens": "int32"} | dict.fromkeys(("bytes", "scored_bytes", "words", "chars"), "int64")
END = {"truncated": "bool"}
CHOICE_COLUMNS = {
    "prompt_tokens": "int32",
    "choice_token_ids": "list<item: list<item: int32>>",
    "choice_token_logprobs": "list<item: list<item: float>>",
    "choice_logprobs": "list<item: double>",
    "choice_tokens": "list<item: int32>",
    "choice_bytes": "list<item: int32>",
    "choice_chars": "list<item: int32>",
    "choice_is_greedy": "list<item: bool>",
    "prediction": "int32",
    "label": "int32",
    "correct": "bool",
    "truncated": "bool",
}


@pytest.mark.parametrize(
    ("sections", "columns"),
    [
        ({"score": {"text": "{{ t }}"}}, {**FRONT, **TOKENS, **COUNTS, **END}),
        (
            {"score": {"text": "{{ t }}", "group_by": "t"}, "data": {"keep": "none"}},
            {"row": "int64", "key": "string", "group": "large_string", **TOKENS, **COUNTS, **END},
        ),
        (
            {"score": {"text": "{{ t }}"}, "logprobs": {"top": 2, "stats": True}},
            {**FRONT, **TOKENS, **TOP, **STATS, **COUNTS, **END},
        ),
        ({"score": {"text": "{{ t }}", "reference": "model"}}, {**FRONT, **TOKENS, **COMPARED, **COUNTS, **END}),
        ({"score": {"completion": " is"}, **PROMPT}, {**FRONT, **TOKENS, **SCORED, **COUNTS, **END, "is_greedy": "bool"}),
        (
            {"score": {"messages": "m"}},
            {**FRONT, "input": "struct<id: int64, m: list<item: struct<role: string, content: string>>>"}
            | {**TOKENS, **SCORED, **COUNTS, **END},
        ),
    ],
)
def test_columns_and_types(bench: Bench, sections: dict[str, Any], columns: dict[str, str]) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    row = {"id": 1, "m": messages} if "messages" in sections["score"] else {"id": 1, "t": "The king"}
    if "reference" in sections["score"]:
        sections["score"]["reference"] = str(bench.model)
    rows = bench.write_rows([row])
    done = bench.score("-q", rows=[row], **{**sections, "data": {"path": str(rows), **sections.get("data", {})}})
    assert done.code == 0
    assert [(field.name, str(field.type)) for field in done.table.schema] == list(columns.items())


def test_columns_of_choices(bench: Bench) -> None:
    done = bench.score("-q", rows=[{"t": "The", "c": [" king", " is"]}], score={"choices": "c"}, **PROMPT)
    names = {"row": "int64", "key": "string", "input": "struct<t: large_string, c: list<item: string>>", **CHOICE_COLUMNS}
    assert [(field.name, str(field.type)) for field in done.table.schema] == list(names.items())


def test_figures_stand_where_tokens_are_scored(bench: Bench, network: Any) -> None:
    rows = [{"q": "The king", "a": " is dead"}, {"q": "A", "a": "b"}]
    done = bench.score("-q", rows=rows, prompt={"text": "{{ q }}"}, score={"completion": "{{ a }}"}, logprobs={"top": 3, "stats": True})
    for record in done.records:
        truth = logprobs(network, record["token_ids"])
        for at, scored in enumerate(record["scored"]):
            figures = [record[name][at] for name in ("token_logprobs", "top_ids", "top_logprobs", "ranks", "entropies")]
            if not scored:
                assert figures == [None] * 5
                continue
            p, target = truth[at - 1], record["token_ids"][at]
            order = np.lexsort((np.arange(len(p)), -p))
            assert figures[1] == order[:3].tolist()
            assert figures[3] == 1 + order.tolist().index(target)
            np.testing.assert_allclose(figures[2], p[order[:3]], rtol=0, atol=TOLERANCE)
            assert figures[4] == pytest.approx(
                -(np.exp(p) * p).sum(), abs=TOLERANCE * 10
            )  # Σ over 2,048 tokens of up to 1e-4 each, weighted

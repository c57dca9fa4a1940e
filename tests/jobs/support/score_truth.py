"""Computes scores by one naive forward of each window, and lists the jobs to compare with them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...checkpoints import logprobs
from .bench import Bench, Done, Record

TOLERANCE = 1e-4  # a token, in float32: batches and windows have other shapes than one forward (the contract's)
LONG = "The king is dead, and the queen is in the town; café 東京 🙂. " * 4
DOCUMENTS = ["", "a", "é", "a\r\nb\r\n", LONG, "<|endoftext|>The king", "The king is dead."]
PROMPT = {"prompt": {"text": "{{ t }}"}}
PAIRS = [("The king", " is dead."), ("Answer:\n", "B"), ("", "The king"), ("A longer prompt, with café in it", "!")]


def score_all(network: Any, fed: list[int], targets: list[int]) -> list[float]:
    """Logprobs of ``targets``, which are what follows the last of ``fed``: one forward of one window."""
    first = len(fed) - len(targets)
    found = logprobs(network, fed)
    return [float(found[first + i, target]) for i, target in enumerate(targets)]


def rolling(ids: list[int], context: int) -> Iterator[tuple[list[int], list[int]]]:
    """lm-eval's windows of ``ids``, of which the first is the prefix: what is fed, and what is scored."""
    done = 1
    while done < len(ids):
        end = min(len(ids), done + context)
        yield ids[max(0, end - 1 - context) : end - 1] if done > 1 else ids[: end - 1], ids[done:end]
        done = end


def naive(network: Any, ids: list[int], context: int) -> list[float | None]:
    """Logprobs of all tokens but the first, which is null."""
    found: list[float | None] = [None] * min(1, len(ids))
    for fed, targets in rolling(ids, context):
        found += score_all(network, fed, targets)
    return found


def assert_close(found: list[float | None], expected: list[float | None]) -> None:
    assert [value is None for value in found] == [value is None for value in expected]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    np.testing.assert_allclose([a for a, _ in pairs], [b for _, b in pairs], rtol=0, atol=TOLERANCE)


def documents(bench: Bench, texts: list[str], score: Record | None = None, *options: str, **sections: Any) -> Done:
    rows = [{"id": i, "t": text} for i, text in enumerate(texts)]
    return bench.score("-q", *options, rows=rows, score={"text": "{{ t }}", **(score or {})}, **sections)


def completions(bench: Bench, pairs: list[tuple[str, str]], *options: str, **sections: Any) -> Done:
    rows = [{"q": prompt, "a": completion} for prompt, completion in pairs]
    return bench.score("-q", *options, rows=rows, **{"prompt": {"text": "{{ q }}"}, "score": {"completion": "{{ a }}"}, **sections})

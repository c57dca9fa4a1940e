"""Tests the built-in rewards: answers that are right, wrong, or not theirs to judge."""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from mlx_bulk.configs.rewards import RewardConfig
from mlx_bulk.jobs.rewards import builtin_rewards
from mlx_bulk.jobs.rewards.builtin_rewards import VERSIONS, exact_match, json_valid, last_number, length, regex
from mlx_bulk.jobs.rewards.functions import find_functions, function_fingerprints


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("So it is 18.", "9 + 9 = <<9+9=18>>18\n#### 18", True),
        ("#### 1,000", "#### 1000", True),
        ("1000.0", "#### 1,000", True),
        ("#### 18 and then 7 more", "#### 18", False),  # the last number behind the last mark is 7
        ("first 18, then 17", "#### 18", False),
        ("10-4", "4", True),  # a subtraction, no minus four
        ("it is -4", "-4", True),
        ("x = (-4)", "-4", True),
        ("−4 degrees", "-4", True),
        ("of 1,2,3", "3", True),  # a list, no thousands
        ("$1,234.50!", "1234.5", True),
        ("none at all", "3", False),
        ("", "3", False),
        ("3", 3, True),
        ("0.1", 0.1, True),
        ("it is .5", "0.5", True),
        ("-.5", "-0.5", True),
        ("$.5", "0.5", True),
        ("so...5", "5", True),  # the point ends what stands before
        ("version 1.2.3", "3", True),
        ("a loss of -$5", "-5", True),
        ("$-5", "-5", True),
        ("10-$4", "4", True),
        ("–5 degrees", "-5", True),
        ("pages 3–5", "5", True),
        ("€1,234.50", "1234.5", True),
        ("#### 5\n####", "#### 5", True),
        ("#### 5\n#### none", "5", True),
        ("18 ####", "18", False),  # the mark says that the answer follows
        ("3e2", "2", True),  # not read as one number, nor are the next
        ("1/2", "2", True),
        ("1,000,00", "0", True),
        ("1 000", "0", True),
        ("12345678901234567890", "12345678901234567891", False),  # beyond float's digits
    ],
)
def test_last_number(completion: str, answer: object, right: bool):
    assert last_number([completion], column="answer", answer=[answer]) == [float(right)]
    assert last_number([chat(completion)], column="answer", answer=[answer]) == [float(right)]


def test_a_null_target_leaves_the_sample_out_and_one_without_a_number_is_an_error():
    assert last_number(["3", "4"], column="answer", answer=[None, "4"]) == [None, 1.0]
    assert exact_match(["3"], column="answer", answer=[None]) == [None]
    assert exact_match(["3", "4"], column="answer") == last_number(["3", "4"], column="meta.answer") == [None, None]
    with pytest.raises(ValueError, match="'answer' holds no number: 'many'"):
        last_number(["3"], column="answer", answer=["many"])


def test_a_dotted_path_reaches_into_a_column_and_a_name_with_a_dot_wins():
    meta = [{"gold": {"value": "7"}}, {"gold": None}]
    assert exact_match(["7", "7"], column="meta.gold.value", meta=meta) == [1.0, None]
    dotted: dict[str, Any] = {"a.b": ["7"], "a": [{"b": "8"}]}
    assert exact_match(["7"], column="a.b", **dotted) == [1.0]
    within: dict[str, Any] = {"the a.b": [{"c": "7"}], "the a": [None]}
    assert exact_match(["7"], column="the a.b.c", **within) == [1.0]


def test_exact_match():
    assert exact_match([" Paris\n", "paris", "Paris."], column="city", city=["Paris"] * 3) == [1.0, 0.0, 0.0]
    assert exact_match(["paris"], column="city", ignore_case=True, city=["PARIS "]) == [1.0]
    assert exact_match([chat("12")], column="n", n=[12]) == [1.0]


def test_regex_searches_anywhere():
    assert regex(["a <answer>3</answer>", "answer: 3"], pattern=r"<answer>\d+</answer>") == [1.0, 0.0]
    assert regex([chat("A\nb")], pattern=r"(?is)^a.b$") == [1.0]


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"a": [1, null]}', True),
        (" 3\n", True),
        ('{"a": NaN}', False),
        ("-Infinity", False),
        ("{'a': 1}", False),
        ('{"a": 1} so', False),
        ("", False),
    ],
)
def test_json(text: str, valid: bool):
    assert json_valid([text, chat(text)]) == [float(valid)] * 2


def test_json_nested_beyond_reason_is_not_valid_and_no_crash():
    assert json_valid([json.dumps("x")[:-1] + "[" * 100_000, "[" * 100_000]) == [0.0, 0.0]


def test_length_counts_tokens_not_characters():
    assert length([[5] * 300, [5] * 192, [5] * 208], over=192, per=64) == [108 / 64, 0.0, 0.25]
    assert length([[1, 2, 3]]) == [3.0]


# ------------------------------------------------------------------------------------------------------------- versions

# Texts of pieces that matter to one function or another, and answers of as many kinds.
PIECES = ["1", "2", "18", ".", ",", "-", "−", "$", " ", "\n", "####", "a", "B", "(", ")", "[", "]", '"', "{", "}", ":", "true", "null", "é"]
RANDOM = random.Random(20)
TEXTS = ["".join(RANDOM.choices(PIECES, k=RANDOM.randint(0, 9))) for _ in range(3000)]
ANSWERS: list[Any] = [RANDOM.choice([1, 2, -18, 0.5, None, "1,2", "#### 18", text + "1"]) for text in TEXTS]
IDS = [list(range(RANDOM.randint(0, 400))) for _ in TEXTS]

CALLS: dict[str, Callable[[], Sequence[float | None]]] = {
    "exact_match": lambda: [
        *exact_match(TEXTS, column="a", a=[text.strip() if index % 2 else text.upper() for index, text in enumerate(TEXTS)]),
        *exact_match(TEXTS, column="a", ignore_case=True, a=[text.upper() for text in TEXTS]),
        *exact_match(TEXTS, column="a.b", a=[{"b": answer} for answer in ANSWERS]),
    ],
    "last_number": lambda: last_number(TEXTS, column="a", a=ANSWERS),
    "regex": lambda: [*regex(TEXTS, pattern=r"(?i)b\s*\d"), *regex(list(map(chat, TEXTS)), pattern=r"^\W+$")],
    "json_valid": lambda: json_valid(TEXTS),
    "length": lambda: [*length(IDS), *length(IDS, over=192, per=64)],
}
VALUES = {
    "exact_match": (1, "8b2f0ce018b21fe7"),
    "last_number": (1, "97ca4f709b1960c5"),
    "regex": (1, "937cbc17efd16c6d"),
    "json_valid": (1, "663e198c67529872"),
    "length": (1, "ff669544570f2fbe"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_gives_other_values_has_another_version(name: str):
    """Where this fails, runs that are begun must not go on with the function: raise its version, and note the values here."""
    digest = hashlib.sha256(json.dumps(list(CALLS[name]())).encode()).hexdigest()[:16]
    assert (VERSIONS[name], digest) == VALUES[name]


def test_each_built_in_function_has_a_version():
    functions = {
        name for name, value in vars(builtin_rewards).items() if callable(value) and getattr(value, "__module__", "") == regex.__module__
    }
    assert {name for name in functions if not name.startswith("_")} == VERSIONS.keys() == CALLS.keys()


def test_a_comment_in_the_package_s_file_is_no_other_function():
    found = find_functions([RewardConfig(fn="length"), RewardConfig(fn="json_valid")])
    assert function_fingerprints(found) == {"length": "version 1", "json_valid": "version 1"}

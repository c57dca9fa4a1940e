"""What a function may return, and what it may raise, so that its group always gets rewards or a reason."""

from pathlib import Path

import pytest

from ..support.reward_ratings import named, rated, written

NAMED = "from decimal import Decimal\nfrom fractions import Fraction\nfrom collections import deque\nimport asyncio\n"


@pytest.mark.parametrize(
    "body",
    [
        "return (value for value in (0.5, None))",
        "yield 0.5; yield None",
        "return map(float, ['0.5']) if not completions else {'a': 0.5, 'b': None}.values()",
        "return deque([Decimal('0.5'), None])",
        "return [Fraction(1, 2), None]",
    ],
)
@pytest.mark.parametrize("is_async", ["", "async "])
def test_a_number_of_python_is_a_reward_in_whatever_holds_them_in_order(tmp_path: Path, body: str, is_async: str):
    found = rated(named(f"{written(tmp_path, f'{NAMED}{is_async}def f(completions):{chr(10)}    {body}')}:f"))
    assert (found.rewards, found.errors) == ({"f": [0.5, None]}, {"f": [None, None]})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return {1.0, 2.0}", "type: returned set {1.0, 2.0}; expected a list with a number or None for each completion"),
        ("return {'a': 1, 'b': 2}", "type: returned dict {'a': 1, 'b': 2}; expected a list with a number or None for each completion"),
        ("while True: yield 1", "length: returned more than 2 rewards for 2 completions"),
        ("yield 1", "length: returned 1 rewards for 2 completions"),
        ("yield 1; raise ValueError('no')", "exception: ValueError: no (rewards.py, line 6)"),
        ("return [Decimal('NaN'), Decimal('sNaN')]", "nan: the reward is not a number"),
        ("return [Decimal('1e500'), Fraction(10**500)]", "infinite: the reward is infinite, or beyond what float32 holds"),
        ("return [1j, 1j]", "type: complex 1j among the rewards; expected a number or None"),
    ],
)
def test_rewards_of_a_wrong_type_or_number_are_refused(tmp_path: Path, body: str, said: str):
    found = rated(named(f"{written(tmp_path, f'{NAMED}def f(completions):{chr(10)}    {body}')}:f"))
    assert (found.rewards, found.errors) == ({"f": [None, None]}, {"f": [said] * 2})


WILD = """
class Wild(Exception):
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__

class Odd(list):
    def __len__(self): raise Wild

class Number(float):
    def __float__(self): raise Wild
    def __repr__(self): raise Wild

def calm(completions): return [1, 2]
def wild(completions): BODY
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise Wild", "exception: Wild: (its str raises ValueError) (rewards.py, line 14)"),
        ("return Wild()", "type: returned Wild (its repr raises ValueError); expected a list with a number or None for each completion"),
        ("return [Wild(), Wild()]", "type: Wild (its repr raises ValueError) among the rewards; expected a number or None"),
        ("return Odd([1, 2])", "exception: Wild: (its str raises ValueError) (rewards.py, line 7)"),
        ("return [Number(), Number()]", "exception: Wild: (its str raises ValueError) (rewards.py, line 10)"),
    ],
)
def test_a_class_that_raises_where_it_is_written_ends_no_process(tmp_path: Path, body: str, said: str):
    file = written(tmp_path, WILD.replace("BODY", body))
    found = rated(named(f"{file}:wild", f"{file}:calm"))
    assert found.errors == {"wild": [said] * 2, "calm": [None, None]}


@pytest.mark.parametrize(
    ("message", "kept"),
    [("'first\\n' + 'a' * 400 + '\\n' + 'b' * 400", "first\n" + "a" * 400 + " …"), ("'a' * 4000", "a" * 450 + " …"), ("'a\\nb'", "a\nb")],
)
def test_a_long_message_is_cut_at_the_end_of_a_line_and_keeps_its_place(tmp_path: Path, message: str, kept: str):
    found = rated(named(f"{written(tmp_path, f'def f(completions): raise ValueError({message})')}:f"))
    assert found.errors["f"] == [f"exception: ValueError: {kept} (rewards.py, line 1)"] * 2

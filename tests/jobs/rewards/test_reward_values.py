"""What a function may return, and what it may raise, so that its group always gets rewards or a reason."""

import pytest
from mlx_bulk.runner.pipeline.job import Ratings

from ..support.reward_ratings import rated_each

NAMED = "from decimal import Decimal\nfrom fractions import Fraction\nfrom collections import deque\nimport asyncio\n"


HELD = (
    "return (value for value in (0.5, None))",
    "yield 0.5; yield None",
    "return map(float, ['0.5']) if not completions else {'a': 0.5, 'b': None}.values()",
    "return deque([Decimal('0.5'), None])",
    "return [Fraction(1, 2), None]",
)
REFUSED = {
    "return {1.0, 2.0}": "type: returned set {1.0, 2.0}; expected a list with a number or None for each completion",
    "return {'a': 1, 'b': 2}": "type: returned dict {'a': 1, 'b': 2}; expected a list with a number or None for each completion",
    "while True: yield 1": "length: returned more than 2 rewards for 2 completions",
    "yield 1": "length: returned 1 rewards for 2 completions",
    "yield 1; raise ValueError('no')": "exception: ValueError: no (rewards.py, line 6)",
    "return [Decimal('NaN'), Decimal('sNaN')]": "nan: the reward is not a number",
    "return [Decimal('1e500'), Fraction(10**500)]": "infinite: the reward is infinite, or beyond what float32 holds",
    "return [1j, 1j]": "type: complex 1j among the rewards; expected a number or None",
}
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
RAISING = {
    "raise Wild": "exception: Wild: (its str raises ValueError) (rewards.py, line 14)",
    "return Wild()": "type: returned Wild (its repr raises ValueError); expected a list with a number or None for each completion",
    "return [Wild(), Wild()]": "type: Wild (its repr raises ValueError) among the rewards; expected a number or None",
    "return Odd([1, 2])": "exception: Wild: (its str raises ValueError) (rewards.py, line 7)",
    "return [Number(), Number()]": "exception: Wild: (its str raises ValueError) (rewards.py, line 10)",
}
MESSAGES = {
    "'first\\n' + 'a' * 400 + '\\n' + 'b' * 400": "first\n" + "a" * 400 + " …",
    "'a' * 4000": "a" * 450 + " …",
    "'a\\nb'": "a\nb",
}


def source(body: str, is_async: str = "") -> str:
    return f"{NAMED}{is_async}def f(completions):\n    {body}"


def raising(message: str) -> str:
    return f"def f(completions): raise ValueError({message})"


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ratings]:
    """The ratings by each source's ``f``."""
    sources = [source(body, is_async) for body in HELD for is_async in ("", "async ")]
    sources += [*map(source, REFUSED), *map(raising, MESSAGES)]
    return dict(zip(sources, rated_each(tmp_path_factory.mktemp("values"), sources, "f"), strict=True))


@pytest.fixture(scope="module")
def wild_ratings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ratings]:
    """The ratings by ``wild`` of each body, and by ``calm`` behind it, in one process."""
    sources = [WILD.replace("BODY", body) for body in RAISING]
    return dict(zip(RAISING, rated_each(tmp_path_factory.mktemp("wild"), sources, "wild", "calm"), strict=True))


@pytest.mark.parametrize("body", HELD)
@pytest.mark.parametrize("is_async", ["", "async "])
def test_a_number_of_python_is_a_reward_in_whatever_holds_them_in_order(ratings: dict[str, Ratings], body: str, is_async: str):
    found = ratings[source(body, is_async)]
    assert (found.rewards, found.errors) == ({"f": [0.5, None]}, {"f": [None, None]})


@pytest.mark.parametrize(("body", "said"), REFUSED.items())
def test_rewards_of_a_wrong_type_or_number_are_refused(ratings: dict[str, Ratings], body: str, said: str):
    found = ratings[source(body)]
    assert (found.rewards, found.errors) == ({"f": [None, None]}, {"f": [said] * 2})


@pytest.mark.parametrize(("body", "said"), RAISING.items())
def test_a_class_that_raises_where_it_is_written_ends_no_process(wild_ratings: dict[str, Ratings], body: str, said: str):
    assert wild_ratings[body].errors == {"wild": [said] * 2, "calm": [None, None]}


@pytest.mark.parametrize(("message", "kept"), MESSAGES.items())
def test_a_long_message_is_cut_at_the_end_of_a_line_and_keeps_its_place(ratings: dict[str, Ratings], message: str, kept: str):
    assert ratings[raising(message)].errors["f"] == [f"exception: ValueError: {kept} (rewards.py, line 1)"] * 2

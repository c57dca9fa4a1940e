"""Sizes that a row's numbers ask of a template: too large ones fail that row at once, without using memory."""

import tracemalloc
from typing import Any

import pytest
from mlx_bulk.configs.schema import PromptConfig
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.templates import jinja_sandbox
from mlx_bulk.runner.templates.prompt_templates import Text, compile_prompt, compile_value

HUGE = 10**10


def rendered(template: str, **row: Any) -> str:
    found = compile_prompt(PromptConfig(text=template), list(row))(row)
    assert isinstance(found, Text)
    return found.text


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * n }}",
        "{{ n * q }}",
        "{{ ([q] * n) | length }}",
        "{{ q.ljust(n) }}",
        "{{ q.zfill(width=n) }}",
        "{{ q | center(n) }}",
        "{{ q | indent(n) }}",
        "{{ [q] | batch(n, q) | list | length }}",
        "{{ [q] | slice(n) | list | length }}",
        "{{ '%*d' % (n, 1) }}",
        "{{ '%10000000000d' % 1 }}",
        "{% for i in range(n) %}{% endfor %}",
        "{{ 10 ** n }}",
        "{{ (2 ** 60000) * (2 ** 60000) }}{{ n }}",
    ],
)
def test_a_row_that_asks_for_too_much_fails_alone(template: str):
    tracemalloc.start()
    with pytest.raises(RowError) as caught:
        rendered(template, q="a", n=HUGE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.stage == "template"
    assert "prompt.text: " in str(caught.value)
    assert peak < 50_000_000


def test_a_template_that_is_one_expression_is_bounded_as_well():
    with pytest.raises(RowError, match="grows beyond 134,217,728 characters or elements"):
        compile_value("{{ q * n }}", "score.text", ["q", "n"])({"q": "a", "n": HUGE})


def test_a_text_is_given_up_as_soon_as_it_is_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jinja_sandbox, "CHARACTERS", 1000)
    loops = "{% for i in range(n) %}{% for j in range(n) %}x{% endfor %}{% endfor %}"
    assert rendered(loops, n=31) == "x" * 961
    with pytest.raises(RowError, match="grows beyond 1,000 characters"):
        rendered(loops, n=90_000)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'ab' * n }}", "ababab"),
        ("{{ n * n }} {{ 2 ** n }} {{ 2.5 * n }} {{ 0.5 ** n }}", "9 8 7.5 0.125"),
        ("{{ 7 % n }} {{ '%05.2f|%3d%%' % (1.5, n) }}", "1 01.50|  3%"),
        ("{{ q.ljust(n) }}|{{ q | center(n) }}|{{ q.rjust(n, '.') }}", "a  | a |..a"),
        ("{{ (['a', 'b'] * 2) | join }}", "abab"),
        ("{% for i in range(n) %}{{ i }}{% endfor %}", "012"),
        ("{{ q | default(99999999999) }}{{ 99999999999 | string | length }}", "a11"),
    ],
)
def test_ordinary_sizes_are_allowed(template: str, text: str):
    assert rendered(template, q="a", n=3) == text

"""Templates that could cost much are rendered by a process with limits: the run's own process stays small, quick and alive."""

import tracemalloc
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.schema import PromptConfig
from mlx_bulk.runner.core.errors import ModelError, RowError
from mlx_bulk.runner.templates import chat_rendering, prompt_templates, render_costs, render_process
from mlx_bulk.runner.templates.prompt_templates import Text, compile_prompt, compile_template, compile_value
from mlx_bulk.runner.text.chat_template_check import try_template
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from ...checkpoints import DEMO

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {
        "role": "assistant",
        "content": "<think>\nfour\n</think>\n\n4",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": [2, 2]}}}],
    },
    {"role": "user", "content": "  And é?\n"},
]
# Expressions of a prompt or a chat template: n is large, q is a text of one character.
LARGE = [
    "{{ '{:>2000000000}'.format(5) }}",
    "{{ '{:>{w}}'.format(5, w=n) }}",
    "{{ '{:.{0}f}'.format(n) }}",
    "{{ '%2000000000d' | format(1) }}",
    "{{ (['a' * 1000000] * 10000) | join }}",
    "{{ ''.join(['a' * 1000000] * 10000) }}",
    "{{ 'a'.join('b' * 3000000) | replace('b', 'c' * 3000) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000) }}",
    "{% set s = namespace(x='a') %}{% for i in range(60) %}{% set s.x = s.x + s.x %}{% endfor %}{{ s.x | length }}",
    "{% set s = namespace(x='a') %}{% for i in range(60) %}{% set s.x = s.x ~ s.x %}{% endfor %}{{ s.x | length }}",
    "{% set s = namespace(x=[q]) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x == [s.x] }}",
    "{% set s = namespace(x=[q]) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x | tojson | length }}",
    "{% set s = namespace(x=[q]) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x in [s.x ~ ''] }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in range(9999) recursive %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in [1, 2, 3] | map('string') %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% set x %}{% for a in range(9999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}{{ x | length }}",
    "{{ (5).to_bytes(2000000000) | length }}",
    "{{ q.expandtabs(n) | length }}",
    "{{ 'x'.translate({120: 'a' * 1000000}) * 10 }}",
    "{{ [1.5] | map('round', n) | list }}",
    "{{ lipsum(n=1000000) | length }}",
    "{{ [q, q] | tojson(indent=2000000000) }}",
]


@pytest.fixture(scope="module")
def hf() -> Any:
    return load_tokenizer(DEMO, None, {}, trust_remote_code=False)._hf  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(scope="module")
def small_process() -> Iterator[None]:
    """A process of these tests' own, that may take 64 MiB."""
    process = render_process._process  # pyright: ignore[reportPrivateUsage]
    process.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render_process, "MEMORY_BYTES", 1 << 26)
        yield
        process().end()
    process.cache_clear()


def passed_on(*_: Any) -> Any:
    raise render_process.RenderRefused("another process's turn")


@pytest.mark.parametrize("template", [pytest.param(each, marks=() if each in LARGE[::4] else pytest.mark.slow) for each in LARGE])
def test_this_process_never_pays_for_a_large_template(template: str, hf: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_templates, "render_apart", passed_on)
    monkeypatch.setattr(chat_rendering, "render_apart", passed_on)
    monkeypatch.setattr(render_costs, "BUDGET", 1 << 14)
    tracemalloc.start()
    with pytest.raises(RowError, match=r"another process's turn|grows beyond"):
        compile_template(template, "prompt.text", ["q", "n"])({"q": "a", "n": 2_000_000_000})
    with pytest.raises(RowError, match=r"another process's turn|grows beyond"):
        Tokenizer(hf, "{% set q = 'a' %}{% set n = 2000000000 %}" + template).chat_text(CHAT, "")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_a_chat_template_that_takes_too_much_costs_its_rows_alone(hf: Any, small_process: None):
    wide = "{% if messages | length > 2 %}{{ '{:>2000000000}'.format(5) }}{% endif %}{{ messages[-1].content }}"
    tokenizer = Tokenizer(hf, wide)
    for _ in range(2):
        with pytest.raises(RowError, match=r"the chat template takes more than 0\.0625 GiB of memory with these messages"):
            tokenizer.chat_text(CHAT, "")
    assert tokenizer.chat_text(CHAT[1:2], "") == "2 + 2?"


def test_a_model_s_template_that_takes_too_much_is_refused_at_the_start(hf: Any, small_process: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hf, "chat_template", "{{ '{:>2000000000}'.format(5) }}")
    with pytest.raises(ModelError, match=r"comes with the model takes more than 0\.0625 GiB of memory with one short message; if you need"):
        try_template(hf, None)


def test_a_row_s_width_in_a_prompt_costs_that_row_alone(small_process: None):
    render = compile_prompt(PromptConfig(text="{{ '{:>{w}}'.format(q, w=n) }}"), ["q", "n"])
    with pytest.raises(RowError, match=r"prompt.text: the template takes more than 0\.0625 GiB of memory with this row"):
        render({"q": "a", "n": 2_000_000_000})
    assert render({"q": "a", "n": 3}) == Text("  a")


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended_and_another_one_goes_on(small_process: None):
    forever = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    with pytest.raises(render_process.TooMuch, match=r"is not done after 0\.2 seconds"):
        chat_rendering.chat_within(forever, CHAT, {}, 0.2)
    assert chat_rendering.chat_within("{{ messages[0].content | wordwrap(4) }}", CHAT, {}, 10) == "Be b\nrief\n."


def test_what_the_other_process_renders_is_the_same(small_process: None):
    row = {"q": "a b", "day": date(2026, 1, 2), "n": None}
    assert compile_template("{{ q | wordwrap(1) }} {{ day }}", "prompt.text", list(row))(row) == "a\nb 2026-01-02"
    assert compile_value("{{ (5).bit_length() }}", "score.label", list(row))(row) == 3
    with pytest.raises(RowError, match=r"prompt.text: null or missing in this row: n\. Use"):
        compile_template("{{ q | wordwrap(1) }}{{ n }}", "prompt.text", list(row))(row)
    marked = "{% for m in messages %}{{ m.role | wordwrap(9) }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    text, spans = chat_rendering.render_turns(marked, CHAT[:2], {})
    assert [text[start:end] for start, end in spans] == ["Be brief.", "2 + 2?"]


QWEN = """{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{ content }}{% endgeneration %}
        {%- for call in message.tool_calls %}{{- '\\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}' }}{%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
LLAMA = """{{- bos_token }}{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{{- system_message }}{{- strftime_now("%Y") | length }}
{%- for message in messages %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('alternate') }}{%- endif %}
{{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}{%- endfor %}"""
MACROS = """{%- macro args(values, depth=0) -%}{%- for key, value in values|items -%}{{ '  ' * depth ~ key ~ '=' ~ value }}
{{- "," if not loop.last }}{%- endfor -%}{%- endmacro -%}
{%- for m in messages | rejectattr('role', 'equalto', 'system') -%}{{ loop.index }}/{{ loop.length }} {{ m.role|upper }}:{{ m.content[:3] }}
{%- if m.tool_calls is defined and m.tool_calls -%}{{ args(m.tool_calls[0].function.arguments, 2) }}{{ m.tool_calls }}{%- endif -%}
{{ m.nothing }}{{ 1 + 2 }}{{ [1] + [2] }}{{ m.get('name', 'nobody') }}{% set x %}[{{ m.role }}]{% endset %}{{ x * 2 }}
{%- if loop.first %}{% continue %}{% endif -%}|{{ ['b', 'a'] | sort | join('-') }}{{ '%s %5.1f' % ('a', 2) }}{{ '{:>4}'.format('é') }}
{%- endfor -%}{{ messages | map(attribute='role') | unique | list }}{{ messages | selectattr('role', 'in', ['user']) | list | length }}"""


@pytest.mark.parametrize("template", [QWEN, LLAMA, MACROS, (DEMO / "chat_template.jinja").read_text(encoding="utf-8")])
def test_usual_chat_templates_are_rendered_here_and_as_transformers_does(template: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_rendering, "render_apart", passed_on)
    variables: dict[str, Any] = {
        "bos_token": "<s>",
        "add_generation_prompt": True,
        "tools": [{"type": "function", "function": {"name": "add"}}],
    }
    expected = render_jinja_template([CHAT], chat_template=template, **variables)[0][0]
    assert chat_rendering.render_chat(template, CHAT, variables) == expected
    if "generation %}" in template:
        texts, spans = render_jinja_template([CHAT], chat_template=template, return_assistant_tokens_mask=True, **variables)
        assert chat_rendering.render_turns(template, CHAT, variables) == (texts[0], tuple(map(tuple, spans[0])))


def test_usual_prompts_are_rendered_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_templates, "render_apart", passed_on)
    row = {"q": "naïve  text\n" * 2000, "choices": ["x", "y"], "n": 3, "z": {"k": [1.5, None]}}
    template = (
        "{{ q | truncate(20) }}{{ q.strip().split('\n') | length }}{{ '%.2f' | format(n / 7) }}{{ '{:>3}|{:<5}'.format(n, 'a') }}"
        "{% for c in choices %}{{ 'ABCD'[loop.index0] }}. {{ c }}{{ '\n' if not loop.last }}{% endfor %}{{ z | tojson(indent=2) }}"
        "{{ q | replace('\n', ' ') | wordcount }}{{ choices | map('upper') | join(', ') }}{{ n ~ '/' ~ n * 2 }}{{ q[:4] + '…' }}"
        "{{ z.k[0] | round(1) }}"
    )
    text = compile_template(template, "prompt.text", list(row))(row)
    assert text.startswith("naïve ...20000.43  3|a    A. x\nB. y{\n")
    assert text.endswith("4000X, Y3/6naïv…1.5")


def test_the_demo_s_template_is_tried_without_another_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_rendering, "render_apart", passed_on)
    assert load_tokenizer(Path(DEMO), None, {}, trust_remote_code=False).has_chat_template

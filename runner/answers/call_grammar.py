"""The grammar of a text that must call a tool, for models that write a call as JSON between two marks (Qwen's, Hermes').

<tool_call>
{"name": "weather", "arguments": {"city": "Rome"}}
</tool_call>
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from ..core.grammar_spec import GrammarSpec
from .tool_format import ToolFormat
from .tools import Tool, ToolChoice

JSON_CALLS = "json_tools"
_OPTIONS = "x-guidance"  # llguidance takes options from this key of a schema
_BLANKS = {"whitespace_pattern": " "}  # as chat templates write calls: on one line


def why_no_call_grammar(form: ToolFormat | None) -> str | None:
    """Says why calls in this format cannot be required; None where they can."""
    if form is not None and form.name == JSON_CALLS and form.begins and form.ends:
        return None
    written = "nobody knows how this model writes calls" if form is None else f"this model's calls are read by {form.name}"
    return f"a call can be required where it is JSON between two marks ({JSON_CALLS}), and {written}; set tool_choice to auto"


def call_grammar(
    form: ToolFormat, tools: list[Tool], choice: ToolChoice, single: bool, encode: Callable[[str], Sequence[int]]
) -> GrammarSpec:
    """Returns the grammar of one call or more, of the tools that may be called. encode: from a mark to its token ids."""
    assert why_no_call_grammar(form) is None, "it is checked before"
    assert form.begins is not None, "it is checked before"
    assert form.ends is not None, "it is checked before"
    functions = [tool["function"] for tool in tools if not choice.names or tool["function"]["name"] in choice.names]
    begins, ends = (_mark(mark, encode) for mark in (form.begins, form.ends))
    rules = [f"start: call{'' if single else ' (BREAK call)*'}", f"call: {begins} BREAK ({_alternatives(len(functions))}) BREAK {ends}"]
    for at, function in enumerate(functions):
        head = json.dumps(f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": ', ensure_ascii=False)
        rules.append(f'tool{at}: {head} arguments{at} "}}"')
        rules.append(f"arguments{at}: %json {json.dumps(_arguments(function), ensure_ascii=False)}")
    return GrammarSpec("calls", "\n".join([*rules, r"BREAK: /\n?/", ""]))


def _alternatives(number: int) -> str:
    return " | ".join(f"tool{at}" for at in range(number))


def _mark(mark: str, encode: Callable[[str], Sequence[int]]) -> str:
    """Returns a mark for the grammar: as its token where it is one, since text can not stand for that."""
    ids = encode(mark)
    return f"<[{ids[0]}]>" if len(ids) == 1 else json.dumps(mark, ensure_ascii=False)


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in (function.get("parameters") or {}).items() if key != _OPTIONS}
    return {"type": "object", **own, _OPTIONS: _BLANKS}

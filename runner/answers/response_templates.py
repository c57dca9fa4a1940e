"""Response templates in transformers' format: what a model's turn is made of, as a checkpoint ships it or as a table here has it.

transformers reads what is inside a section. Which sections there are, and that each is closed, is found out before it sees them: its
own reader takes a call that was cut off for a whole one.
"""

from dataclasses import dataclass
from typing import Any

from .sections import Kind, Marks

_REASONING = ("reasoning_content", "thinking", "reasoning")
_LLAMA3: dict[str, Any] = {
    "start_anchor": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r'(?:\A|<\|end_header_id\|>\s*|<\|python_tag\|>)\s*\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*',
            "close_pattern": r"\}\s*(?:<\|eot_id\|>|<\|eom_id\|>)",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"content": "text"},
    },
}
_HARMONY_CALL = r"(?:to=functions\.(?P<name>[^\s<]+)\s*<\|channel\|>commentary|<\|channel\|>commentary\s+to=functions\.(?P<name>[^\s<]+))"
_GPT_OSS: dict[str, Any] = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "reasoning_content": {
            "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>",
            "close": "<|end|>",
            "content": "text",
        },
        "tool_calls": {
            "open_pattern": r"(?:<\|start\|>assistant)?\s*" + _HARMONY_CALL + r"\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {
            "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)<\|message\|>",
            "close_pattern": r"<\|(?:return|end)\|>",
            "content": "text",
        },
    },
}
# name -> what its chat template holds, and the response template
TABLE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "llama3_json": (("<|start_header_id|>", '"parameters": ', "tool_call.name"), _LLAMA3),
    "gpt_oss": (("<|channel|>commentary", "<|call|>", "functions."), _GPT_OSS),
}


@dataclass(frozen=True)
class ResponseTemplate:
    """A response template: the marks of its sections, and a reader of its calls."""

    spec: dict[str, Any]

    @property
    def marks(self) -> list[Marks]:
        """The marks of its sections. Raises ValueError where transformers cannot read the template."""
        from transformers.utils.chat_parsing.response_templates import load_response_template

        kinds: dict[str, Kind] = {"tool_calls": "tools", "content": "content", **dict.fromkeys(_REASONING, "reasoning")}
        fields = load_response_template(self.spec).fields.items()
        return [Marks(kinds[name], each.open_re, each.close_re) for name, each in fields if name in kinds and each.open_re is not None]

    def calls(self, section: str, inner: str, tools: list[Any]) -> list[Any]:
        """Returns the calls of one closed section, as ``{name, arguments}``. Raises what the reader raises."""
        from transformers.utils.chat_parsing import parse_response

        alone = {**self.spec, "defaults": {}, "fields": {"tool_calls": self.spec["fields"]["tool_calls"]}}
        found = parse_response(section, alone, prefix="", tools=tools or None).get("tool_calls", [])
        return [each.get("function", each) if isinstance(each, dict) else each for each in _flat(found)]


def _flat(found: Any) -> list[Any]:
    return [inner for each in found for inner in _flat(each)] if isinstance(found, list) else [found]


def known_template(chat_template: str) -> str | None:
    """Returns the name in the table of the format that a chat template writes, or None."""
    return next((name for name, (signs, _) in TABLE.items() if all(sign in chat_template for sign in signs)), None)

"""A row that was not answered, as the line of a Batch file: an HTTP error with its parameter and code, or an error that is none."""

import json
import re
from dataclasses import dataclass
from typing import Any

from ..openai.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, GRAMMAR_FIELDS, RESPONSES
from ..openai.refusal import STAGE, parameter_of, status_of

Json = dict[str, Any]

_PROMPT_FIELDS = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input", EMBEDDINGS: "input"}
_OF_PROMPT = {"too_long": "context_length_exceeded", "template": "invalid_value", "tokenize": "invalid_value"}
_OURS = ("generate", "score", "reward", "pool", "store")  # stages at which a sound request fails


@dataclass(slots=True, frozen=True)
class Refusal:
    """Why a row has no answer. status: that of HTTP; None where there was no request to answer: a line that cannot be read."""

    status: int | None
    code: str
    message: str
    param: str | None = None

    @property
    def error(self) -> Json:
        """The body's ``error``."""
        kind = "invalid_request_error" if (self.status or 0) < 500 else "server_error"
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def refusal_of(failure: Json) -> Refusal:
    """Returns the refusal of a failed row; ``failure`` has columns of errors/: stage, error, message and input."""
    stage, message = failure["stage"], failure["message"]
    if stage == STAGE:
        param, text = parameter_of(message)
        return Refusal(status_of(failure["error"]), failure["error"], f"{param}: {text}", param)
    if stage == "read":
        return Refusal(None, "missing_required_parameter" if "'custom_id'" in message else "invalid_json_line", message)
    if stage in _OURS:
        return Refusal(500, _snake(failure["error"]), message)
    if stage in _OF_PROMPT:
        return Refusal(400, _OF_PROMPT[stage], message, _prompt_field(failure.get("input")))
    if failure["error"] == "unsupported_tool_choice":
        return Refusal(400, "unsupported_tool_choice", message, "tool_choice")
    if stage == "reasoning":
        return Refusal(400, "unsupported_value", message, "thinking_token_budget")
    if stage == "grammar":
        return Refusal(400, "unsupported_schema", message, _grammar_field(failure.get("input")))
    return Refusal(400, "invalid_value", message)


def _prompt_field(text: str | None) -> str | None:
    """Returns the field of the request that holds its prompt; None for a row of other data."""
    return _PROMPT_FIELDS.get(str(_line(text).get("url")))


def _grammar_field(text: str | None) -> str | None:
    """Returns the field of the request that holds its grammar; tools where none does, None for a row of other data."""
    body = _line(text).get("body")
    if not isinstance(body, dict):
        return None
    inner = {"text.format": body["text"].get("format")} if isinstance(body.get("text"), dict) else {}
    return next((name for name in GRAMMAR_FIELDS if {**body, **inner}.get(name) is not None), "tools")


def _line(text: str | None) -> Json:
    """Returns a line of a Batch file from its text in errors/; empty for a row of other data."""
    try:
        line = json.loads(text or "")
    except ValueError:
        return {}
    return line if isinstance(line, dict) and "body" in line and "url" in line else {}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

"""A row that was not answered, as the line of a Batch file: an HTTP error with its parameter and code, or an error that is none."""

import json
import re
from dataclasses import dataclass
from typing import Any

from ..openai.endpoints import CHAT, COMPLETIONS, RESPONSES
from ..openai.refusal import STAGE, parameter_of, status_of

Json = dict[str, Any]

_PROMPT_FIELDS = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input"}
_OF_PROMPT = {"too_long": "context_length_exceeded", "template": "invalid_value", "tokenize": "invalid_value"}
_OURS = ("generate", "score", "reward")  # stages at which a sound request fails


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
    return Refusal(400, "invalid_value", message)


def _prompt_field(text: str | None) -> str | None:
    """Returns the field of the request that holds its prompt; None for a row of other data."""
    try:
        line = json.loads(text or "")
    except ValueError:
        return None
    return _PROMPT_FIELDS.get(str(line.get("url"))) if isinstance(line, dict) and "body" in line else None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

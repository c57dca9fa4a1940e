"""The input of /v1/responses as the messages of a chat."""

from typing import Any

from ...configs.explain import shown
from .messages import ROLES, Message, content_of, text_of, tool_call
from .refusal import RequestRefused

_KINDS = "message, function_call, function_call_output or reasoning"


def response_messages(given: str | list[Any], instructions: str | None) -> list[Message]:
    """Returns the messages of ``input`` behind the ``instructions``. Raises RequestRefused for an item of another kind."""
    messages: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    thoughts = ""
    for index, item in enumerate(given):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise RequestRefused(where, "invalid_value", f"found {shown(item)}; expected an item: {_KINDS}")
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "reasoning":
            thoughts += _thoughts(item, where)
            continue
        message = _message(item, kind, where)
        if message["role"] == "assistant":
            last = messages[-1] if messages else {}
            if thoughts:
                message["reasoning_content"], thoughts = thoughts, ""
            if kind == "function_call" and last.get("role") == "assistant":  # calls of one turn are one message
                last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
                last |= {name: value for name, value in message.items() if name == "reasoning_content"}
                continue
        messages.append(message)
    if not messages:
        raise RequestRefused("input", "invalid_value", "found no message; expected at least one")
    return messages


def _message(item: dict[str, Any], kind: object, where: str) -> Message:
    if kind == "message":
        role = item.get("role")
        if role not in ROLES or role == "tool":
            raise RequestRefused(f"{where}.role", "invalid_value", f"found {shown(role)}; expected system, developer, user or assistant")
        return {"role": role, "content": content_of(item.get("content"), f"{where}.content")}
    if kind == "function_call":
        call = tool_call(item.get("call_id"), item.get("name"), item.get("arguments"), where)
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        output = text_of(item.get("output"), f"{where}.output")
        return {"role": "tool", "content": output, "tool_call_id": str(item.get("call_id") or "")}
    raise RequestRefused(f"{where}.type", "unsupported_value", f"found {shown(kind)}; expected {_KINDS}")


def _thoughts(item: dict[str, Any], where: str) -> str:
    """Returns the text of a reasoning item; a summary stands for a text that is not there."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts is None:
            continue
        if not isinstance(parts, list) or not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
            raise RequestRefused(f"{where}.{name}", "invalid_value", "expected a list of {type, text}")
        if parts:
            return "".join(part["text"] for part in parts)
    return ""

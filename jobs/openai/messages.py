"""The messages of a chat request, checked and made ready for a chat template: texts, parts of pictures, calls with their arguments.

Pictures are not read here, and whether the model reads any is not known.
"""

import json
from collections.abc import Collection
from typing import Any

from ...configs.explain import shown
from ...configs.fields import nearest
from .refusal import RequestRefused

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")

_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning", "reasoning_content")
_PICTURES = ("image_url", "input_image")
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def chat_messages(messages: list[Any], strict: bool) -> list[Message]:
    """Returns a chat's messages. strict: a field that nobody knows refuses the request. Raises RequestRefused."""
    return [_message(message, f"messages[{index}]", strict) for index, message in enumerate(messages)]


def _message(message: object, where: str, strict: bool) -> Message:
    if not isinstance(message, dict):
        raise RequestRefused(where, "invalid_value", f"found {shown(message)}; expected {{role, content}}")
    role = message.get("role")
    if role not in ROLES:
        raise RequestRefused(f"{where}.role", "invalid_value", f"found {shown(role)}; expected one of {', '.join(ROLES)}")
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            cure = "answers and prompts are text alone" if name == "audio" else "it is no longer an API's; say tool_calls"
            raise RequestRefused(f"{where}.{name}", "unsupported_parameter", cure)
    known = {name: value for name, value in message.items() if value is not None and name in _FIELDS}
    if strict:
        require_known(message, where, _FIELDS)
    calls = known.pop("tool_calls", None)
    kept: Message = {"role": role}
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
        if name in known:
            kept[name] = _text(known[name], f"{where}.{name}")
    content = known.get("content", known.get("refusal") if role == "assistant" else None)
    if content is not None:
        kept["content"] = content_of(content, f"{where}.content")
    elif role == "assistant" and calls:
        kept["content"] = None
    else:
        raise RequestRefused(f"{where}.content", "missing_required_parameter", "missing; expected a string or a list of text parts")
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise RequestRefused(f"{where}.tool_calls", "invalid_value", "expected a list of calls in a message of the assistant")
        kept["tool_calls"] = [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return kept


def content_of(content: object, where: str) -> str | list[Message]:
    """Returns a message's content: its text, or a list of parts where some are pictures. Raises RequestRefused."""
    if not isinstance(content, list) or not any(_is_picture(part) for part in content):
        return text_of(content, where)
    places = [(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return [_picture(part, at) if _is_picture(part) else {"type": "text", "text": _part(part, at)} for part, at in places]


def _is_picture(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _PICTURES


def _picture(part: dict[str, Any], where: str) -> Message:
    """Returns a part of a picture as ``{type: image_url, image_url: {url}}``; how closely it is to be looked at has no effect."""
    named = part.get("image_url")
    url = named.get("url") if isinstance(named, dict) else named
    if part.get("file_id") is not None and url is None:
        raise RequestRefused(f"{where}.file_id", "unsupported_value", "no files are uploaded here; give the picture as image_url")
    if not isinstance(url, str) or not url:
        expected = "expected a data URL, a path below the file's folder, or an address (data.fetch)"
        raise RequestRefused(f"{where}.image_url", "invalid_value", f"found {shown(named)}; {expected}")
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(content: object, where: str) -> str:
    """Returns the text of a message's content: a string, or text parts joined. Raises RequestRefused for parts of other kinds."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestRefused(where, "invalid_value", f"found {shown(content)}; expected a string or a list of text parts")
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise RequestRefused(where, "invalid_value", f"found {shown(part)}; expected {{type: text, text: …}}")
    if kind not in _TEXTS:
        raise RequestRefused(f"{where}.type", "unsupported_value", f"found {shown(kind)}; expected text or image_url")
    return _text(part.get(_TEXTS[kind]), f"{where}.{_TEXTS[kind]}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RequestRefused(where, "invalid_value", f"found {shown(value)}; expected a string")
    return value


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type", "function") != "function":
        raise RequestRefused(where, "invalid_value", f"found {shown(call)}; expected {{id, type: function, function: {{name, arguments}}}}")
    return tool_call(call.get("id"), function.get("name"), function.get("arguments"), f"{where}.function")


def tool_call(identifier: object, name: object, arguments: object, where: str) -> dict[str, Any]:
    """Returns a call as chat templates read it, with its arguments parsed. Raises RequestRefused."""
    if not isinstance(name, str) or not name:
        raise RequestRefused(f"{where}.name", "invalid_value", f"found {shown(name)}; expected the name of a function")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise RequestRefused(f"{where}.arguments", "invalid_value", f"found a text that is no JSON: {error}") from None
    if arguments is None:
        arguments = {}
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function, **({"id": identifier} if isinstance(identifier, str) else {})}


def require_known(found: dict[str, Any], where: str, known: Collection[str]) -> None:
    """Raises RequestRefused for a field that is not ``known`` and not null; it names the nearest."""
    for name, value in found.items():
        if name not in known and value is not None:
            raise unknown_field(f"{where}.{name}" if where else name, name, known)


def unknown_field(param: str, name: str, known: Collection[str]) -> RequestRefused:
    """Returns the refusal of a field that nobody knows; it names the nearest."""
    near = nearest(name, known)
    fix = f"did you mean {near}?" if near else "leave it out"
    return RequestRefused(param, "unknown_parameter", f"no field of this request; {fix} (data.unknown_fields: ignore answers all the same)")

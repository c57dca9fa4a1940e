"""Reads chat messages from a row's column: a list of {role, content}, or its JSON text. Knows no templates."""

import json
from typing import Any

from ..core.errors import RowError
from ..data.column_paths import lookup
from .chat_rendering import with_arguments

TEXT_PARTS, PICTURE_PARTS = ("text", "input_text", "output_text"), ("image", "image_url", "input_image")
Columns = dict[str, Any]
Message = dict[str, Any]


def read_messages(row: Columns, path: str, pictures: bool = False) -> list[Message]:
    """Returns the chat messages at ``path`` in the row: a list of {role, content}, or JSON text of one.

    Text parts are joined into one string; with ``pictures`` a content that holds some stays a list. Arguments of tool calls that are
    JSON text become mappings. Other keys pass through, and null ones are dropped. Raises RowError.
    """
    messages = lookup(row, path)
    if messages is None:
        raise RowError("template", f"the column {path!r} is null or missing in this row; a list of messages is expected")
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
            json.dumps(messages, ensure_ascii=False).encode()  # half a surrogate pair would fail later, far from here
        except (ValueError, RecursionError) as error:
            raise RowError("template", f"the column {path!r} is text, but not the JSON of a list of messages: {error}") from None
    if not isinstance(messages, list) or not messages:
        raise RowError(
            "template", f"the column {path!r} holds {shown_value(messages)}; a list of {{role, content}} with at least one is expected"
        )
    return [_message(message, f"{path}[{index}]", pictures) for index, message in enumerate(messages)]


def _message(message: object, where: str, pictures: bool) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RowError("template", f"{where} is {shown_value(message)}; {{role, content}} is expected, with the role as a string")
    kept = {name: value for name, value in message.items() if value is not None}
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [with_arguments(call) for call in calls]
    content = message.get("content")
    if isinstance(content, list):
        parts = [_part(part, f"{where}.content[{index}]", pictures) for index, part in enumerate(content)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        kept["content"] = "".join(texts) if len(texts) == len(parts) else parts
    elif content is None and kept.get("tool_calls"):
        kept["content"] = None
    elif not isinstance(content, str):
        found = shown_value(content) if "content" in message else "missing"
        raise RowError("template", f"{where}.content is {found}; a string or a list of text parts is expected")
    return kept


def _part(part: object, where: str, pictures: bool) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if isinstance(part, dict) and kind in PICTURE_PARTS:
        if pictures:
            return {name: value for name, value in part.items() if value is not None}
        taken = "pictures take a vision model, and in Python also images=True"
        raise RowError("image", f"{where} is a picture, and only text is read here; {taken}")
    raise RowError("template", f"{where} is {shown_value(part)}; a part {{type: text, text: …}} is expected, or one of a picture")


def shown_value(value: object) -> str:
    """Returns a value as JSON, cut where it is long, for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}…"

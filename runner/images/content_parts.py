"""Messages whose contents are lists of parts, as OpenAI and transformers write them: their pictures, and messages for a chat template.

A part is ``{type: text, text}``, ``{type: image_url, image_url: {url}}``, ``{type: input_image, image_url}`` or ``{type: image}``, which
holds its picture under image, url, path or bytes, as base64, or in a source as Anthropic writes it. One that holds none stands for the next
picture of ``prompt.images``. Reads no pictures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...configs.visible import visible
from ..core.errors import RowError
from .data_urls import digest_of_base64
from .sources import picture_error

Message = dict[str, Any]

_HOLDS = ("image_url", "image", "url", "path", "bytes")  # of a part with a picture: the keys under which that may be


@dataclass(frozen=True, slots=True)
class NamedPicture:
    """What a row says a picture is, and where it says so."""

    value: object
    where: str


@dataclass(frozen=True, slots=True)
class PictureChat:
    """Messages for a chat template, in which ``{type: image}`` stands for each of the ``pictures``, in their order."""

    messages: list[Message]
    pictures: tuple[NamedPicture, ...]


def listed_pictures(value: object, where: str) -> list[NamedPicture]:
    """Returns the pictures of a column: none of null, one of a single value, and those of a list."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [NamedPicture(each, f"{where}[{index}]") for index, each in enumerate(value)]
    return [NamedPicture(value, where)]


def chat_pictures(messages: Sequence[Message], where: str, images: Sequence[NamedPicture]) -> PictureChat:
    """Returns messages with their pictures. where: the name of the messages' column. images: those of ``prompt.images``.

    Where no part of the messages stands for ``images``, they go before the text of the first message of the user. Raises RowError where
    there are more of them than parts, or fewer.
    """
    waiting = iter(images)
    holes = [part for message in messages for part in _picture_parts(message) if part_picture(part) is None]
    if holes and len(holes) != len(images):
        raise _uneven(where, holes, len(images))
    if images and not holes:
        messages = _put_first(messages, len(images))
    pictures: list[NamedPicture] = []
    made: list[Message] = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            made.append(message)
            continue
        parts: list[dict[str, Any]] = []
        for index, part in enumerate(content):
            if part["type"] == "text":
                parts.append(part)
                continue
            own = part_picture(part)
            pictures.append(next(waiting) if own is None else NamedPicture(own, f"{where}[{number}].content[{index}]"))
            parts.append({"type": "image"})
        made.append({**message, "content": parts})
    return PictureChat(made, tuple(pictures))


def _picture_parts(message: Message) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    return (part for part in content if part["type"] != "text") if isinstance(content, list) else iter(())


def part_picture(part: dict[str, Any]) -> object:
    """Returns the picture that a part holds; None where it stands for one of ``prompt.images``."""
    if isinstance(source := part.get("source"), dict):  # as Anthropic writes them
        data, kind = source.get("data"), source.get("media_type") or "image/png"
        return f"data:{kind};base64,{data}" if isinstance(data, str) else source.get("url")
    if isinstance(text := part.get("base64"), str):
        return f"data:image/png;base64,{text}"
    return next((part[name] for name in _HOLDS if part.get(name) is not None), None)


def part_with_digest(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part whose base64 without a data URL, in the places that ``part_picture`` reads, is a digest."""
    source = part.get("source")
    if isinstance(source, dict) and isinstance(data := source.get("data"), str):
        return part | {"source": source | {"data": digest_of_base64(data)}}
    return part | {"base64": digest_of_base64(text)} if isinstance(text := part.get("base64"), str) else part


def _put_first(messages: Sequence[Message], count: int) -> list[Message]:
    made = list(messages)
    index = next((index for index, message in enumerate(made) if message.get("role") == "user"), None)
    if index is None:
        raise picture_error(f"the row has {count} pictures and no message of the user to put them into; give one")
    content = made[index].get("content")
    text = content if isinstance(content, list) else [{"type": "text", "text": content}]
    made[index] = {**made[index], "content": [{"type": "image"}] * count + text}
    return made


def _uneven(where: str, holes: list[dict[str, Any]], images: int) -> RowError:
    count = len(holes)
    parts = f"{count} part{'s' * (count != 1)} of the type image without a picture of {'its' if count == 1 else 'their'} own"
    if strange := next((part for part in holes if part.keys() - {"type", "detail"}), None):
        keys = visible(", ".join(map(str, strange))[:120])
        cure = f"the picture of a part is under {', '.join(_HOLDS[:-1])} or {_HOLDS[-1]}"
        return picture_error(f"{where} has {parts}: one has the keys {keys}; {cure}")
    if not images:
        return picture_error(f"{where} has {parts}, and the row brings none beside its messages; put one into each part")
    return picture_error(f"{where} has {parts}, and prompt.images gives {images} picture{'s' * (images != 1)}; expected one for each part")

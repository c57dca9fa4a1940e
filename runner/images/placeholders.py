"""Encodes prompts with pictures: finds where the template placed them, fills in their texts, and gives their tokens ids of their own.

A place is one that the template wrote. Text of a row that spells a placeholder is text: it is marked before the template sees it, and
is encoded in two pieces, which are no token together.

    template     a <image> b        shown      a <image> b
    expanded     a [ i i i ] b      ids        a [ 1<<24 … ] b       i: the token that carries a feature
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Ids
from ..core.errors import DataError, ModelError, RowError
from ..core.images import ImageTable, PromptImage
from ..core.requests import Prompt
from ..text.tokenizer import NOTHING, Tokenizer
from .content_parts import Message, NamedPicture, chat_pictures
from .pictures import read_picture
from .processors import ImageProcessor, PictureLayout
from .sources import PictureSources, picture_error

_MARK = "\ufdd0"  # no character: Unicode keeps it for a program's own use
_REMEMBERED = 1 << 16  # pictures that need not be decoded again to know that they can be
_PROBE = "qzx"


@dataclass(frozen=True, slots=True)
class _Placed:
    """A picture in a prompt."""

    image: PromptImage
    layout: PictureLayout


class PictureEncoder:
    """Encodes prompts with pictures for one checkpoint. most_pixels: of a picture."""

    def __init__(self, tokenizer: Tokenizer, processor: ImageProcessor, sources: PictureSources, most_pixels: int):
        self._tokenizer, self._processor = tokenizer, processor
        self._sources, self._most_pixels = sources, most_pixels
        self._layouts: OrderedDict[str, PictureLayout] = OrderedDict()
        self.table = ImageTable(processor.placeholder)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        prefill: str,
        variables: Mapping[str, Any],
        where: str,
        images: Sequence[NamedPicture],
        beside: Path,
    ) -> Prompt:
        """Encodes a chat up to the assistant's turn. Raises RowError.

        where: the column of the messages, for messages about them. images: those of ``prompt.images``. beside: the row's folder.
        """
        chat = chat_pictures(messages, where, images)
        if chat.pictures and not self._takes_pictures:
            raise picture_error("the model's chat template has no place for pictures; set prompt.chat_template to one that has")
        turns = chat.messages if self._takes_strings else [_as_parts(message) for message in chat.messages]
        placed = [self._placed(picture, beside) for picture in chat.pictures]
        text = self._tokenizer.chat_text(self._marked(turns), self._marked(prefill), variables)
        return self._prompt(text, placed, "the chat template", raw=False)

    def raw_prompt(self, render: Callable[[Any], str], columns: dict[str, Any], images: Sequence[NamedPicture], beside: Path) -> Prompt:
        """Encodes a raw text, in which the template itself says where pictures stand. render: from columns to text. Raises RowError."""
        text = render(columns)
        marked = self._marked(columns)
        if marked != columns and self._unmarked(spelled := render(marked)) == text:  # else the template changes what rows spell
            text = spelled
        return self._prompt(text, [self._placed(picture, beside) for picture in images], "prompt.text", raw=True)

    # ------------------------------------------------------------------------------------------------------ pictures

    def _placed(self, picture: NamedPicture, beside: Path) -> _Placed:
        """Returns a picture that can be decoded, with its ids. Raises RowError."""
        source = self._sources.source(picture.value, picture.where, beside)
        data = source.read()
        contents = sha256(data).hexdigest()
        digest = sha256(f"{contents} {self._processor.settings}".encode()).hexdigest()
        layout = self._layouts.pop(digest, None)
        if layout is None:
            layout = self._processor.layout(read_picture(data, source.name, self._most_pixels), source.name)
        self._layouts[digest] = layout
        if len(self._layouts) > _REMEMBERED:
            self._layouts.popitem(last=False)
        kept, name = None if source.path else data, source.name

        def inputs() -> dict[str, NDArray[Any]]:
            try:
                found = source.read() if kept is None else kept
                if kept is None and sha256(found).hexdigest() != contents:
                    raise DataError(f"{name} changed while the run read it; put it back, and start the run again")
                return self._processor.inputs(read_picture(found, name, self._most_pixels), name)
            except RowError as error:
                raise DataError(str(error)) from error

        return _Placed(self.table.register(digest, layout.tokens, layout.grid, inputs), layout)

    # ---------------------------------------------------------------------------------------------------- text to ids

    def _prompt(self, text: str, placed: Sequence[_Placed], who: str, *, raw: bool) -> Prompt:
        """Encodes a rendered text, whose unmarked placeholders are the places of ``placed``. who: wrote them."""
        token = self._processor.image_token
        between = text.split(token)
        if len(between) - 1 != len(placed):
            raise self._miscounted(len(between) - 1, len(placed), who)
        spans, expanded, shown = list[tuple[int, int, int]](), "", ""
        for part, picture in zip(between, [*placed, None], strict=True):
            expanded, shown = expanded + part, shown + self._unmarked(part)
            if picture is not None:
                spans.append((len(self._unmarked(expanded)), len(picture.layout.text), len(shown)))
                expanded, shown = expanded + picture.layout.text, shown + token
        ids, starts = self._encoded(expanded, raw)
        own = np.flatnonzero(ids == self._processor.placeholder)
        pictures = np.concatenate([np.zeros(0, np.int32), *(picture.image.ids for picture in placed)])
        if len(own) != len(pictures):
            found = f"{len(own)} tokens {self._processor.feature_token}"
            raise ModelError(f"model.path: the tokenizer gives {found} for pictures of {len(pictures)}; tokenizer and processor do not fit")
        ids[own] = pictures
        return Prompt(shown, ids, _shown_starts(starts, spans, len(token)), tuple(picture.image for picture in placed))

    def _encoded(self, text: str, raw: bool) -> tuple[Ids, Ids]:
        """Returns ids and the code points at which they start in the unmarked text. Pieces meet inside of what rows spell."""
        first, *others = self._pieces(text)
        whole = self._tokenizer.encode(first) if raw else self._tokenizer.encode_text(first)
        if not others:
            return whole.ids.copy(), whole.offsets
        begin = self._tokenizer.encode_prefix(first) if raw else whole
        ids, starts, at = [begin.ids], [begin.offsets], len(first)
        for piece in others:
            encoded = self._tokenizer.encode_text(piece)
            ids.append(encoded.ids)
            starts.append(encoded.offsets + np.int32(at))
            at += len(piece)
        end = whole.ids[len(begin.ids) :]  # the special tokens after a text, where there are any
        return np.concatenate([*ids, end]), np.concatenate([*starts, np.full(len(end), at, np.int32)])

    def _pieces(self, text: str) -> list[str]:
        return re.split("|".join(f"(?<={re.escape(token[0])}){_MARK}(?={re.escape(token[1:])})" for token in self._tokens), text)

    def _miscounted(self, places: int, pictures: int, who: str) -> RowError:
        token = self._processor.image_token
        if places < pictures and who == "prompt.text":
            cure = f"write {token} into prompt.text where a picture stands (text of a row that spells it is text)"
        elif places < pictures:
            cure = "its template leaves pictures of this role out"
        else:
            cure = "give each a picture, or take it out"
        verb = f"{who} has {places} place{'s' * (places != 1)} for pictures ({token})"
        return picture_error(f"{verb}, and the row {pictures} picture{'s' * (pictures != 1)}; {cure}")

    # ---------------------------------------------------------------------------------------------------------- marks

    @cached_property
    def _tokens(self) -> tuple[str, ...]:
        return tuple({self._processor.image_token, self._processor.feature_token})

    @staticmethod
    def _mark(token: str) -> str:
        return token[0] + _MARK + token[1:]

    def _marked(self, value: Any) -> Any:
        """Returns a value in whose texts each spelled placeholder is marked."""
        if isinstance(value, str):
            for token in self._tokens:
                value = value.replace(token, self._mark(token))
            return value
        if isinstance(value, dict):
            return {name: self._marked(inner) for name, inner in value.items()}
        return [self._marked(inner) for inner in value] if isinstance(value, list) else value

    def _unmarked(self, text: str) -> str:
        for token in self._tokens:
            text = text.replace(self._mark(token), token)
        return text

    # ------------------------------------------------------------------------------------------------------- template

    @cached_property
    def _takes_strings(self) -> bool:
        """False where the chat template shows contents that are lists of parts only."""
        return _PROBE in self._probed(_PROBE) or _PROBE not in self._probed([{"type": "text", "text": _PROBE}])

    @cached_property
    def _takes_pictures(self) -> bool:
        shown = self._probed([{"type": "image"}, {"type": "text", "text": _PROBE}])
        return self._processor.image_token in shown and _PROBE in shown

    def _probed(self, content: object) -> str:
        try:
            return self._tokenizer.chat_text([{"role": "user", "content": content}], "", NOTHING)
        except RowError:
            return ""


def _as_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _shown_starts(starts: Ids, spans: Sequence[tuple[int, int, int]], token: int) -> Ids:
    """Returns where tokens start in the text that shows one placeholder a picture.

    spans: of each picture, where its text begins in the expanded text, how long it is, and where it is shown. token: its length there.
    """
    found = starts.copy()
    for begin, length, shown in spans:
        inside, after = (starts >= begin) & (starts < begin + length), starts >= begin + length
        found[inside] = shown
        found[after] = starts[after] - (begin + length) + shown + token
    return found

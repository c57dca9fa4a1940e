"""Makes prompts with pictures: reads what a row names, places it by the chat template or the row's own text, and gives it ids.

One encoder serves one checkpoint. It remembers which pictures can be decoded, and keeps nothing of their pixels.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..core.errors import DataError, RowError
from ..core.images import ImageTable, PromptImage
from ..text.assistant_spans import AssistantTurns
from ..text.tokenizer import NOTHING, Tokenizer
from .content_parts import Message, NamedPicture, chat_pictures
from .picture_text import RAW, PictureText, PlacedPicture, PlaceMarks
from .pictures import pillow, pixels_file, read_picture
from .processors import ImageProcessor, Size
from .sources import PictureSource, PictureSources, picture_error

_REMEMBERED = 1 << 11  # pictures that need not be decoded again to know that they can be
_PROBE = "qzx"


class PictureEncoder:
    """Encodes prompts with pictures for one checkpoint. most_pixels: of a picture."""

    def __init__(self, tokenizer: Tokenizer, processor: ImageProcessor, sources: PictureSources, most_pixels: int):
        self._tokenizer, self._processor = tokenizer, processor
        self._sources, self._most_pixels = sources, most_pixels
        self._sizes: OrderedDict[str, Size] = OrderedDict()
        self._marks = PlaceMarks(processor.image_token, processor.feature_token)
        self.table = ImageTable(processor.placeholder)

    @property
    def settings(self) -> str:
        """A digest of all that decides which pixels a picture becomes."""
        return self._processor.settings

    def chat_text(
        self,
        messages: Sequence[Message],
        prefill: str,
        variables: Mapping[str, Any],
        where: str,
        images: Sequence[NamedPicture],
        beside: Path,
    ) -> PictureText:
        """Renders a chat up to the assistant's turn. Raises RowError.

        where: the column of the messages, for messages about them. images: those of ``prompt.images``. beside: the row's folder.
        """
        turns, placed = self._chat(messages, where, images, beside)
        text = self._tokenizer.chat_text(turns, self._marks.marked(prefill), variables)
        return self._text(text, placed, "the chat template", raw=False)

    def whole_chat(self, messages: Sequence[Message], where: str, images: Sequence[NamedPicture], beside: Path) -> AssistantTurns:
        """Encodes a whole chat, with the assistant's turns that its template marks. Arguments as in ``chat_text``. Raises RowError."""
        turns, placed = self._chat(messages, where, images, beside)
        text, spans = self._tokenizer.turns_text(turns)
        return self._text(text, placed, "the chat template", raw=False).turns(spans)

    def _chat(
        self, messages: Sequence[Message], where: str, images: Sequence[NamedPicture], beside: Path
    ) -> tuple[list[Message], list[PlacedPicture]]:
        """Returns marked messages for the chat template, and their pictures."""
        chat = chat_pictures(messages, where, images)
        if chat.pictures and not self._takes_pictures:
            raise picture_error("the model's chat template has no place for pictures; set prompt.chat_template to one that has")
        turns = chat.messages if self._takes_strings else [_as_parts(message) for message in chat.messages]
        return self._marks.marked(turns), self._all_placed(chat.pictures, beside)

    def raw_text(self, render: Callable[[Any], str], columns: dict[str, Any], images: Sequence[NamedPicture], beside: Path) -> PictureText:
        """Renders a raw text, in which the template itself says where pictures stand. render: from columns to text. Raises RowError."""
        text, marked = render(columns), self._marks.marked(columns)
        if marked != columns and (spelled := self._marks.marked_as(render(marked), text)) is not None:
            text = spelled  # else the template changes what rows spell
        return self._text(text, self._all_placed(images, beside), RAW, raw=True)

    def picture(self, picture: NamedPicture, beside: Path) -> PromptImage:
        """Returns a picture that is a row of its own. Raises RowError."""
        return self._placed(picture, beside, several=False).image

    def _text(self, marked: str, placed: Sequence[PlacedPicture], who: str, *, raw: bool) -> PictureText:
        return PictureText(marked, tuple(placed), self._tokenizer, self._marks, self._processor.placeholder, who, raw)

    def _all_placed(self, pictures: Sequence[NamedPicture], beside: Path) -> list[PlacedPicture]:
        several = len(pictures) > 1 and self._processor.counts_pictures
        return [self._placed(picture, beside, several) for picture in pictures]

    def _placed(self, picture: NamedPicture, beside: Path, several: bool) -> PlacedPicture:
        """Returns a picture that can be decoded, with its ids. several: its prompt has more, and that matters. Raises RowError."""
        source = self._source(picture, beside)
        data = source.read()
        contents = sha256(data).hexdigest()
        digest = sha256(f"{contents} {self._processor.settings}{' several' if several else ''}".encode()).hexdigest()
        size = self._sizes.pop(digest, None)
        layout = None if size is None else self._processor.known_layout(size, several=several)
        if size is None or layout is None:
            image = read_picture(data, source.name, self._most_pixels)
            size, layout = image.size, self._processor.layout(image, source.name, several=several)
        self._sizes[digest] = size
        if len(self._sizes) > _REMEMBERED:
            self._sizes.popitem(last=False)
        kept = None if source.lasting else data
        inputs = partial(self._inputs, source, kept, contents, several)
        return PlacedPicture(self.table.register(digest, layout.tokens, layout.grid, inputs), layout)

    def _source(self, picture: NamedPicture, beside: Path) -> PictureSource:
        """Returns where a picture's bytes are. An image of Pillow's, which a program may give, is as good as a file. Raises RowError."""
        value: Any = picture.value
        where = picture.where
        if isinstance(value, pillow().Image):
            return PictureSource(where, partial(pixels_file, value, where, self._most_pixels), lasting=True)
        return self._sources.source(value, where, beside)

    def _inputs(self, source: PictureSource, kept: bytes | None, contents: str, several: bool) -> dict[str, NDArray[Any]]:
        """Returns what the tower takes of a picture, made anew. Raises DataError.

        kept: its bytes, None where they are read again. contents: their sha256.
        """
        try:
            found = source.read() if kept is None else kept
            if kept is None and sha256(found).hexdigest() != contents:
                raise DataError(f"{source.name} changed while the run read it; put it back as it was, then run again with --retry-errors")
            return self._processor.inputs(read_picture(found, source.name, self._most_pixels), source.name, several=several)
        except RowError as error:
            raise DataError(str(error)) from error

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

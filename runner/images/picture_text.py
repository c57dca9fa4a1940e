"""A prompt's text with the places of its pictures, and the ids that it becomes. Finds only places that a template wrote.

Text of a row that spells a placeholder is text. It is marked before a template sees it, and encoded in two pieces that are no token
together.

    marked       a <image> b •image>       shown   a <image> b <image>
    expanded     a [ i i i ] b <|image>    ids     a [ 1<<24 … ] b < image>      i: the token that carries a feature
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from ..core.arrays import Ids
from ..core.errors import ModelError, RowError
from ..core.images import PromptImage
from ..core.requests import Prompt
from ..text.assistant_spans import AssistantTurns, Span, token_spans, without_special
from ..text.tokenizer import Tokenizer
from .processors import PictureLayout
from .sources import picture_error

RAW = "prompt.text"  # writes the places where no chat template does
_MARK = "\ufdd0"  # no character: Unicode keeps it for a program's own use


@dataclass(frozen=True)
class PlaceMarks:
    """Marks what spells a placeholder: in the place of its first character, so that a template which cuts text cuts it as ever.

    image_token: by which a template says where a picture stands. feature_token: carries a feature.
    """

    image_token: str
    feature_token: str

    def marked(self, value: Any) -> Any:
        """Returns a value in whose texts, however deep, each spelled placeholder is marked."""
        if isinstance(value, str):
            for token in self._tokens:
                value = value.replace(token, _marked(token))
            return value
        if isinstance(value, dict):
            return {name: self.marked(inner) for name, inner in value.items()}
        return [self.marked(inner) for inner in value] if isinstance(value, list) else value

    def unmarked(self, text: str) -> str:
        """Returns a text without marks."""
        for token in self._tokens:
            text = text.replace(_marked(token), token)
        return text

    def marked_as(self, rendered: str, text: str) -> str | None:
        """Returns ``text`` with the marks of ``rendered``, where these differ in marks alone; else None.

        A mark whose placeholder was cut is none: what is left of it spells nothing.
        """
        if len(rendered) != len(text):
            return None
        made = self._lone.sub(lambda found: text[found.start()], rendered)
        return made if self.unmarked(made) == text else None

    def pieces(self, text: str) -> list[str]:
        """Returns a marked text without marks, cut behind the first character of what was marked."""
        for token in self._tokens:
            text = text.replace(_marked(token), f"{token[0]}{_marked(token)}")
        return self._cut.split(text)

    @cached_property
    def _tokens(self) -> tuple[str, ...]:
        return tuple({self.image_token, self.feature_token})

    @cached_property
    def _lone(self) -> re.Pattern[str]:
        return re.compile(f"{_MARK}(?!{'|'.join(re.escape(token[1:]) for token in self._tokens)})")

    @cached_property
    def _cut(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?<={re.escape(token[0])}){_MARK}(?={re.escape(token[1:])})" for token in self._tokens))


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """A picture in a prompt: its ids, and what fills its place."""

    image: PromptImage
    layout: PictureLayout


@dataclass(frozen=True, slots=True)
class PictureText:
    """A rendered text, marked, with the pictures of its places in their order.

    placeholder: the id that carries a feature. who: wrote the places, for messages. raw: no chat template wrote it, so that the tokenizer
    adds its special tokens.
    """

    marked: str
    pictures: tuple[PlacedPicture, ...]
    tokenizer: Tokenizer
    marks: PlaceMarks
    placeholder: int
    who: str
    raw: bool

    @property
    def shown(self) -> str:
        """The text with one placeholder a picture."""
        return self.marks.unmarked(self.marked)

    @property
    def images(self) -> tuple[PromptImage, ...]:
        """The pictures."""
        return tuple(picture.image for picture in self.pictures)

    def followed_by(self, text: str) -> Self:
        """Returns the text without white space at its end, and with a row's ``text`` behind it."""
        return replace(self, marked=self.marked.rstrip() + self.marks.marked(text))

    def prompt(self, *, open_end: bool = False) -> Prompt:
        """Returns the text's ids. open_end: no special tokens at the end, as more text follows. Raises RowError, ModelError."""
        token = self.marks.image_token
        between = self.marked.split(token)
        if len(between) - 1 != len(self.pictures):
            raise self._miscounted(len(between) - 1)
        spans, expanded, begin, shown = list[tuple[int, int, int]](), list[str](), 0, 0
        for part, picture in zip(between, [*self.pictures, None], strict=True):
            length = len(self.marks.unmarked(part))
            begin, shown = begin + length, shown + length
            expanded.append(part)
            if picture is not None:
                filling = picture.layout.text
                spans.append((begin, len(filling), shown))
                begin, shown = begin + len(filling), shown + len(token)
                expanded.append(filling)
        ids, starts = self._encoded("".join(expanded), open_end)
        own = np.flatnonzero(ids == self.placeholder)
        pictures = np.concatenate([np.zeros(0, np.int32), *(image.ids for image in self.images)])
        if len(own) != len(pictures):
            found = f"{len(own)} tokens {self.marks.feature_token}"
            raise ModelError(f"model.path: the tokenizer gives {found} for pictures of {len(pictures)}; tokenizer and processor do not fit")
        ids[own] = pictures
        return Prompt(self.shown, ids, _shown_starts(starts, spans, len(token)), self.images)

    def turns(self, spans: Sequence[Span]) -> AssistantTurns:
        """Returns a chat's ids, with the assistant's turns. spans: these in the marked text. Raises RowError, also for a picture in one."""
        for turn, (start, end) in enumerate(spans, 1):
            if self.marks.image_token in self.marked[start:end]:
                cure = "give the picture to a turn of the user's, or leave it out"
                raise picture_error(f"the assistant's turn {turn} holds a picture, whose tokens have no logprobs; {cure}")
        prompt = self.prompt()
        tokens = token_spans(self.marked, prompt.ids, spans, self._beginning)
        shown = tuple((len(self.marks.unmarked(self.marked[:start])), len(self.marks.unmarked(self.marked[:end]))) for start, end in spans)
        return AssistantTurns(prompt, shown, tokens, without_special(prompt, shown, self.tokenizer.special))

    def _beginning(self, marked: str) -> Ids:
        """Returns the ids of a beginning of the marked text."""
        pictures = self.pictures[: marked.count(self.marks.image_token)]
        return replace(self, marked=marked, pictures=pictures).prompt().ids

    def _encoded(self, text: str, open_end: bool) -> tuple[Ids, Ids]:
        """Returns ids of a marked text, and the code points at which they start without marks."""
        first, *others = self.marks.pieces(text)
        closed = self.tokenizer.encode if self.raw else self.tokenizer.encode_text
        opened = self.tokenizer.encode_prefix if self.raw else self.tokenizer.encode_text
        begin = opened(first) if others or open_end else closed(first)
        ids, starts, at = [begin.ids], [begin.offsets], len(first)
        for piece in others:
            encoded = self.tokenizer.encode_text(piece)
            ids.append(encoded.ids)
            starts.append(encoded.offsets + np.int32(at))
            at += len(piece)
        if others and not open_end:  # the special tokens after a text, where there are any
            ids.append(closed(first).ids[len(begin.ids) :])
            starts.append(np.full(len(ids[-1]), at, np.int32))
        return np.concatenate(ids), np.concatenate(starts)

    def _miscounted(self, places: int) -> RowError:
        token, pictures = self.marks.image_token, len(self.pictures)
        if places < pictures and self.who == RAW:
            cure = f"write {token} where it stands (a row's own text that spells it is text), or use prompt.user, which places it"
        elif places < pictures:
            cure = "the template leaves pictures out where this row has them"
        else:
            cure = "give each a picture, or take it out"
        found = f"{self.who} has {places} place{'s' * (places != 1)} for pictures ({token})"
        return picture_error(f"{found}, but the row has {pictures} picture{'s' * (pictures != 1)}; {cure}")


def _marked(token: str) -> str:
    return _MARK + token[1:]


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

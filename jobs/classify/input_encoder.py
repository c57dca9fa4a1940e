"""Encodes texts, pairs and chats as a classifier reads them, and cuts those that are longer than the model's most tokens.

A text or pair goes through the tokenizer's own template for it, a chat through the chat template without further special tokens.
Knows no rows and no settings but the two of length.
"""

from copy import copy
from functools import cached_property
from typing import Any, Literal

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.requests import TokenInput
from ...runner.templates.chat_messages import Message
from ...runner.text.tokenizer import Tokenizer

Cut = Literal["auto", "error", "truncate_left", "truncate_right"]

_FILLERS = ("0", "1 2 3 4")  # contents of messages that share no token: what both chats end with is the template's


class InputEncoder:
    """Encodes a model's inputs. limit: most tokens of one; None without. types: the model has token types, so that pairs bring them.

    Each method returns the input and whether it was cut. All raise RowError for an input without any token, and for one that is too
    long and must not be cut.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int | None, too_long: Cut, types: bool):
        self._tokenizer, self._limit, self._too_long = tokenizer, limit, too_long
        self._types = types and "token_type_ids" in tokenizer.hf.model_input_names

    @property
    def takes_chats(self) -> bool:
        """Whether there is a chat template."""
        return self._tokenizer.has_chat_template

    def text(self, text: str) -> tuple[TokenInput, bool]:
        """Encodes one text, with the special tokens that the tokenizer adds. A BOS that the text brings is not doubled."""
        ids = self._tokenizer.encode(text).ids
        if not self._beyond(len(ids), "the text", cut_by_default=True):
            return _input(ids, None, "the text"), False
        ids, _ = self._encoded(text, None, self._limit)
        if len(ids) > 1 and ids[0] == ids[1] == self._tokenizer.bos:
            ids = ids[1:]
        return _input(ids, None, "the text"), True

    def pair(self, first: str, second: str) -> tuple[TokenInput, bool]:
        """Encodes a pair as transformers' ``tokenizer(first, second)`` does. Of a pair that is too long the longer text is cut first."""
        ids, types = self._encoded(first, second, None)
        cut = self._beyond(len(ids), "the pair", cut_by_default=True)
        if cut:
            ids, types = self._encoded(first, second, self._limit)
        return _input(ids, types if self._types and types.any() else None, "the pair"), cut

    def chat(self, messages: list[Message], variables: dict[str, Any], prefill: str = "", *, pair: bool = False) -> tuple[TokenInput, bool]:
        """Encodes a chat through the chat template. A cut on the right leaves what the template ends all such chats with.

        variables: the template's, such as add_generation_prompt. prefill: follows the chat's text. pair: the chat is made of a pair.
        """
        noun = "the pair" if pair else "the chat"
        if not pair:
            self._tokenizer.roles.require_known(messages)
        ids = self._rendered(messages, variables, prefill)
        if self._limit is None or not self._beyond(len(ids), noun, cut_by_default=pair):
            return _input(ids, None, noun), False
        if self._too_long == "truncate_left":
            ids = self._last(ids, self._limit)
        else:
            end = self._ending(messages, variables, prefill)[-self._limit :]
            ids = np.concatenate([ids[: self._limit - len(end)], end])
        return _input(ids, None, noun), True

    def _rendered(self, messages: list[Message], variables: dict[str, Any], prefill: str) -> Ids:
        return self._tokenizer.encode_text(self._tokenizer.messages_text(messages, **variables) + prefill).ids

    def _ending(self, messages: list[Message], variables: dict[str, Any], prefill: str) -> Ids:
        """Returns the ids that end every chat of these roles and this system turn: an end of turn, a generation prompt, a prefill.

        sentence-transformers finds and keeps them in the same way.
        """
        chats = [[each if each["role"] == "system" else _filled(each, filler) for each in messages] for filler in _FILLERS]
        one, other = (self._rendered(chat, variables, prefill) for chat in chats)
        shorter = min(len(one), len(other))
        same = one[len(one) - shorter :] == other[len(other) - shorter :]
        count = shorter if same.all() else int(np.argmin(same[::-1]))
        return one[len(one) - count :] if count < shorter else one[:0]

    def _last(self, ids: Ids, keep: int) -> Ids:
        """Returns the last ``keep`` ids; a BOS at the beginning replaces the first of them."""
        last = ids[len(ids) - keep :].copy()
        if keep > 1 and ids[0] == self._tokenizer.bos:
            last[0] = ids[0]
        return last

    def _beyond(self, tokens: int, noun: str, *, cut_by_default: bool) -> bool:
        """Returns whether an input must be cut. Raises RowError where it may not be."""
        if self._limit is None or tokens <= self._limit:
            return False
        if self._too_long == "error" or (self._too_long == "auto" and not cut_by_default):
            cure = "shorten it, or set classify.too_long to truncate_left or truncate_right"
            raise RowError("too_long", f"{noun} has {tokens:,} tokens, and the model takes {self._limit:,}; {cure}")
        return True

    def _encoded(self, first: str, second: str | None, limit: int | None) -> tuple[Ids, Ids]:
        """Returns ids and token types with special tokens, cut to ``limit`` as transformers' ``longest_first`` cuts."""
        if not self._tokenizer.plain:
            hf, settings = self._side, {} if limit is None else {"truncation": "longest_first", "max_length": limit}
            found = hf([first if second is None else (first, second)], return_token_type_ids=True, verbose=False, **settings)
            return np.array(found["input_ids"][0], np.int32), np.array(found["token_type_ids"][0], np.int32)
        backend = self._tokenizer.hf.backend_tokenizer if limit is None else self._cutting
        one: Encoding = backend.encode(first, second)
        return np.array(one.ids, np.int32), np.array(one.type_ids, np.int32)

    @cached_property
    def _cutting(self) -> Backend:
        """A copy of the tokenizer that cuts: a setting of the copy that others use would change under them."""
        assert self._limit is not None, "without a limit nothing is cut"
        backend = Backend.from_str(self._tokenizer.definition)
        backend.enable_truncation(self._limit, strategy="longest_first", direction=self._direction)
        return backend

    @cached_property
    def _side(self) -> Any:
        """The Hugging Face tokenizer with the side on which it cuts."""
        hf = copy(self._tokenizer.hf)
        hf.truncation_side = self._direction
        return hf

    @property
    def _direction(self) -> str:
        return "left" if self._too_long == "truncate_left" else "right"


def _filled(message: dict[str, Any], filler: str) -> dict[str, Any]:
    """Returns a message with another content, in the form of its own."""
    return message | {"content": [{"type": "text", "text": filler}] if isinstance(message.get("content"), list) else filler}


def _input(ids: Ids, types: Ids | None, noun: str) -> TokenInput:
    if not len(ids):
        raise RowError("tokenize", f"{noun} is empty: it has no token that the model could read; expected a text")
    return TokenInput(ids, types)

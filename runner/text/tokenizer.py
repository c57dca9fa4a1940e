"""Turns text into token ids and back, with chat templates and offsets.

Wraps the checkpoint's Hugging Face tokenizer. Offsets count code points of the text; tokens inside one character share its start.
Knows no datasets and no models.

    text      " caf" "é"            ids  [5821, 131, 103]   é is two bytes, each a token
    offsets      0     4  4
"""

from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType
from typing import Any

import numpy as np

from ...configs.visible import visible
from ..core.arrays import Ids
from ..core.errors import ModelError, RowError, first_line
from ..core.requests import Prompt, Sampling
from ..templates.chat_rendering import Span, render_chat, render_turns
from .assistant_spans import AssistantTurns, assistant_turns, marks_turns
from .chat_template_check import read_template, try_template, uses_jinja, with_processor_template
from .message_roles import MessageRoles
from .stop_strings import BROKEN, StopStrings
from .token_offsets import BYTE_TOKEN, piece_starts, token_starts, vocabulary_bytes
from .tokenizer_compat import decodes_plainly, encodes_plainly, tokenizer_difference

NOTHING: Mapping[str, Any] = MappingProxyType({})
FILES = ("token*", "vocab*", "*.tiktoken")
_VOCABULARIES = ("tokenizer.json", "tekken.json", "*vocab*", "*.model", "*.spm", "*.tiktoken")


class Tokenizer:
    """A checkpoint's tokenizer. ``chat_template`` replaces its own; ``template_args`` are variables for the template."""

    def __init__(self, hf: Any, chat_template: str | None = None, template_args: dict[str, Any] | None = None):
        self._hf = hf
        self._template = chat_template
        self._template_args = template_args or {}
        # decode() drops all tokens that tokenizer.json marks as special, which can be more than the named ones.
        self.special = frozenset(hf.all_special_ids) | {i for i, token in hf.added_tokens_decoder.items() if token.special}
        self.plain = False  # whether its tokenizers library alone encodes, and changes no text first
        self.roles = MessageRoles(lambda text: text in self.template_text, self.messages_text)
        self._encode("", special=False)  # sets truncation and padding: later calls only read, so threads may share it
        self.plain = hf.is_fast and encodes_plainly(type(hf))

    @property
    def hf(self) -> Any:
        """The Hugging Face tokenizer, for those who read what else a checkpoint says about its answers."""
        return self._hf

    @property
    def template_text(self) -> str:
        """The chat template in use; where the tokenizer has several, all of them; empty without any."""
        own = self._template or self._hf.chat_template or ""
        return own if isinstance(own, str) else "\n".join(own.values())

    @property
    def eos(self) -> frozenset[int]:
        """The tokenizer's own EOS; empty if it has none."""
        return frozenset() if self._hf.eos_token_id is None else frozenset([int(self._hf.eos_token_id)])

    @property
    def bos(self) -> int | None:
        """The token that begins a text; None if the tokenizer has none."""
        return self._hf.bos_token_id

    @property
    def size(self) -> int:
        """The number of tokens, with added ones."""
        return len(self._hf)

    @property
    def fast(self) -> bool:
        """True where a tokenizer.json says all of it."""
        return bool(self._hf.is_fast)

    @property
    def definition(self) -> str:
        """A fast tokenizer as its tokenizer.json says it, without padding and truncation."""
        plain = copy(self._hf.backend_tokenizer)
        plain.no_padding()
        plain.no_truncation()
        return plain.to_str()

    @property
    def chat_template(self) -> str | None:
        """The template that replaces the tokenizer's own, or None."""
        return self._template

    @property
    def has_chat_template(self) -> bool:
        """True when messages can be rendered."""
        return self._template is not None or self._hf.chat_template is not None

    @property
    def marks_turns(self) -> bool:
        """True when the chat template marks the assistant's text."""
        return self.has_chat_template and marks_turns(self._hf.get_chat_template(self._template))

    def difference(self, other: "Tokenizer") -> str | None:
        """Says how ``other`` maps text to different ids, or returns None if both give the same ids."""
        return tokenizer_difference(self._hf, other._hf)

    def encode(self, text: str) -> Prompt:
        """Encodes raw text, with the special tokens that the tokenizer adds. A BOS that the text brings is not doubled."""
        ids, offsets = self._encode(text, special=True)
        if len(ids) > 1 and ids[0] == ids[1] == self.bos:
            ids, offsets = ids[1:], offsets[1:]
        return Prompt(text, ids, offsets)

    def encode_prefix(self, text: str) -> Prompt:
        """Encodes raw text that more text follows: like ``encode``, but without special tokens at the end."""
        prompt = self.encode(text)
        end = len(prompt.ids) - self._suffix_length
        return Prompt(text, prompt.ids[:end], prompt.offsets[:end])

    def encode_text(self, text: str) -> Prompt:
        """Encodes text alone, without special tokens except those that it contains."""
        return Prompt(text, *self._encode(text, special=False))

    def turns_text(self, messages: list[dict[str, Any]]) -> tuple[str, tuple[Span, ...]]:
        """Returns a whole chat's text, and the assistant's turns that its template marks. Raises RowError if that refuses the messages."""
        self.roles.require_known(messages)
        return render_turns(self._hf.get_chat_template(self._template), messages, self._variables)

    def encode_turns(self, messages: list[dict[str, Any]]) -> AssistantTurns:
        """Encodes such a chat. Raises RowError also if a turn begins or ends inside a token."""
        return assistant_turns(*self.turns_text(messages), self.encode_text, self.special)

    def encode_chat(self, messages: list[dict[str, Any]], prefill: str, variables: Mapping[str, Any] = NOTHING) -> Prompt:
        """Encodes messages up to the beginning of the assistant's turn, followed by ``prefill``. Raises as ``chat_text``."""
        return self.encode_text(self.chat_text(messages, prefill, variables))

    def chat_text(self, messages: list[dict[str, Any]], prefill: str, variables: Mapping[str, Any] = NOTHING) -> str:
        """Returns the text of such a prompt. Raises RowError if the template refuses the messages (roles must alternate, say).

        variables: this prompt's own, such as ``tools``; they go before the tokenizer's ``template_args``.
        """
        self.roles.require_known(messages)
        if not self._uses_jinja:
            return self._own_chat_text(messages, add_generation_prompt=True, **variables) + prefill
        known = {"add_generation_prompt": True, **self._variables, **variables}
        return render_chat(self._hf.get_chat_template(self._template, known.get("tools")), messages, known) + prefill

    def messages_text(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Returns messages as text, with the template's own ``variables`` (add_generation_prompt, …). Raises as ``chat_text``."""
        if not self._uses_jinja:
            return self._own_chat_text(messages, **variables)
        return render_chat(self._hf.get_chat_template(self._template), messages, {**self._variables, **variables})

    def _own_chat_text(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Returns the text that a tokenizer of another kind makes by code of its own."""
        try:
            return str(self._hf.apply_chat_template(messages, tokenize=False, **{**self._template_args, **variables}))
        except Exception as error:
            raise RowError("template", f"the chat template refuses the messages: {error}") from error

    @cached_property
    def _uses_jinja(self) -> bool:
        return uses_jinja(self._hf)

    @cached_property
    def _variables(self) -> dict[str, Any]:
        """What a chat template can use beside the messages."""
        return {**self._hf.special_tokens_map, **self._template_args}

    def _encode(self, text: str, special: bool) -> tuple[Ids, Ids]:
        if not self._hf.is_fast:
            ids = np.array(self._hf.encode(text, add_special_tokens=special), np.int32)
            return ids, self.offsets(ids)
        if self.plain and self._bytes is not None:
            one = self._hf.backend_tokenizer.encode_batch_fast([text], add_special_tokens=special)[0]  # fast: without offsets
            if (found := self._placed(text, one.ids, one.special_tokens_mask if special else None)) is not None:
                return found
        ids, added, offsets = self._encoded(text, special)
        return self._placed(text, ids, added) or (np.array(ids, np.int32), np.array([start for start, _ in offsets], np.int32))

    def _placed(self, text: str, ids: list[int], added: list[int] | None) -> tuple[Ids, Ids] | None:
        """Returns ids and their starts by the bytes of the tokens. None where these are unknown, or a normalizer changed the text.

        The tokenizer's own offsets can leave out the space in front of a word, and they take as long as the ids. added: which tokens are
        special ones before and after the text, which have no bytes; None where there are none.
        """
        if self._bytes is None:
            return None
        pieces = [*map(self._bytes.__getitem__, ids)]
        if added is not None:
            pieces = [b"" if put else piece for piece, put in zip(pieces, added, strict=True)]
        return (np.array(ids, np.int32), piece_starts(pieces)) if b"".join(pieces) == text.encode() else None

    def _encoded(self, text: str, special: bool) -> tuple[list[int], list[int], list[tuple[int, int]]]:
        """Returns ids, which of them are added special tokens, and the tokenizer's own offsets.

        transformers takes as long around each text as the tokenizer behind it takes for a short one, so that is asked itself.
        """
        if self.plain:
            one = self._hf.backend_tokenizer.encode(text, add_special_tokens=special)
            return one.ids, one.special_tokens_mask, one.offsets
        all_ = self._hf(text, add_special_tokens=special, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
        return all_["input_ids"], all_["special_tokens_mask"], all_["offset_mapping"]

    def decode(self, ids: Ids) -> str:
        """Returns the text of token ids without special tokens, and without any clean-up of spaces."""
        if decodes_plainly(type(self._hf)):  # stop strings ask with each token, and transformers takes six times as long
            return self._hf.backend_tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        return self._hf.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def offsets(self, ids: Ids) -> Ids:
        """Returns the code points before each token in ``decode(ids)`` [N]. A special token starts where the next token does."""
        shown = np.array([i not in self.special for i in ids.tolist()], np.bool_)
        starts = self._starts(ids[shown], self.decode)
        return np.append(starts, np.int32(len(self.decode(ids))))[np.cumsum(shown) - shown]

    def spelled(self, ids: Ids) -> tuple[str, Ids]:
        """Returns the text of token ids with special tokens in it, and the code points before each token [N]."""

        def decode(part: Ids) -> str:
            return self._hf.decode(part.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)

        return decode(ids), self._starts(ids, decode)

    def _starts(self, ids: Ids, decode: Callable[[Ids], str]) -> Ids:
        """Returns the code points before each token in ``decode(ids)`` [N], of which all tokens are a part."""
        if self._bytes is not None:
            size = len(self._bytes)  # the model's vocabulary may be padded beyond the tokenizer's
            return piece_starts(self._bytes[i] if i < size else b"" for i in ids.tolist())
        if self._hf.is_fast:
            tokens = [token or "" for token in self._hf.convert_ids_to_tokens(ids.tolist())]
            return token_starts(ids, tokens, decode)
        # tokens of unknown kind: decode every beginning of the text
        return np.array([len(decode(ids[:i]).rstrip(BROKEN)) for i in range(len(ids))], np.int32)

    def token_bytes(self, token: int) -> bytes:
        """Returns a token's UTF-8 bytes inside a text: of a special token those of its name, none for an unknown id."""
        if self._bytes is not None:
            return self._bytes[token] if token < len(self._bytes) else b""
        name = self._hf.convert_ids_to_tokens(token) if token < len(self._hf) else ""
        if byte := BYTE_TOKEN.fullmatch(name or ""):
            return bytes.fromhex(byte[1])
        before = self._encode("a", special=False)[0].tolist()
        texts = [self._hf.decode(ids, clean_up_tokenization_spaces=False) for ids in (before, [*before, token])]
        return texts[1].removeprefix(texts[0]).encode() if name else b""

    @cached_property
    def _suffix_length(self) -> int:
        """The number of special tokens that the tokenizer adds after a text."""
        plain, whole = (self._encode("a", special=special)[0].tolist() for special in (False, True))
        before = next(at for at in range(len(whole) + 1) if whole[at : at + len(plain)] == plain)
        return len(whole) - before - len(plain)

    @cached_property
    def _bytes(self) -> list[bytes] | None:
        return vocabulary_bytes(self._hf)

    def stopper(self, sampling: Sampling) -> StopStrings:
        """Returns a watcher for a row's stop strings. Matches that end in the first ``min_tokens`` tokens don't count."""
        return StopStrings(self, sampling.stop, sampling.min_tokens)


def load_tokenizer(folder: Path, chat_template: str | None, template_args: dict[str, Any], trust_remote_code: bool) -> Tokenizer:
    """Loads the tokenizer of a checkpoint's folder. ``chat_template`` is a template or the path of one.

    Raises ModelError if there is no tokenizer or config.json is refused, ConfigError if the template can't be read or parsed, and both
    as ``try_template``.
    """
    from transformers import AutoTokenizer

    mlx_lm = import_module("mlx_lm.utils")  # it also makes a class of its own known to transformers

    if not any(path for name in FILES for path in folder.glob(name)):
        raise ModelError(f"model.path: {folder} holds no tokenizer; put the model's tokenizer files beside its weights")
    try:
        # mlx-lm's loader would read tokenizer.json once more, and look through the vocabulary for what its own loop uses.
        hf = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers fail in many ways; each means that this folder is no use
        reason = visible(first_line(error, None))
        if "trust_remote_code" in str(error):
            reason = "it needs code that comes with it; set model.trust_remote_code if you trust it"
        elif any(Path(frame.f_code.co_filename).stem.startswith("configuration_") for frame, _ in walk_tb(error.__traceback__)):
            raise ModelError(f"model.path: {folder / 'config.json'} is refused by transformers: {reason}; correct it") from error
        elif not any(path for name in _VOCABULARIES for path in folder.glob(name)):
            there = "put the model's tokenizer.json (or tokenizer.model, or vocab.json and merges.txt) there"
            reason = f"it has no vocabulary; {there} (transformers: {reason})"
        raise ModelError(f"model.path: the tokenizer in {folder} cannot be loaded: {reason}") from error
    # Of some architectures mlx-lm knows the parser of tool calls, for checkpoints that name none.
    if parser := (mlx_lm._tokenizer_defaults(folder) or {}).get("tool_parser_type"):
        hf.init_kwargs.setdefault("tool_parser_type", parser)
    template = read_template(chat_template)
    try_template(with_processor_template(hf, folder), template)
    return Tokenizer(hf, template, template_args)

"""Text to token ids and back: chat templates, and offsets in code points.

Wraps the checkpoint's Hugging Face tokenizer. Offsets count code points of the text; tokens inside one character share
its start. Knows nothing of datasets or models.

    text      " caf" "é"            ids  [5821, 131, 103]   é is two bytes, each a token
    offsets      0     4  4
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...configs.errors import ConfigError
from ...configs.schema import names_a_file
from ...configs.visible import visible
from ..core.arrays import Ids
from ..core.errors import ModelError, RowError, first_line
from ..core.requests import Prompt, Sampling
from .assistant_spans import Turns, marks_turns, render_chat, token_spans, without_special
from .chat_template_check import try_template
from .stop_strings import BROKEN, StopStrings
from .token_offsets import BYTE_TOKEN, piece_starts, token_starts
from .tokenizer_compat import difference

FILES = ("token*", "vocab*", "*.tiktoken")


class Tokenizer:
    """A checkpoint's tokenizer. ``chat_template`` replaces its own; ``template_args`` are passed to it."""

    def __init__(self, hf: Any, chat_template: str | None = None, template_args: dict[str, Any] | None = None):
        self._hf = hf
        self._template = chat_template
        self._template_args = template_args or {}
        # decode() leaves out what tokenizer.json marks as special, which can be more than the named ones.
        self.special = frozenset(hf.all_special_ids) | {i for i, token in hf.added_tokens_decoder.items() if token.special}
        self._encode("", special=False)  # settles truncation and padding: later calls only read, so threads may share it

    @property
    def eos(self) -> frozenset[int]:
        """The tokenizer's own EOS; empty where it has none."""
        return frozenset() if self._hf.eos_token_id is None else frozenset([int(self._hf.eos_token_id)])

    @property
    def bos(self) -> int | None:
        """The token that opens a text; None where the tokenizer has none."""
        return self._hf.bos_token_id

    @property
    def size(self) -> int:
        """Number of tokens it knows, added ones too."""
        return len(self._hf)

    @property
    def chat_template(self) -> str | None:
        """The template given, else None where the tokenizer's own is used."""
        return self._template

    @property
    def has_chat_template(self) -> bool:
        """True when messages can be rendered."""
        return self._template is not None or self._hf.chat_template is not None

    @property
    def marks_turns(self) -> bool:
        """True when the chat template says which text is the assistant's."""
        return self.has_chat_template and marks_turns(self._hf.get_chat_template(self._template))

    def difference(self, other: "Tokenizer") -> str | None:
        """How another tokenizer maps text to other ids than this one, or None where they do the same."""
        return difference(self._hf, other._hf)

    def encode(self, text: str) -> Prompt:
        """Raw text to a prompt, with the special tokens that the tokenizer adds by itself; a BOS that the text brings is not doubled."""
        ids, offsets = self._encode(text, special=True)
        if len(ids) > 1 and ids[0] == ids[1] == self.bos:
            ids, offsets = ids[1:], offsets[1:]
        return Prompt(text, ids, offsets)

    def encode_opening(self, text: str) -> Prompt:
        """As ``encode``, less the special tokens that the tokenizer puts behind a text: more text may follow."""
        prompt = self.encode(text)
        end = len(prompt.ids) - self._put_behind
        return Prompt(text, prompt.ids[:end], prompt.offsets[:end])

    def encode_text(self, text: str) -> Prompt:
        """Text alone, without special tokens but those that it holds itself."""
        return Prompt(text, *self._encode(text, special=False))

    def encode_turns(self, messages: list[dict[str, Any]]) -> Turns:
        """A whole chat, with the assistant's turns marked by its template.

        Raises RowError where the template refuses the messages, or a turn does not begin and end with a token.
        """
        text, spans = render_chat(self._hf, self._hf.get_chat_template(self._template), self._template_args, messages)
        ids, offsets = self._encode(text, special=False)
        tokens = token_spans(text, ids, spans, lambda part: self._encode(part, special=False)[0])
        prompt = Prompt(text, ids, offsets)
        return Turns(prompt, spans, tokens, without_special(prompt, spans, self.special))

    def encode_chat(self, messages: list[dict[str, Any]], prefill: str) -> Prompt:
        """Messages to a prompt that ends where the assistant's turn begins, followed by ``prefill``. Raises as ``chat_text``."""
        return self.encode_text(self.chat_text(messages, prefill))

    def chat_text(self, messages: list[dict[str, Any]], prefill: str) -> str:
        """The text of such a prompt. Raises RowError where the template refuses the messages (roles that must alternate, say)."""
        try:
            text = self._hf.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, chat_template=self._template, **self._template_args
            )
        except Exception as error:  # templates raise what they like
            raise RowError("template", f"the chat template refuses the messages: {error}") from error
        return str(text) + prefill

    def _encode(self, text: str, special: bool) -> tuple[Ids, Ids]:
        if not self._hf.is_fast:
            ids = np.array(self._hf.encode(text, add_special_tokens=special), np.int32)
            return ids, self.offsets(ids)
        encoded = self._hf(text, add_special_tokens=special, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
        ids = np.array(encoded["input_ids"], np.int32)
        if self._bytes is not None:
            # The tokenizer's own offsets can leave out the space in front of a word. Where no normalizer changed the text,
            # its bytes say where each token starts; tokens put before or behind the text take no room.
            added = encoded["special_tokens_mask"]
            pieces = [b"" if put else self._bytes[token] for token, put in zip(encoded["input_ids"], added, strict=True)]
            if b"".join(pieces) == text.encode():
                return ids, piece_starts(pieces)
        return ids, np.array([start for start, _ in encoded["offset_mapping"]], np.int32)

    def decode(self, ids: Ids) -> str:
        """Text of token ids without special tokens, as it stands: no clean-up of spaces."""
        return self._hf.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def offsets(self, ids: Ids) -> Ids:
        """Code points before each token in ``decode(ids)`` [N]; special tokens take no room, and start where the next one does."""
        shown = np.array([i not in self.special for i in ids.tolist()], np.bool_)
        text = ids[shown]
        if self._bytes is not None:
            size = len(self._bytes)  # the model's vocabulary may be padded beyond the tokenizer's
            starts = piece_starts(self._bytes[i] if i < size else b"" for i in text.tolist())
        elif self._hf.is_fast:
            tokens = [token or "" for token in self._hf.convert_ids_to_tokens(text.tolist())]
            starts = token_starts(text, tokens, self.decode)
        else:  # whatever its tokens are: every beginning of the text is decoded
            starts = np.array([len(self.decode(text[:i]).rstrip(BROKEN)) for i in range(len(text))], np.int32)
        return np.append(starts, np.int32(len(self.decode(text))))[np.cumsum(shown) - shown]

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a token stands for behind others, of a special one those of its name; none for an id it does not know."""
        if self._bytes is not None:
            return self._bytes[token] if token < len(self._bytes) else b""
        name = self._hf.convert_ids_to_tokens(token) if token < len(self._hf) else ""
        if found := BYTE_TOKEN.fullmatch(name or ""):
            return bytes.fromhex(found[1])
        before = self._encode("a", special=False)[0].tolist()
        texts = [self._hf.decode(ids, clean_up_tokenization_spaces=False) for ids in (before, [*before, token])]
        return texts[1].removeprefix(texts[0]).encode() if name else b""

    @cached_property
    def _put_behind(self) -> int:
        """Number of special tokens that the tokenizer puts behind a text."""
        plain, whole = (self._encode("a", special=special)[0].tolist() for special in (False, True))
        before = next(at for at in range(len(whole) + 1) if whole[at : at + len(plain)] == plain)
        return len(whole) - before - len(plain)

    @cached_property
    def _bytes(self) -> list[bytes] | None:
        """The bytes of each token of a byte-level tokenizer; None for other kinds."""
        if not self._hf.is_fast:
            return None
        decoder = json.loads(self._hf.backend_tokenizer.to_str()).get("decoder") or {}
        parts = decoder.get("decoders", [decoder])
        if [p.get("type") for p in parts] != ["ByteLevel"]:
            return None
        of = {char: byte for byte, char in _byte_characters().items()}
        added = {i: t.content.encode() for i, t in self._hf.added_tokens_decoder.items()}
        size = max([len(self._hf), *(i + 1 for i in added)])
        tokens = self._hf.convert_ids_to_tokens(list(range(size)))
        return [added.get(i) or _token_bytes(token, of) for i, token in enumerate(tokens)]

    def stopper(self, sampling: Sampling) -> StopStrings:
        """A watcher for a row's stop strings; only what ends behind its first ``min_tokens`` tokens counts."""
        return StopStrings(self, sampling.stop, sampling.min_tokens)


def token_text(content: bytes) -> str:
    r"""Returns the bytes of a token as text; bytes that are no UTF-8 by themselves become escapes such as ``\xe2``."""
    return content.decode("utf-8", "backslashreplace")


def _byte_characters() -> dict[int, str]:
    """GPT-2's alphabet of visible characters for the 256 bytes (Radford et al. 2019), as every byte-level BPE uses it."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def _token_bytes(token: str | None, of: dict[str, int]) -> bytes:
    if token is None:
        return b""
    return bytes(of[c] for c in token) if all(c in of for c in token) else token.encode()


def load_tokenizer(folder: Path, chat_template: str | None, template_args: dict[str, Any], trust_remote_code: bool) -> Tokenizer:
    """The tokenizer of a checkpoint's folder. ``chat_template`` is a template or the path of one.

    Raises ModelError where there is no tokenizer, ConfigError where the template cannot be read or parsed; both as ``try_template``.
    """
    from mlx_lm.utils import load_tokenizer

    if not any(path for name in FILES for path in folder.glob(name)):
        raise ModelError(f"model.path: {folder} holds no tokenizer; put the model's tokenizer files beside its weights")
    try:
        hf = load_tokenizer(folder, {"trust_remote_code": trust_remote_code})._tokenizer  # pyright: ignore[reportPrivateUsage]
    except Exception as error:  # tokenizers fail in many ways; each means that this folder cannot be used
        reason = visible(first_line(error, None))
        if "trust_remote_code" in str(error):
            reason = "it needs code that comes with it; set model.trust_remote_code if you trust it"
        raise ModelError(f"model.path: the tokenizer in {folder} cannot be loaded: {reason}") from error
    template = _template(chat_template)
    try_template(hf, template)
    return Tokenizer(hf, template, template_args)


def _template(given: str | None) -> str | None:
    """The chat template that the config gives, itself or as the path of its file."""
    if given is None or not names_a_file(given):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt.chat_template: {given} is neither a readable file nor a template ({error})") from error

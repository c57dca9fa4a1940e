"""Computes where each token starts in a text, in code points. Tokens inside one character share its start.

There are two kinds of tokenizers. Tokens of byte-level BPE are pieces of UTF-8. Tokens of other kinds are text, with byte tokens
(``<0xE9>``) for all other text.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from ..core.arrays import Ids

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def piece_starts(pieces: Iterable[bytes]) -> Ids:
    """Returns the starts [N] of tokens that are ``pieces`` of UTF-8. A broken sequence counts as one U+FFFD, as in decoders.

    "é"   C3 A9      starts of C3 | A9     0 0
    "?f"  C3 66                C3 | 66     0 1
    """
    parts = list(pieces)
    raw = b"".join(parts)
    lengths = np.fromiter(map(len, parts), np.int32, len(parts))
    starts = lengths.cumsum(dtype=np.int32) - lengths
    if raw.isascii():
        return starts
    opens = (np.frombuffer(raw, np.uint8) & 0xC0) != 0x80  # bytes that begin a character
    at = 0
    while at < len(raw):
        try:
            raw[at:].decode()
            break
        except UnicodeDecodeError as error:  # the next broken sequence, as errors="replace" finds it
            opens[at + error.start : at + error.end] = False
            opens[at + error.start] = True
            at += error.end
    characters = np.append(np.cumsum(opens) - 1, np.sum(opens))  # of each byte, and of the end
    return characters[starts].astype(np.int32)


def token_starts(ids: Ids, tokens: Sequence[str], decode: Callable[[Ids], str]) -> Ids:
    """Returns the starts [N] of ``tokens`` that are text or bytes. ``decode`` turns their ``ids`` [N] into text.

    Each token is decoded after the one before it, so that a space in front of it comes out as in the whole text. Consecutive bytes are
    decoded as one run; if they are no UTF-8, each is a U+FFFD.
    """
    starts = np.zeros(len(ids), np.int32)
    at, end, before = 0, 0, ids[:0]
    for index, run in groupby(enumerate(tokens), lambda pair: -1 if BYTE_TOKEN.fullmatch(pair[1]) else pair[0]):
        begin, end = end, end + len(list(run))
        text = decode(np.concatenate([before, ids[begin:end]]))[len(decode(before)) :]
        if index < 0:
            pieces = [bytes.fromhex(token[3:5]) for token in tokens[begin:end]]
            whole = text.encode() == b"".join(pieces)
            starts[begin:end] = at + (piece_starts(pieces) if whole else np.arange(end - begin))
        else:
            starts[begin] = at
        at, before = at + len(text), ids[begin:end]
    return starts


def byte_characters() -> dict[int, str]:
    """Returns GPT-2's visible characters for the 256 bytes (Radford et al. 2019), which every byte-level BPE uses."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def byte_level_bytes(token: str | None, of: dict[str, int]) -> bytes:
    """Returns the bytes of a token; of: the byte that each visible character stands for."""
    try:
        return b"" if token is None else bytes(map(of.__getitem__, token))
    except KeyError:  # an added token, which is plain text
        return (token or "").encode()


def byte_level_pieces(tokens: Sequence[str | None]) -> list[bytes]:
    """Returns the bytes of each token of a vocabulary. Each character stands for a byte, so that all are read in one go."""
    of = {char: byte for byte, char in byte_characters().items()}
    table = {byte: None for byte in range(256) if chr(byte) not in of} | {ord(char): byte for char, byte in of.items()}
    texts = [token or "" for token in tokens]
    ends = [*accumulate(map(len, texts))]
    with suppress(UnicodeEncodeError):
        raw = "".join(texts).translate(table).encode("latin-1")
        if len(raw) == (ends[-1] if ends else 0):
            return [raw[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return [byte_level_bytes(token, of) for token in tokens]  # some are plain text


def vocabulary_bytes(hf: Any) -> list[bytes] | None:
    """Returns the bytes of each token of a Hugging Face tokenizer that is byte-level; None for other kinds."""
    if not hf.is_fast:
        return None
    kind = hf.backend_tokenizer.decoder
    decoder = {} if kind is None else json.loads(kind.__getstate__())
    parts = decoder.get("decoders", [decoder])
    if [p.get("type") for p in parts] != ["ByteLevel"]:
        return None
    added = {i: t.content.encode() for i, t in hf.added_tokens_decoder.items()}
    size = max([len(hf), *(i + 1 for i in added)])
    name_of = hf.backend_tokenizer.id_to_token
    pieces = byte_level_pieces([None if i in added else name_of(i) for i in range(size)])
    for i, content in added.items():
        pieces[i] = content
    return pieces


def token_text(content: bytes) -> str:
    r"""Returns the bytes of a token as text; bytes that are no UTF-8 by themselves become escapes such as ``\xe2``."""
    return content.decode("utf-8", "backslashreplace")

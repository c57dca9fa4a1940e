"""Pictures that are written as text: data URLs, and base64 without a URL around it. Decodes them, and finds them in other text.

What is read as a picture and what records hold as a digest are decided here, by one rule. Knows no pixels and no files.
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import unquote, unquote_to_bytes

LEAST = 64  # characters of a picture's text: what is shorter holds no more than a digest

_URL = re.compile(r"\s*data:([^,;]*)((?:;[^,;]*)*),(.*)", re.DOTALL | re.IGNORECASE)
_PICTURE = re.compile(r"(?:image/[\w.+-]+|application/octet-stream)?", re.IGNORECASE)
_LETTER = "[A-Za-z0-9+/=_%-]"
_WRAPPED = "|".join(rf"(?:{_LETTER}{{{width}}}\r?\n)+{_LETTER}{{1,{width}}}" for width in (76, 64))  # as MIME and PEM cut lines
_INSIDE = re.compile(
    rf"(?i:data:)(?:(?i:{_PICTURE.pattern}(?:;[^,;\n]*)*?;[ ]*base64[ ]*),\s*(?:{_WRAPPED}|{_LETTER}{{{LEAST},}})"
    rf"|(?i:image/)[\w.+-]+(?:;[^,;\n]*)*,[^\s\"'<>()]{{{LEAST},}})"
)
_BARE = re.compile(r"[A-Za-z0-9+/_-][A-Za-z0-9+/_\s-]*={0,2}\s*")
_BEGINNINGS = re.compile(  # of files of pictures
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|BM....\x00{4}|II\*\x00|MM\x00\*|\x00\x00\x01\x00.\x00|P[56]\s\d"
    rb"|\x00\x00\x00.ftyp(?:avif|avis|mif1)|\x00\x00\x00\x0cjP  |\xff\x4f\xff\x51",
    re.DOTALL,
)
_URL_SAFE = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class DataUrl:
    """The parts of a data URL. kind: its media type, in small letters; empty where it says none. body: what follows the comma."""

    kind: str
    base64: bool
    body: str

    @property
    def may_be_picture(self) -> bool:
        """False where the URL says that it holds something else."""
        return _PICTURE.fullmatch(self.kind) is not None

    @property
    def is_picture(self) -> bool:
        """True where the URL says so, or holds bytes of a kind that it leaves open. ``data:, a`` is text."""
        return self.may_be_picture and (self.base64 or self.kind.startswith("image/"))

    @property
    def content(self) -> bytes:
        """The bytes. Raises ValueError for what is not base64."""
        return base64_bytes(unquote(self.body) if "%" in self.body else self.body) if self.base64 else unquote_to_bytes(self.body)


def is_data_url(text: str) -> bool:
    """Returns whether a text is to be read as a data URL."""
    return text[:LEAST].lstrip()[:5].lower() == "data:"


def data_url(text: str) -> DataUrl | None:
    """Returns the parts of a data URL, which may stand between white space; None where the text is none."""
    found = _URL.fullmatch(text)
    if found is None:
        return None
    parameters = [parameter.strip() for parameter in found[2].lower().split(";")]
    return DataUrl(found[1].strip().lower(), "base64" in parameters, found[3].strip())


def base64_bytes(text: str) -> bytes:
    """Returns the bytes of base64, also where it is wrapped in lines, in the alphabet for URLs, or without pads. Raises ValueError."""
    letters = "".join(text.split()).translate(_URL_SAFE)
    try:
        return b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def is_bare_base64(text: str) -> bool:
    """Returns whether a text is the base64 of a picture, as the first bytes show, without a data URL around it."""
    if len(text) < LEAST or _BARE.match(text[:LEAST].lstrip()) is None:
        return False
    try:
        begins = base64_bytes("".join(text[: 2 * LEAST].split())[:32])
    except ValueError:
        return False
    return _BEGINNINGS.match(begins) is not None and _BARE.fullmatch(text.strip()) is not None


def digests_in_text(text: str) -> str:
    """Returns a text with ``sha256:…`` in the place of pictures: of the whole of it, or of data URLs inside."""
    if len(text) < LEAST:
        return text
    if is_bare_base64(text):
        return digest_of_base64(text)
    url = data_url(text) if is_data_url(text) else None
    if url is not None and url.is_picture and len(url.body) >= LEAST and _is_whole(url):
        return _digest(lambda: url.content, text)
    return _INSIDE.sub(_digest_of_url, text)


def _is_whole(url: DataUrl) -> bool:
    """Returns False where words follow a data URL: a text may begin with one."""
    pieces = url.body.split()
    if len(pieces) == 1:
        return True
    try:
        return url.base64 and sum(map(len, pieces)) % 4 == 0 and bool(url.content)
    except ValueError:
        return False


def digest_of_base64(text: str) -> str:
    """Returns ``sha256:…`` of the bytes of a picture's base64; of the text itself where it is broken."""
    return _digest(lambda: base64_bytes(text), text)


def _digest_of_url(found: re.Match[str]) -> str:
    url = data_url(found[0])
    return found[0] if url is None else _digest(lambda: url.content, found[0])


def _digest(read: Callable[[], bytes], text: str) -> str:
    try:
        content = read()
    except ValueError:  # broken, and shown by the row's error
        content = text.encode("utf-8", "surrogatepass")
    return f"sha256:{sha256(content).hexdigest()}"

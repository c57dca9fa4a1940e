"""Recognizes files that hold no text in UTF-8, whatever their names say, by the bytes that they begin with."""

import re

from ..core.errors import DataError
from .source import Source, source_errors

_LONGEST = 10  # bytes
_COMPRESSED = "is compressed by {kind}, and its name does not say so. Add {ending} to its name"
_FORMAT = "is a file of {kind}, and is read as {form}. Set data.format to {kind}"
_KINDS = {  # patterns of first bytes
    b"\x1f\x8b\x08": ("gzip", _COMPRESSED, ".gz"),
    b"\\(\xb5/\xfd": ("Zstandard", _COMPRESSED, ".zst"),
    b"BZh[1-9]1AY&SY": ("bzip2", _COMPRESSED, ".bz2"),
    b"PAR1[\x00-\x08\x0e-\x1f]": ("parquet", _FORMAT, ""),
    b"ARROW1\0\0|\xff\xff\xff\xff": ("arrow", _FORMAT, ""),  # a file, a stream
    b"PK\x03\x04": ("ZIP", "is a {kind} archive. Unpack it", ""),
    b"\xff\xfe|\xfe\xff": ("UTF-16", "is text in {kind}. Save it as UTF-8", ""),
    b"\xfd7zXZ\0": ("xz", "is compressed by {kind}, which is not read here. Decompress it", ""),
}


def require_text(source: Source) -> None:
    """Raises DataError where a source that is read as text holds something else by its first bytes."""
    if not source.is_text or source.codec is not None:
        return
    with source_errors(source), source.file.open("rb") as stream:
        head = stream.read(_LONGEST)
    for pattern, (kind, text, ending) in _KINDS.items():
        if re.match(pattern, head):
            raise DataError(f"{source.path} {text.format(kind=kind, ending=ending, form=source.format)}.")

"""A source of rows: one file or one hub dataset, with its format and compression. Opens its bytes; knows no rows."""

import errno
import io
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from ...configs.visible import visible
from ..core.errors import DataError


@dataclass(slots=True, frozen=True)
class FileFormat:
    """What is true of all files of a format. extensions: names that say it; the first one is that of rows kept from stdin.

    text: they hold text in UTF-8. table: they hold a schema and columns. appendable: lines may be added at the end.
    """

    extensions: tuple[str, ...]
    text: bool = False
    table: bool = False
    appendable: bool = False


FILE_FORMATS = {
    "jsonl": FileFormat((".jsonl", ".ndjson"), text=True, appendable=True),
    "json": FileFormat((".json",), text=True),
    "parquet": FileFormat((".parquet",), table=True),
    "arrow": FileFormat((".arrow", ".feather", ".ipc"), table=True),
    "csv": FileFormat((".csv", ".tsv"), text=True, appendable=True),
    "text": FileFormat((".txt", ".text"), text=True, appendable=True),
}
_HUB = FileFormat((), table=True)
# A name that ends with .json says nothing of whether an array or lines are in it: lines, until the file is opened.
EXTENSIONS = {extension: name for name, each in FILE_FORMATS.items() for extension in each.extensions} | {".json": "jsonl"}
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
WAITING = ".new"
BUFFER = 1 << 20


@dataclass(slots=True, frozen=True)
class Source:
    """One file of the input, or one hub dataset (``format`` "hub", ``path`` as in the config).

    ``format`` is a name in ``FILE_FORMATS`` (json is one array), or hub. ``codec`` is pyarrow's name of the compression, or None.
    ``waiting``: rows just piped in, which lie beside ``path`` until the run accepts them (see ``keep_spooled``). ``delimiter``: of a csv
    source, where it is not the one of its file name.
    """

    path: str
    format: str
    codec: str | None = None
    waiting: bool = False
    delimiter: str | None = None

    @property
    def file(self) -> Path:
        """The file that holds the source's bytes now."""
        return Path(self.path + WAITING if self.waiting else self.path)

    @property
    def is_table(self) -> bool:
        """True for a source with a schema and columns."""
        return self._kind.table

    @property
    def is_text(self) -> bool:
        """True for a file that is read as text in UTF-8, once it is decompressed."""
        return self._kind.text

    @property
    def is_appendable(self) -> bool:
        """True for a file to whose end lines may be added."""
        return self.codec is None and self._kind.appendable

    @property
    def _kind(self) -> FileFormat:
        return _HUB if self.format == "hub" else FILE_FORMATS[self.format]

    @property
    def separator(self) -> str:
        """The separator between the cells of a csv source: ``delimiter``, or by its file name."""
        return self.delimiter or ("\t" if ".tsv" in Path(self.path.lower()).suffixes[-2:] else ",")


def by_extension(path: Path) -> tuple[str | None, str | None]:
    """Returns format and codec by the file's name: ("jsonl", "gzip") for rows.jsonl.gz, None for an unknown one."""
    codec = CODECS.get(path.suffix.lower())
    bare = path.with_suffix("") if codec else path
    return EXTENSIONS.get(bare.suffix.lower()), codec


def has_format(path: Path, form: str) -> bool:
    """Returns True for a file whose name says the format ``form``; any that it knows, where that is "auto"."""
    by_name, _ = by_extension(path)
    if form == "json":
        return ".json" in path.with_name(path.name.lower()).suffixes[-2:]
    return by_name is not None and form in ("auto", by_name)


def open_stream(source: Source) -> IO[bytes]:
    """Opens the source's bytes, decompressed. A file of several compressed members is read to the end of the last."""
    if source.codec is None:
        return source.file.open("rb", buffering=BUFFER)
    raw = pa.CompressedInputStream(pa.OSFile(str(source.file)), source.codec)
    return io.BufferedReader(cast(io.RawIOBase, raw), BUFFER)


@contextmanager
def source_errors(source: Source) -> Generator[None]:
    """Turns errors of reading or decoding into a DataError that names the source. The error of a full disk passes through."""
    try:
        yield
    except (OSError, EOFError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        kind = source.format if source.codec is None else f"{source.format} ({source.codec})"
        raise DataError(
            f"{source.path}: cannot be read as {kind}: {visible(str(error)).rstrip('.')}. Replace it, or correct data.format."
        ) from error

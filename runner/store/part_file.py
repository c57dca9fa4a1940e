"""A part: the committed records of a shard as one Arrow IPC file. Its footer says which run it belongs to, and has a checksum.

The footer's metadata holds JSON under the key "mlx-bulk". Its last value, sha256, is computed over the file with zeros in that place
and is checked before Arrow parses any byte. A part's bytes depend only on the records and the run's identity.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from ..core.errors import RunDirError
from ..core.shard_layout import Layout
from ..files.atomic import replacing
from .commit_log import PartFile

if TYPE_CHECKING:  # mlx comes with it, which `mlx-bulk status` does not load
    from ..core.outcomes import Failure

ERRORS_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("key", pa.string()),
        ("sample", pa.int32()),
        ("stage", pa.string()),
        ("error", pa.string()),
        ("message", pa.string()),
        ("input", pa.large_string()),
    ]
)


def errors_schema(records: pa.Schema) -> pa.Schema:
    """Returns the columns of errors/ for results with the columns ``records``: with ``round`` where those have it."""
    return ERRORS_SCHEMA.insert(1, records.field("round")) if "round" in records.names else ERRORS_SCHEMA


def record_place(records: pa.Schema, layout: Layout, position: int, sample: int) -> dict[str, int]:
    """Returns the columns that identify a record of the row at ``position``, as far as the columns ``records`` have them."""
    place = {"row": layout.row_of(position), "round": layout.round_of(position), "sample": sample}
    return {name: value for name, value in place.items() if name in records.names}


def error_record(records: pa.Schema, layout: Layout, failure: "Failure") -> dict[str, Any]:
    """Returns a failure as a record of errors/, whose ``row`` is the row's number in the input."""
    written = {name: _encodable(value) for name, value in asdict(failure).items()} | {"row": layout.row_of(failure.row)}
    return written | ({"round": layout.round_of(failure.row)} if "round" in records.names else {})


def _encodable(value: Any) -> Any:
    """Escapes characters that UTF-8 does not have. The text of a failure may hold what made its row fail."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


_KEY = "mlx-bulk"
_ZEROS = b"0" * 64
_DECLARED = re.compile(
    rb'\{"run":"[0-9a-f]*","shard":\d+,"rows":\d+,"records":\d+,"errors":\d+,"errors_sha256":(?:null|"[0-9a-f]{64}"),'
    rb'"sha256":"([0-9a-f]{64})"\}'
)
_MAGIC = b"ARROW1"
_TAIL = len(_MAGIC) + 4  # after the footer: its length, int32 little endian, and the magic
_FOOTER_BYTES = 256 << 20  # no footer is longer: a damaged length must not make us read a huge file whole
_PIECE = 1 << 20


@dataclass(slots=True, frozen=True)
class PartDeclaration:
    """The declaration in a part's footer. run: digest of the run's identity. rows, records, errors: of the shard, in both of its parts.

    errors_sha256: of the file with the shard's errors. Only the part with the results has it; None where there are no errors.
    """

    run: str
    shard: int
    rows: int
    records: int
    errors: int
    errors_sha256: str | None

    @property
    def bytes(self) -> bytes:
        """The footer's JSON, with zeros in the place of the checksum."""
        return json.dumps({**asdict(self), "sha256": _ZEROS.decode()}, separators=(",", ":")).encode()


# --------------------------------------------------------------------------------------------------------------- writing


def write_part(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], declared: PartDeclaration) -> PartFile:
    """Writes a part to ``path``, whole and durable or not at all. Raises OSError.

    Its bytes are hashed while they are written. Arrow writes the footer last, when it closes. The footer is held back until the
    checksum of the bytes before it is in it.
    """
    with replacing(path) as file:
        sink = _Sink(file)
        writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema, metadata={_KEY: declared.bytes})
        for batch in batches:
            writer.write_batch(batch)
            del batch  # before the next one is made
        sink.held = bytearray()
        writer.close()
        digest = sink.release(declared.bytes)
    return PartFile.at(path, digest)


class _Sink:
    """A file that Arrow writes to. Hashes the bytes; while ``held`` is not None, keeps them there instead of writing them."""

    closed = False

    def __init__(self, file: BinaryIO):
        self._file, self._sha256 = file, hashlib.sha256()
        self._written = 0
        self.held: bytearray | None = None

    def write(self, content: bytes) -> int:
        if self.held is not None:
            self.held += content
        else:
            self._file.write(content)
            self._sha256.update(content)
        self._written += len(content)
        return len(content)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Does nothing: the file is closed elsewhere."""

    def release(self, declared: bytes) -> str:
        """Puts the checksum into the held bytes and writes them. Returns the hex sha256 of the whole file."""
        assert self.held is not None
        place = self.held.index(declared) + declared.index(_ZEROS)
        with_zeros = self._sha256.copy()
        with_zeros.update(self.held)
        self.held[place : place + len(_ZEROS)] = with_zeros.hexdigest().encode()
        self._file.write(self.held)
        self._sha256.update(self.held)
        return self._sha256.hexdigest()


# -------------------------------------------------------------------------------------------------------------- checking


def check_part(path: Path) -> tuple[PartDeclaration, PartFile] | None:
    """Returns the declaration of the part at ``path``; None where its bytes have changed. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if (start := _footer_start(file, size)) is None:
            return None
        file.seek(0)
        before = hashlib.sha256()
        for piece in _pieces(file, start):
            before.update(piece)
        footer = file.read()
    declared = _DECLARED.search(footer)  # Arrow puts the metadata before the schema: no column's name comes first
    if declared is None:
        return None
    whole = before.copy()
    before.update(footer[: declared.start(1)] + _ZEROS + footer[declared.end(1) :])
    if before.hexdigest().encode() != declared[1]:
        return None
    whole.update(footer)
    values = json.loads(declared[0])
    del values["sha256"]
    return PartDeclaration(**values), PartFile.at(path, whole.hexdigest())


def _footer_start(file: BinaryIO, size: int) -> int | None:
    """Returns the footer's start, by the length after it; None for an impossible length."""
    if size < _TAIL:
        return None
    file.seek(size - _TAIL)
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > min(_FOOTER_BYTES, size - _TAIL):
        return None
    return size - _TAIL - length


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece


# --------------------------------------------------------------------------------------------------------------- reading


def read_part(part: Path) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a part whose bytes have been checked, as views of its memory map. Raises OSError."""
    with pa.memory_map(str(part)) as file:
        yield from part_batches(part, file, None)


def has_schema(part: Path, schema: pa.Schema) -> bool:
    """Returns True when a part whose bytes have been checked has these columns. Raises OSError."""
    return part_schema(part).equals(schema)


def part_schema(part: Path) -> pa.Schema:
    """Returns the columns of a part whose bytes have been checked. Raises OSError."""
    with pa.memory_map(str(part)) as file:
        return pa.ipc.open_file(file).schema


def part_batches(part: Path, file: pa.MemoryMappedFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yields the batches of an open part, with only ``columns`` unless None. Raises RunDirError where it lacks one of them."""
    schema = pa.ipc.open_file(file).schema
    if missing := set(columns or ()) - set(schema.names):
        raise RunDirError(f"{part}: no column {sorted(missing)}; it has {', '.join(schema.names)}")
    fields = None if columns is None else [index for index, name in enumerate(schema.names) if name in columns]
    reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields))
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)

"""The journal of an open shard: frames of finished rows, each checked before Arrow parses a byte of it.

A frame is a header of 32 bytes and a payload. The payload's length is a multiple of 8, which keeps batches aligned in the file's
memory map. The first frame ("H", JSON) says what the journal is to become; the others are Arrow IPC streams. Knows frames only; the
writer decides what rows mean and when a journal is removed.

    | "mlxbulk" | kind | length of the payload | blake2b-16 of kind, length, payload | payload
         7          1        8, little endian              16                          length
"""

import hashlib
import json
import logging
import os
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from ..core.errors import RunDirError, first_line
from ..files.atomic import append_bytes, replacing, sync_file

log = logging.getLogger("mlx_bulk")

RESULTS, ERRORS = b"R", b"E"

_HEADER_KIND = b"H"
_MAGIC = b"mlxbulk"
_FRAME_HEADER = struct.Struct("<7scQ16s")


@dataclass(slots=True, frozen=True)
class Header:
    """Says what a journal is to become: a generation of a shard's parts, made of its own rows and of those of ``base``.

    base: the committed generation that it continues; None for a new shard. retry: number of the last retry that named the shard, 0
    for none. With a retry the errors of base are not taken over, and all errors in the journal are newer than the retry.
    """

    shard: int
    generation: int
    base: int | None = None
    retry: int = 0


@dataclass(slots=True, frozen=True)
class Journal:
    """The contents of a journal. Its batches are views of the file's memory map."""

    header: Header
    results: list[pa.RecordBatch]
    errors: list[pa.RecordBatch]


@contextmanager
def loss_as_error(path: Path) -> Generator[None]:
    """Surrounds work on the journal at ``path``. Raises RunDirError where somebody has removed it or its folder."""
    try:
        yield
    except FileNotFoundError as error:
        if path.exists():
            raise
        what = f"{path.parent}/ was removed" if not path.parent.is_dir() else f"{path} was removed"
        cure = "the same command does them again; leave the folder of a running run alone"
        raise RunDirError(
            f"{what} while the run was going on, and with it finished rows of shards that are not committed; {cure}"
        ) from error


def begin(path: Path, header: Header, errors: Sequence[pa.RecordBatch] = ()) -> None:
    """Makes the journal at ``path``, durably: with its header and these errors, or not at all. Raises OSError."""
    rewrite(path, header, [], errors)


def append(path: Path, kind: bytes, batch: pa.RecordBatch) -> None:
    """Appends ``batch`` as one frame of ``kind`` (RESULTS or ERRORS) to an existing journal. Raises OSError, also where it is gone."""
    path.stat()  # frames without a header would be lost without a word
    append_bytes(path, *_batch_frame(kind, batch))


def frame_content(kind: bytes, batch: pa.RecordBatch) -> tuple[bytes, bytes]:
    """Returns the payload of a frame that holds ``batch``, and the checksum of kind, length and payload."""
    payload = _batch_payload(batch)
    return payload.tobytes(), _checksum(kind, payload)


def checked_batch(kind: bytes, payload: bytes, checksum: bytes) -> pa.RecordBatch:
    """Returns the batch that ``frame_content`` made a frame of. Raises ValueError for other bytes, also where their checksum is right."""
    if _checksum(kind, memoryview(payload)) != checksum:
        raise ValueError("the frame's checksum is wrong")
    reader = pa.BufferReader(payload)
    try:
        batches = list(pa.ipc.open_stream(reader))
    except Exception as error:  # Arrow raises what it likes for bytes that are not its own: OSError, NotImplementedError
        raise ValueError(f"the frame is no stream of Arrow: {first_line(error)}") from error
    if len(batches) != 1:
        raise ValueError(f"the frame holds {len(batches)} batches, not one")
    if behind := len(payload) - reader.tell():
        raise ValueError(f"the frame holds {behind} bytes behind its batch")
    return batches[0]


def sync_journal(path: Path) -> None:
    """Returns when all frames appended so far are on the medium."""
    sync_file(path)


def rewrite(path: Path, header: Header, results: Sequence[pa.RecordBatch], errors: Sequence[pa.RecordBatch]) -> None:
    """Replaces the journal at ``path`` by one of these batches. After a crash it is the old one or the new one."""
    with replacing(path) as file:
        file.writelines(_header_frame(header))
        for kind, batches in ((RESULTS, results), (ERRORS, errors)):
            for batch in batches:
                file.writelines(_batch_frame(kind, batch))


def read_journal(path: Path) -> Journal | None:
    """Reads the journal at ``path``, its batches in the order of appending, and cuts it off after its last good frame.

    Returns None where its header is not whole. A torn tail holds nothing that was synced. After damage in the middle all later
    frames are lost, as nothing says where the next one starts. Either is logged as a warning.
    """
    content, lost_bytes = peek(path)
    if lost_bytes:
        log.warning("%s: cut off %d bytes behind the last whole frame; rows that stood there are done again", path, lost_bytes)
        os.truncate(path, path.stat().st_size - lost_bytes)
        sync_file(path)
    return content


def peek(path: Path) -> tuple[Journal | None, int]:
    """Reads the journal at ``path`` and leaves the file as it is. Returns also how many bytes follow its last good frame."""
    content = _mapped(path)
    header: Header | None = None
    frames: dict[bytes, list[pa.RecordBatch]] = {RESULTS: [], ERRORS: []}
    good_bytes = 0
    for kind, payload in _frames(content):
        if kind == _HEADER_KIND:
            header = Header(**json.loads(payload.to_pybytes()))
        else:
            frames[kind].extend(pa.ipc.open_stream(payload))
        good_bytes += _FRAME_HEADER.size + payload.size
    return None if header is None else Journal(header, frames[RESULTS], frames[ERRORS]), content.size - good_bytes


def _header_frame(header: Header) -> tuple[bytes, memoryview]:
    payload = json.dumps(asdict(header)).encode()
    return _frame(_HEADER_KIND, memoryview(payload + b" " * (-len(payload) % 8)))


def _batch_frame(kind: bytes, batch: pa.RecordBatch) -> tuple[bytes, memoryview]:
    return _frame(kind, _batch_payload(batch))


def _batch_payload(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _frame(kind: bytes, payload: memoryview) -> tuple[bytes, memoryview]:
    return _FRAME_HEADER.pack(_MAGIC, kind, len(payload), _checksum(kind, payload)), payload


def _mapped(path: Path) -> pa.Buffer:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _frames(content: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    """Yields kind and payload of each frame, up to the first that is not whole."""
    start = 0
    while start + _FRAME_HEADER.size <= content.size:
        magic, kind, length, checksum = _FRAME_HEADER.unpack(content.slice(start, _FRAME_HEADER.size))
        start += _FRAME_HEADER.size
        if magic != _MAGIC or length > content.size - start:
            return
        payload = content.slice(start, length)
        if checksum != _checksum(kind, memoryview(payload)):
            return
        yield kind, payload
        start += length


def _checksum(kind: bytes, payload: memoryview) -> bytes:
    digest = hashlib.blake2b(kind + len(payload).to_bytes(8, "little"), digest_size=16)
    digest.update(payload)
    return digest.digest()

"""The journal of an open shard: frames of finished rows, each checked before Arrow sees a byte of it.

A frame is a header of 32 bytes and one Arrow IPC stream, whose length is a multiple of 8: what is read stays aligned in
the file's memory map. Knows frames only; what rows mean, and when a journal may go, is the writer's.

    | "mlxbulk" | kind | length of the payload | blake2b-16 of kind, length, payload | payload
         7          1        8, little endian              16                          length
"""

import hashlib
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from .durable import append_bytes, sync_file

log = logging.getLogger("mlx_bulk")

RESULTS, ERRORS = b"R", b"E"

_MAGIC = b"mlxbulk"
_HEADER = struct.Struct("<7scQ16s")


def append(path: Path, kind: bytes, batch: pa.RecordBatch) -> None:
    """Appends ``batch`` as one frame of ``kind`` (RESULTS or ERRORS); ``sync`` makes it durable. Raises OSError."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    payload = memoryview(sink.getvalue())
    append_bytes(path, _HEADER.pack(_MAGIC, kind, len(payload), _checksum(kind, payload)), payload)


def sync(path: Path) -> None:
    """Returns when all frames appended so far are on the medium."""
    sync_file(path)


def read(path: Path) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The (results, errors) of a journal, in the order they were appended, as views of its memory map.

    The file is cut off behind its last good frame: after a torn tail nothing is lost that was synced; behind damage in
    the middle everything is dropped, as nothing there says where the next frame starts. Either is logged as a warning.
    """
    content = _mapped(path)
    frames: dict[bytes, list[pa.RecordBatch]] = {RESULTS: [], ERRORS: []}
    good_bytes = 0
    for kind, payload in _frames(content):
        frames[kind].extend(pa.ipc.open_stream(payload))
        good_bytes += _HEADER.size + payload.size
    if lost := content.size - good_bytes:
        log.warning("%s: cut off %d bytes behind the last whole frame; rows that stood there are done again", path, lost)
        os.truncate(path, good_bytes)
        sync_file(path)
    return frames[RESULTS], frames[ERRORS]


def _mapped(path: Path) -> pa.Buffer:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _frames(content: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    """Kind and payload of each frame, up to the first that is not whole."""
    start = 0
    while start + _HEADER.size <= content.size:
        magic, kind, length, checksum = _HEADER.unpack(content.slice(start, _HEADER.size))
        start += _HEADER.size
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

"""Frames of a worker that cannot be true are refused before the writer sees them, and a row is given up only while it is open."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.runner.cluster.frame_intake import FrameIntake, Tokens
from mlx_bulk.runner.cluster.messages import Frame, Frames, Place
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.pipeline.row_requests import NOTHING_RECORDED
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.part_file import errors_schema
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.writer import Writer

SCHEMA = pa.schema([pa.field("row", pa.int64(), False), pa.field("sample", pa.int32(), False), pa.field("text", pa.string())])
LAYOUT = Layout(10, 4)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    paths = RunPaths(tmp_path)
    paths.journal.mkdir()
    return Writer(paths, "0" * 64, SCHEMA, LAYOUT, NOTHING_RECORDED, 10.0)


def frame(row: int, sample: int | None, kind: bytes = journal.RESULTS) -> Frame:
    schema = SCHEMA if kind == journal.RESULTS else errors_schema(SCHEMA)
    values: dict[str, Any] = dict.fromkeys(schema.names) | {"row": row, "sample": sample, "text": "a"}
    texts = {field.name: "a" for field in schema if not field.nullable and pa.types.is_string(field.type)}
    batch = pa.RecordBatch.from_pylist([{name: {**values, **texts}[name] for name in schema.names}], schema=schema)
    return Frame(kind.decode(), *journal.frame_content(kind, batch))


def frames(shard: int, *content: Frame, admitted: Sequence[Place] = ()) -> Frames:
    return Frames("run", 1, shard, tuple(admitted), (), content)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (frames(3), "no shard 3"),
        (frames(-1), "no shard -1"),
        (frames(10**30), "no shard"),
        (frames(0, frame(0, -1)), "a sample that no row has"),
        (frames(0, frame(0, -7, journal.ERRORS)), "a sample that no row has"),
        (frames(0, admitted=[(0, 2**31)]), "row 0"),
        (frames(0, frame(4, 0)), "not of shard 0"),
        (frames(0, Frame("X", b"", b"")), "of kind 'X'"),
        (frames(0, frame(1, 0), frame(1, 0)), "a row and sample twice"),
        (frames(0, frame(1, None, journal.ERRORS), frame(1, None, journal.ERRORS)), "a row and sample twice"),
        (frames(0, frame(1, None)), "no value where the run has one"),
        (replace(frames(0, frame(1, 0)), tokens=((1, 10**400, 0, 0),)), "too large"),
    ],
)
def test_what_cannot_be_true_is_refused_and_the_run_goes_on(writer: Writer, message: Frames, found: str):
    intake = FrameIntake(writer, SCHEMA, LAYOUT)
    with pytest.raises(ValueError, match=found):
        intake.land(message, lambda kept: None)
    intake.land(frames(0, frame(1, 0), admitted=[(1, 1)]), lambda kept: None)
    writer.wait()
    assert (writer.rows, writer.records, writer.running) == (1, 1, True)
    writer.close()


def test_a_row_that_was_finished_meanwhile_is_not_given_up(writer: Writer):
    intake = FrameIntake(writer, SCHEMA, LAYOUT)
    intake.land(frames(0, frame(1, 0), admitted=[(1, 1)]), lambda kept: None)
    for row in (1, 2):
        intake.fail(0, [], [Failure(row, str(row), None, "generate", "EngineAborted", "2 workers died", "{}")])
    writer.wait()
    assert (writer.rows, writer.records, writer.errors, writer.running) == (2, 1, 1, True)
    writer.close()


def test_tokens_count_once_with_the_records_that_are_kept(writer: Writer):
    intake, kept = FrameIntake(writer, SCHEMA, LAYOUT), list[Tokens]()
    one = replace(frames(1, frame(5, 0), frame(6, 0), admitted=[(5, 1), (6, 1)]), tokens=((5, 3, 10, 0), (6, 4, 20, 1)))
    again = replace(frames(1, frame(6, 0), frame(7, 0), admitted=[(6, 1), (7, 1)]), tokens=((6, 4, 20, 1), (7, 5, 30, 2)))
    for message in (one, again, again):
        intake.land(message, kept.append)
    writer.wait()
    assert kept == [Tokens(7, 30, 1), Tokens(5, 30, 2), Tokens()]
    with pytest.raises(ValueError, match="below 0"):
        intake.land(replace(again, tokens=((6, -4, 20, 1),)), kept.append)
    writer.close()


def test_an_error_that_nobody_has_foreseen_is_the_messages_own(writer: Writer, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise NotImplementedError("unknown type")

    intake = FrameIntake(writer, SCHEMA, LAYOUT)
    monkeypatch.setattr(FrameIntake, "_require_ours", fail)
    with pytest.raises(ValueError, match="NotImplementedError: unknown type"):
        intake.land(frames(0, frame(1, 0)), lambda kept: None)
    writer.close()


def _wait(event: threading.Event) -> None:
    assert event.wait(30)


def test_no_more_is_taken_in_while_much_waits_to_be_written(writer: Writer, monkeypatch: pytest.MonkeyPatch):
    """The disk is slow: the writer's thread is at something else meanwhile."""
    intake, slow = FrameIntake(writer, SCHEMA, LAYOUT), threading.Event()
    monkeypatch.setattr("mlx_bulk.runner.cluster.frame_intake.FULL_BYTES", 1)
    assert intake.has_room(0.0)
    writer.look_up([0], lambda states: _wait(slow))
    intake.land(frames(0, frame(1, 0), admitted=[(1, 1)]), lambda kept: None)
    assert not intake.has_room(0.0)
    slow.set()
    assert intake.has_room(30.0)
    writer.close()


def test_of_each_message_what_is_new_is_appended(writer: Writer, tmp_path: Path):
    intake, path = FrameIntake(writer, SCHEMA, LAYOUT), RunPaths(tmp_path).journal_of(0)
    came = [frame(1, 0), frame(2, None, journal.ERRORS)]
    intake.land(frames(0, *came, admitted=[(1, 1), (2, 1)]), lambda kept: None)
    intake.land(frames(0, frame(1, 0), frame(0, 0)), lambda kept: None)
    writer.wait()
    content = path.read_bytes()
    assert all(each.checksum + each.payload in content for each in came)
    found, damaged = journal.peek(path)
    assert found is not None
    assert damaged == 0
    assert [batch.column("row").to_pylist() for batch in (*found.results, *found.errors)] == [[1], [0], [2]]
    writer.close()


def test_bytes_behind_a_batch_are_refused(writer: Writer):
    payload = frame(1, 0).payload + bytes(8)
    checksum = blake2b(b"R" + len(payload).to_bytes(8, "little") + payload, digest_size=16).digest()
    with pytest.raises(ValueError, match="8 bytes behind its batch"):
        FrameIntake(writer, SCHEMA, LAYOUT).land(frames(0, Frame("R", payload, checksum)), lambda kept: None)
    writer.close()

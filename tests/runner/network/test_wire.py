"""Messages between driver and workers survive the way there, and a wrong one is refused."""

import pytest
from mlx_bulk.runner.cluster.messages import (
    Ack,
    Figures,
    Frame,
    Frames,
    Hello,
    Lease,
    Message,
    PolicyRefused,
    RunFailed,
)
from mlx_bulk.runner.network.wire import from_wire, to_wire
from mlx_bulk.runner.parcels.file_messages import PicturePart, PictureTaken, PictureWanted, Piece


def plain(value: object) -> object:
    """What msgpack makes of a value: tuples become lists."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    "message",
    [
        Lease("ab", "1-2", 3, b"rows", ((4, 0), (5, -1)), True),
        Lease("ab", "1-2", 3, b"rows", policy="3-aa"),
        PictureWanted("ab", 1 << 50, '["a\\ud800", "image", "."]', "0" * 64, 1 << 20),
        PicturePart("ab", 1 << 50, 1 << 20, "0" * 64, 1 << 21, b"\x00\xff", "image: a.png is not there"),
        PictureTaken("ab"),
        Piece("ab", "3-aa", (("a.json", 3), ("b", 0)), 1, b"\x00\xff", b"sum"),
        PolicyRefused("ab", "3-aa", "no such layer"),
        Ack("ab", 7),
        Hello("studio-12-ab", "studio", {"device": "cpu", "memory": 12, "load": 0.5, "gpu": None}, "ab", {"1-2": [4, 5]}),
        Frames("ab", 1, 0, ((4, 2),), ((4, 0), (4, 1)), (Frame("R", b"\x00\xff", b"sum"),), ((4, 7, 12, 0),)),
        Figures("ab", {"generated": 12}, "decoding"),
        RunFailed("ab", "DataError", "row 3"),
    ],
)
def test_messages_come_back_as_they_went(message: Message):
    wire = plain(to_wire(message))
    assert isinstance(wire, dict)
    assert from_wire(wire) == message


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ({}, "kind None"),
        ({"type": "Pickle", "run": "a"}, "kind 'Pickle'"),
        ({"type": "Ack", "run": "ab", "number": 1, "code": "x"}, "unknown fields code"),
        ({"type": "Ack", "run": "ab"}, "number"),
        ({"type": "Ack", "run": "ab", "number": "one"}, "number"),
        ({"type": "Frames", "run": "ab", "number": 1, "shard": 0, "admitted": [], "resolved": [], "frames": [{"kind": "R"}]}, "payload"),
    ],
)
def test_anything_else_is_refused(wire: dict[str, object], words: str):
    with pytest.raises(ValueError, match=words):
        from_wire(wire)

"""Tests a full volume and one without write access: exit 6 in one line; finished work continues elsewhere."""

import re
import sys
from dataclasses import replace

import pytest

from .points import COMMITS, REPLACE, SYNC, WRITE, Point
from .tiny_runs import TinyRun, parts

pytestmark = pytest.mark.slow

Parts = dict[str, bytes]

mounts = pytest.mark.skipif(sys.platform != "linux", reason="a process can mount a volume for itself alone on Linux only")


def said(stderr: str) -> str:
    """The last line, which says what stopped the run."""
    assert "Traceback" not in stderr
    return stderr.rstrip().rpartition("\n")[2]


@mounts
@pytest.mark.parametrize("size", ["12k", "40k", "8288k"])  # the last: more than a run keeps free, for a shard or two
def test_a_volume_that_fills_up(run: TinyRun, whole: dict[str, Parts], size: str):
    full, kept = run.folder / "full", run.folder / "kept"
    run.write("generate")
    full.mkdir()
    ended = run.start("--output", "full/run", mounts=[["tmpfs", str(full), size]], keep=[(full / "run", kept)])
    assert ended.code == 6, ended.stderr
    assert re.search(rf"[Tt]he volume {full} has [\d.,]+ \w+ free", said(ended.stderr)), ended.stderr
    assert (kept / "commits.jsonl").exists() == (size == "8288k")
    assert run.start("--output", "kept").code == 3
    assert parts(kept) == whole["generate"]


@mounts
def test_a_run_directory_made_read_only(run: TinyRun, whole: dict[str, Parts]):
    run.write("generate")
    run.killed_at(Point("torn line", WRITE, COMMITS, "torn", nth=2))
    ended = run.start(mounts=[["read-only", str(run.path)]])
    assert ended.code == 6
    assert "is on a read-only volume. Make it writable, or choose another --output." in said(ended.stderr)
    assert run.start().code == 3
    assert parts(run.path) == whole["generate"]


FULL = [
    Point("run.json", SYNC, r"/\.run\.json"),
    Point("inputs.json", SYNC, r"/\.inputs\.json"),
    Point("sessions.jsonl", WRITE, r"/sessions\.jsonl "),
    Point("a journal", WRITE, r"/journal/00000001 ", nth=2),
    Point("a part", SYNC, r"/results/\.part-00000001"),
    Point("a part's name", REPLACE, r"/errors/part-00000002"),
    Point("a commit's line", WRITE, COMMITS, nth=3),
    Point("the closing line", WRITE, COMMITS + r'\{"complete"'),
    Point("stats.arrow", SYNC, r"/\.stats\.arrow"),
    Point("summary.json", SYNC, r"/\.summary\.json"),
]


def test_no_room_for_any_file(run: TinyRun, whole: dict[str, Parts]):
    """One after another: each start comes a little further."""
    run.write("generate")
    for point in FULL:
        ended = run.start(points=[replace(point, action="full", again=True)])
        assert ended.points[:1] == [point.name]
        assert ended.code == 6, ended.stderr
        assert re.search(r"No space left on device\. The volume \S+ has [\d.,]+ \w+ free", said(ended.stderr)), ended.stderr
    assert run.start().code == 3
    assert parts(run.path) == whole["generate"]

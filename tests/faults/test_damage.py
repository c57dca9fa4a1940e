"""Tests a flipped bit or a cut tail in any file of a run directory: work is done again, or the start is refused.

One directory is of a complete run, one of a run that was killed. Each case is a process of its own: a parser that is given damaged
bytes may take its process with it.
"""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from .children import FORKS, Children
from .points import WRITE, Point
from .tiny_runs import THOROUGH, TinyRun, parts

pytestmark = pytest.mark.slow

CASES = 300 if THOROUGH else 60 if FORKS else 15  # a fresh process takes its time
ROWS = 10
STOPPED = Point("torn frame of the last shard", WRITE, "/journal/00000002 ", "torn", nth=4)
REFUSED = ("run.json", "stdin.jsonl")
FAULT_OF_OURS = "--log-level debug shows where"
NUMBER = re.compile(r"\d{8}.*")


def kinds(run: Path) -> dict[str, list[Path]]:
    """Returns the files of a run directory by kind, as each kind is damaged equally often."""
    found: dict[str, list[Path]] = {}
    for file in sorted(file for file in run.rglob("*") if file.is_file() and file.stat().st_size):
        name = str(file.relative_to(run))
        found.setdefault(NUMBER.sub("*", name), []).append(file)
    return found


class Begun:
    """A run to damage, in its own folder, and a copy of it."""

    def __init__(self, run: TinyRun, copy: Path, whole: dict[str, bytes]) -> None:
        self.run, self.copy, self.whole = run, copy, whole
        shutil.copytree(run.folder, copy)
        self.kinds = kinds(run.path)

    def restored(self) -> TinyRun:
        shutil.rmtree(self.run.folder)
        shutil.copytree(self.copy, self.run.folder)
        return self.run


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, children: Children) -> dict[str, Begun]:
    """A complete run and a killed one; both read their rows from stdin."""
    found: dict[str, Begun] = {}
    whole: dict[str, bytes] = {}
    for name, points in (("complete", []), ("killed", [STOPPED])):
        run = TinyRun(tmp_path_factory.mktemp(name), children)
        run.write("generate", ROWS, data={"path": "-"}, sampling={"max_tokens": 2})
        ended = run.start(points=points, stdin=run.folder / "rows.jsonl")
        assert ended.killed if points else ended.code == 3, ended.stderr
        whole = whole or outcome(run.path)
        found[name] = Begun(run, tmp_path_factory.mktemp("copies") / name, whole)
    return found


@settings(max_examples=CASES, deadline=None, derandomize=not THOROUGH, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(["complete", "killed"]),
    kind=st.integers(0, 99),
    number=st.integers(0, 99),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.none() | st.integers(0, 7),
)
def test_damage_is_mended_or_refused(begun: dict[str, Begun], name: str, kind: int, number: int, place: float, bit: int | None):
    state = begun[name]
    run, files = state.restored(), list(state.kinds.values())[kind % len(state.kinds)]
    file = files[number % len(files)]
    file.write_bytes(damaged(file.read_bytes(), place, bit))
    note(f"{file.relative_to(run.path)}, {'cut off' if bit is None else f'bit {bit} flipped'} at {place:.3f} of it")

    assert run.verify().exit_code == 5 or outcome(run.path) == state.whole
    before = outcome(run.path)
    ended = run.start(stdin=run.folder / "rows.jsonl")
    assert "Traceback" not in ended.stderr
    assert FAULT_OF_OURS not in ended.stderr
    if ended.code == 3:
        assert outcome(run.path) == state.whole
        assert run.verify().exit_code == 3
    else:
        assert ended.code in (4, 5), ended.stderr
        assert ended.stderr.startswith("mlx-bulk: ")
        assert file.name in REFUSED, ended.stderr
        assert outcome(run.path) == before


def damaged(content: bytes, place: float, bit: int | None) -> bytes:
    """``content`` cut off at ``place``, or with a bit flipped there."""
    at = int(place * len(content))
    return content[:at] if bit is None else content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def outcome(run: Path) -> dict[str, bytes]:
    """Returns all that other programs read of a run."""
    statistics = run / "stats.arrow"
    return parts(run) | ({"stats": statistics.read_bytes()} if statistics.exists() else {})

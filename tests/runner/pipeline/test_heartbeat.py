"""Tests the heartbeat: a line that names the step when a session stalls, and none while it moves."""

from time import monotonic

import pytest
from mlx_bulk.runner.core.progress import Progress
from mlx_bulk.runner.pipeline import heartbeat
from mlx_bulk.runner.pipeline.heartbeat import Heartbeat

from .test_progress_display import PATIENCE, heard


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "LOOK_SECONDS", 0.001)


def test_a_stall_says_what_the_engine_is_doing():
    progress = Progress()
    beat = Heartbeat(stall_seconds=120)
    progress.report_to(beat.activity, lambda rows: None)
    progress.doing("prefilling 4 rows of up to 900 tokens")
    beat.activity.since = monotonic() - 200
    with heard() as handler, beat:
        assert handler.first.wait(PATIENCE)
    assert handler.messages == ["no step for 200 s: still prefilling 4 rows of up to 900 tokens"]  # once, not at every look


def test_before_the_engine_starts_it_names_the_sessions_step():
    beat = Heartbeat(stall_seconds=0.01)
    beat.doing("loading the model")
    with heard() as handler, beat:
        assert handler.first.wait(PATIENCE)
    assert handler.messages[0] == "no step for 0 s: still loading the model"


def test_a_session_that_moves_is_no_stall(monkeypatch: pytest.MonkeyPatch):
    looked = 0

    def steps() -> float:
        nonlocal looked
        looked += 1
        return monotonic()

    progress = Progress()
    beat = Heartbeat(stall_seconds=1000)
    progress.report_to(beat.activity, lambda rows: None)
    monkeypatch.setattr(heartbeat, "monotonic", steps)
    with heard() as handler, beat:
        while looked < 3:
            progress.doing("decoding 4 rows")
    assert handler.messages == []

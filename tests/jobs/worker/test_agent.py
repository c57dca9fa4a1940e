"""Tests the agent with real engine processes that echo rows, and a driver in the test's own hands."""

import signal
import tempfile
from pathlib import Path

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.jobs.worker import agent
from mlx_bulk.jobs.worker.agent import NO_DRIVER, Signalled, Stay
from mlx_bulk.jobs.worker.driver_line import DriverSaid
from mlx_bulk.runner.cluster.held_leases import HeldLeases
from mlx_bulk.runner.cluster.messages import (
    Ack,
    Begun,
    Dismiss,
    EngineDied,
    Frames,
    Hello,
    LeaseDone,
    Ready,
    RunFailed,
    RunOffer,
    StopRun,
)

from ...runner.pipeline.test_progress_display import heard
from ..support.agents import PATIENCE, RUN, AgentsDriver, AgentThread, at_work, lease


def test_rows_go_out_and_frames_come_back_over_a_lost_connection_and_a_death(tmp_path: Path):
    with heard() as handler, at_work(killers=[2], batch=2, starts=str(tmp_path / "starts")) as (driver, worker):
        driver.say(lease("d-1", [0, 1]))
        frames = driver.hear(Frames), driver.hear(Frames)
        driver.hear(LeaseDone, lease="d-1")
        driver.go()
        driver.is_there.set()
        hello = driver.hear(Hello)
        assert (hello.run, hello.leases) == (RUN, {"d-1": [0, 1]})  # sent, but not acked
        assert (driver.told.get(timeout=PATIENCE), driver.told.get(timeout=PATIENCE)) == frames
        driver.say(RunOffer(RUN, b""))
        driver.hear(Ready)  # without another engine
        driver.say(Ack(RUN, 2), lease("d-2", [2, 3]))
        assert driver.hear(EngineDied).follows == "it starts again and runs them apart, at most 1 at once"
        assert driver.hear(EngineDied).follows == "it goes to errors/"
        driver.land({(2, -1), (3, 0)})
        driver.hear(LeaseDone, lease="d-2")
        worker.inbox.put(DriverSaid(Dismiss()))
        worker.inbox.put(Signalled(signal.SIGTERM))
        assert worker.left() == 128 + signal.SIGTERM
        assert driver.closed
        assert len((tmp_path / "starts").read_text().splitlines()) == 3
    assert handler.messages == [
        "joined the driver as w-1",
        f"run {RUN[:8]}: making ready for it",
        f"run {RUN[:8]}: ready: echo",
        "the connection to the driver is lost: waiting for it; its engine goes on, and finished rows are sent when the driver is back",
        "joined the driver as w-1",
        "the process died of SIGABRT with 2 rows in the model: it starts again and runs them apart, at most 1 at once",
        "the process died of SIGABRT again with row 2 alone in the model: it goes to errors/",
        "the run has ended: waiting for the next one",
        "SIGTERM: sending finished rows and leaving (again: leave at once)",
    ]


def test_a_signal_lets_the_engine_finish_and_waits_for_acks():
    with at_work(hold=True) as (driver, worker):
        driver.say(lease("d-1", [4]))
        driver.hear(Begun)
        worker.inbox.put(Signalled(signal.SIGINT))
        frames = driver.hear(Frames)
        assert worker.code is None
        driver.say(Ack(RUN, frames.number))
        assert worker.left() == 130


def test_a_second_signal_leaves_at_once():
    with at_work(hold=True) as (driver, worker):
        driver.say(lease("d-1", [4]))
        driver.hear(Begun)
        worker.inbox.put(Signalled(signal.SIGINT))
        driver.hear(Frames)  # never acked
        worker.inbox.put(Signalled(signal.SIGTERM))
        assert worker.left() == 130


def test_an_idle_worker_starts_no_engine_and_leaves_when_it_is_dismissed():
    driver = AgentsDriver()
    worker = AgentThread(driver, Stay(once=True), {})
    assert driver.hear(Hello) == Hello("w-1", "host", {})
    driver.say(Dismiss())
    assert (worker.left(), worker.engines) == (0, [])


def test_a_worker_that_stays_says_nothing_of_a_run_that_has_ended():
    with at_work() as (driver, _), heard() as handler:
        driver.say(Dismiss())
        driver.go()
        driver.is_there.set()
        driver.hear(Hello)
        assert handler.messages[:2] == [
            "the run has ended: waiting for the next one",
            "the connection to the driver is lost: waiting for it",
        ]


def test_a_worker_for_one_run_leaves_after_it_and_its_driver():
    with at_work(Stay(once=True)) as (driver, worker):
        driver.say(StopRun(RUN))
        driver.go()
        assert worker.left() == 0


@pytest.mark.parametrize("stay", [Stay(once=True, wait=0.2), pytest.param(Stay(wait=0.2), marks=pytest.mark.slow)])
def test_a_worker_waits_for_a_driver_as_long_as_it_was_told(stay: Stay):
    driver = AgentsDriver()
    driver.is_there.clear()
    worker = AgentThread(driver, stay, {})
    assert worker.left() == NO_DRIVER


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_worker_whose_driver_stays_away_ends_its_engine_in_order(tmp_path: Path, folder: Path):
    with at_work(Stay(wait=0.2), ended=str(tmp_path / "ended")) as (driver, worker):
        assert any(folder.iterdir())
        driver.go()
        assert worker.left() == NO_DRIVER
    assert (tmp_path / "ended").exists()
    assert not any(folder.iterdir())


@pytest.mark.slow
def test_what_a_killed_engine_leaves_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent, "ENGINE_SECONDS", 0.2)
    monkeypatch.setattr(agent, "ACK_SECONDS", 0.0)
    with at_work(Stay(wait=0.2), hangs=True) as (driver, worker):
        driver.go()
        assert worker.left() == NO_DRIVER
    assert not any(folder.iterdir())


def test_a_driver_that_refuses_this_worker_ends_it():
    driver = AgentsDriver()
    driver.error = ConfigError("keys: found none")
    assert str(AgentThread(driver, Stay(), {}).left()) == "keys: found none"


def test_an_engine_that_ends_by_itself_fails_its_run_and_the_next_offer_starts_another():
    with at_work(exit=7) as (driver, worker):
        driver.say(lease("d-1", [1]))
        assert driver.hear(RunFailed).message == "the engine's process ended by itself, with code 7, in the middle of a run"
        driver.say(RunOffer(RUN, b""))
        driver.hear(Ready)
        assert len(worker.engines) == 2


def test_an_agent_takes_no_more_frames_than_it_may_hold(monkeypatch: pytest.MonkeyPatch):
    """Also the socket fills then, so that the engine waits; acks let it go on."""
    monkeypatch.setattr(HeldLeases.__init__, "__defaults__", (4 << 20,))
    with at_work(bytes=1 << 20) as (driver, _):
        driver.say(lease("d-1", range(12)))
        taken = [driver.hear(Frames) for _ in range(5)]
        driver.say(RunOffer(RUN, b""))
        assert isinstance(driver.told.get(timeout=PATIENCE), Ready)  # and no frame before it
        assert driver.told.empty()
        driver.say(Ack(RUN, taken[-1].number))
        driver.land({(row, 0) for row in range(5, 12)})

"""Tests what a worker makes of a driver that comes and goes: offers of runs, stops, and what the engine wants of it."""

import signal
from typing import cast

from mlx_bulk.jobs.worker.engine_process import EngineEnded, EngineProcess
from mlx_bulk.jobs.worker.run_work import FAULTS
from mlx_bulk.runner.cluster.messages import (
    Ack,
    EngineDied,
    Frames,
    NewestPolicy,
    Ready,
    RunFailed,
    RunOffer,
    RunRefused,
    RunStopped,
    StopRun,
)
from mlx_bulk.runner.parcels.file_messages import PicturePart, PictureWanted, Piece, PieceWanted
from mlx_bulk.runner.store.shard_ledger import WHOLE

from ..support.simulated_engine import OTHER, RUN, Simulation, lease


def test_an_engine_that_refuses_a_run_serves_the_next_one():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.engines[0].say(RunRefused(RUN, ("mlx: found 1, expected 2",)))
    assert simulation.told == [RunRefused(RUN, ("mlx: found 1, expected 2",))]
    assert simulation.work.run is None
    simulation.engines[0].got.clear()
    simulation.work.begin(RunOffer(RUN, b""))  # of a driver that was set right
    simulation.run_engine()
    assert (len(simulation.engines), simulation.told[-1]) == (1, Ready(RUN, '{"model": "demo"}'))


def test_the_same_offer_again_is_answered_from_memory():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.begin(RunOffer(RUN, b""))
    assert simulation.told == [Ready(RUN, '{"model": "demo"}')] * 2
    assert [type(message) for message in simulation.engines[0].sent] == [Ready]


def test_a_stopped_run_sends_what_is_finished_and_takes_nothing_new():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("d-1", [0]))
    simulation.work.stop(StopRun(RUN))
    assert simulation.engines[0].got[-1] == StopRun(RUN)
    simulation.work.take(lease("d-2", [1]))
    assert simulation.engines[0].got[-1] == StopRun(RUN)
    simulation.run_engine()
    assert simulation.landed == {(0, 0): 1}
    assert simulation.told[-1] == RunStopped(RUN)  # after the frames
    assert (simulation.work.run, simulation.work.held.unfinished) == (RUN, {})  # its frames are not acked
    simulation.work.acknowledge(Ack(RUN, 1))
    assert simulation.work.run is None


def test_a_stop_is_answered_once_whatever_the_engine_does():
    simulation = Simulation()
    simulation.work.stop(StopRun(RUN))  # of a driver that this worker refused
    assert simulation.told == [RunStopped(RUN)]
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.stop(StopRun(RUN))
    simulation.work.stop(StopRun(RUN))
    simulation.work.hear(EngineEnded(cast(EngineProcess, simulation.engines[0]), -signal.SIGKILL))
    assert simulation.told[1:] == [Ready(RUN, '{"model": "demo"}'), RunStopped(RUN)]


def test_the_end_of_a_run_is_not_told_to_a_driver_that_has_begun_it_again():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.stop(StopRun(RUN))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    assert simulation.told == [Ready(RUN, '{"model": "demo"}')] * 2


def test_another_run_stops_the_one_before():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.begin(RunOffer(OTHER, b""))
    assert list(simulation.engines[0].got) == [StopRun(RUN), RunOffer(OTHER, b"")]
    simulation.run_engine()
    simulation.engines[0].say(Frames(RUN, 1, 0, (), ((0, 0),), ()))  # late
    assert simulation.told[-1] == Ready(OTHER, '{"model": "demo"}')


def test_a_new_start_of_a_run_tries_its_fatal_rows_again():
    simulation = Simulation(batch=1, killers=frozenset({0}))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("d-1", [0, 1]))
    simulation.run_engine()
    assert simulation.landed == {(0, WHOLE): 1, (1, 0): 1}
    simulation.work.stop(StopRun(RUN))
    engines = len(simulation.engines)
    simulation.work.begin(RunOffer(RUN, b""))
    assert len(simulation.engines) == engines + 1
    assert not simulation.engines[-2].alive
    assert simulation.engines[-1].orders["fatal_rows"] == {}


def test_what_the_engine_wants_is_asked_for_again_on_a_new_connection_until_it_comes():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.online = False
    simulation.engines[-1].say(wanted := PieceWanted(RUN, "3-aa", 0))
    simulation.reconnect()
    simulation.work.ask_again()
    assert simulation.told[-1] == wanted
    simulation.work.hand_on(piece := Piece(RUN, "3-aa", (("a", 1),), 0, b"x", b""))
    assert simulation.engines[-1].got.pop() == piece
    simulation.work.ask_again()
    assert simulation.told.count(wanted) == 1


def test_a_picture_and_a_parcel_may_be_wanted_at_once():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    wanted = [PieceWanted(RUN, "3-aa", 0), PictureWanted(RUN, 7, "[]")]
    for each in wanted:
        simulation.engines[-1].say(each)
    for left, answer in ((wanted, Piece(RUN, "3-aa", (("a", 1),), 0, b"x", b"")), (wanted[1:], PicturePart(RUN, 7)), ([], None)):
        told = len(simulation.told)
        simulation.work.ask_again()
        assert simulation.told[told:] == left
        if answer is not None:
            simulation.work.hand_on(answer)
            assert simulation.engines[-1].got.pop() == answer


def test_a_new_engine_hears_of_the_newest_policy_and_asks_for_itself():
    simulation = Simulation(killers=frozenset({1}))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.hand_on(newest := NewestPolicy(RUN, 7))
    simulation.engines[-1].say(PieceWanted(RUN, "3-aa", 0))
    simulation.engines[-1].got.clear()
    simulation.work.take(lease("d-1", [1, 2]))
    assert simulation.engines[-1].step()  # it dies
    assert simulation.engines[-1].step()  # the next one is ready
    assert simulation.engines[-1].got[0] == newest
    told = len(simulation.told)
    simulation.work.ask_again()
    assert len(simulation.told) == told


def test_a_fault_of_a_machine_makes_no_row_suspect():
    """A group's rank hangs, or its machine is gone, with rows in the model; then the engine dies before it has any."""
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("a", range(4)))

    def lose(code: int, fault: str) -> None:
        engine = simulation.engines[-1]
        engine.suspects.receive({"rows": [0, 1, 2, 3]} if fault else {})
        simulation.work.hear(EngineEnded(cast(EngineProcess, engine), code, "rank 1 (second)", fault))

    lose(91, "rank 1 (second) saw no step of the others")
    lose(-signal.SIGKILL, "")
    died = [message for message in simulation.told if isinstance(message, EngineDied)]
    assert (died[0].cause, died[0].follows) == ("rank 1 (second) saw no step of the others", "its processes start again")
    assert "before the model had any row" in died[1].cause
    assert simulation.engines[-1].orders["suspect_groups"] == {}
    simulation.run_engine()
    assert simulation.landed == dict.fromkeys([(row, 0) for row in range(4)], 1)


def test_a_group_that_does_not_come_back_gives_the_run_up():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    for _ in range(FAULTS + 1):
        simulation.work.hear(
            EngineEnded(cast(EngineProcess, simulation.engines[-1]), 255, "rank 1 (b)", "ssh has no connection to rank 1 (b)")
        )
    assert simulation.kinds() == ["EngineDied"] * FAULTS + ["RunFailed"]
    failed = simulation.told[-1]
    assert isinstance(failed, RunFailed)
    assert failed.message.startswith("ssh has no connection to rank 1 (b); it was so 4 times with no finished row between")

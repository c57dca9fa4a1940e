"""Tests what a worker's agent remembers: what is unfinished, what is sent again, and what a new engine process is given."""

import pickle
from collections.abc import Iterable
from dataclasses import replace

from mlx_bulk.runner.cluster.held_leases import HeldLeases
from mlx_bulk.runner.cluster.messages import Ack, Begun, Frame, Frames, Lease, LeaseDone, NoRoom, Place
from mlx_bulk.runner.core.host_process import Orders
from mlx_bulk.runner.core.requests import BadRow, Row
from mlx_bulk.runner.store.shard_ledger import WHOLE

RUN = "abc"


def lease(name: str, positions: Iterable[int], recorded: tuple[Place, ...] = (), shard: int = 0, alone: bool = False) -> Lease:
    rows = [BadRow(at, "torn", "{") if at == 99 else Row(at, str(at), {"q": at}) for at in positions]
    return Lease(RUN, name, shard, pickle.dumps(rows), recorded, alone)


def frames(*resolved: Place, admitted: Iterable[int] = (), samples: int = 1, number: int = 1, size: int = 4) -> Frames:
    rows = tuple((at, samples) for at in admitted or {at for at, sample in resolved if sample != WHOLE})
    return Frames(RUN, number, 0, rows, resolved, (Frame("R", b"x" * size, b""),))


def positions_of(given: Lease) -> list[int]:
    return [row.position for row in pickle.loads(given.rows)]


def holding(*leases: Lease, full_bytes: int = 1 << 20) -> HeldLeases:
    held = HeldLeases(full_bytes)
    held.begin(RUN)
    assert all(held.take(each) for each in leases)
    return held


def test_a_row_is_unfinished_until_all_its_samples_are_acked():
    held = holding(lease("d-1", [4, 5, 99], recorded=((4, 0),)))
    assert held.unfinished == {"d-1": [4, 5, 99]}
    held.relay(frames((4, 1), (99, WHOLE), admitted=[4, 5], samples=2))
    assert held.unfinished == {"d-1": [4, 5, 99]}  # the driver may not have them
    held.acknowledge(Ack(RUN, 1))
    assert held.unfinished == {"d-1": [5]}
    held.relay(frames((5, 0)))
    held.relay(frames((5, 1)))
    held.acknowledge(Ack(RUN, 2))
    assert held.unfinished == {"d-1": [5]}
    held.acknowledge(Ack(RUN, 3))
    assert held.unfinished == {"d-1": []}


def test_a_driver_that_comes_later_hears_how_many_records_rows_have_that_an_earlier_one_had():
    held = holding(lease("d-1", [1, 2, 3]), lease("d-2", [100], shard=1))
    held.relay(frames((1, 0), (2, 0), admitted=[1, 2, 3], samples=2))
    assert held.admissions == []  # the frames tell it
    held.acknowledge(Ack(RUN, 1))
    held.relay(frames((3, 0)))
    assert held.admissions == [Frames(RUN, 0, 0, ((1, 2), (2, 2)), (), ())]
    held.acknowledge(Ack(RUN, 0))  # of this message
    assert held.unacked
    held.begin("another run")
    assert held.admissions == []


def test_frames_are_kept_in_order_until_they_are_acked():
    held = holding(lease("d-1", [1, 2]), lease("d-2", [3]))
    (first,), (second,) = held.relay(frames((1, 0))), held.relay(frames((2, 0), number=2))
    assert held.relay(LeaseDone(RUN, "d-1")) == [LeaseDone(RUN, "d-1")]
    (third,) = held.relay(frames((3, 0), number=1))  # of another engine process, which counts from 1
    assert [message.number for message in (first, second, third) if isinstance(message, Frames)] == [1, 2, 3]
    assert held.outbox == (first, second, LeaseDone(RUN, "d-1"), third)
    held.acknowledge(Ack(RUN, 2))
    assert held.outbox == (LeaseDone(RUN, "d-1"), third)  # it may have been lost, whatever was acked
    held.acknowledge(Ack("another", 3))
    assert held.unacked
    held.acknowledge(Ack(RUN, 3))
    assert (held.outbox, held.unacked, held.unfinished) == ((), False, {"d-2": []})


def test_too_much_unacked_is_full():
    held = holding(lease("d-1", [1, 2]), full_bytes=10)
    held.relay(frames((1, 0), size=8))
    assert not held.full
    held.relay(frames((2, 0), size=8))
    assert held.full
    held.acknowledge(Ack(RUN, 1))
    assert not held.full


def test_a_new_engine_gets_what_is_unfinished_with_what_is_recorded():
    held = holding(lease("d-1", [1, 2, 3], recorded=((2, 0),)), lease("d-2", [8, 99], shard=1))
    held.relay(frames((1, 0), (1, 1), (3, 1), admitted=[1, 2, 3], samples=2))
    again, done = held.give_again(Orders(), frozen=False)
    assert [(each.shard, each.alone, positions_of(each), each.recorded) for each in again] == [
        (0, False, [2, 3], ((2, 0), (3, 1))),
        (1, False, [8, 99], ()),
    ]
    assert done == []
    assert again[1] == lease("d-2", [8, 99], shard=1)  # nothing of it was done: it goes out as it came


def test_suspects_run_apart_and_their_lease_is_done_once():
    held = holding(lease("d-1", [1, 2, 3, 4, 5]), lease("d-2", [6, 7], shard=1))
    assert held.relay(Begun(RUN, "d-1")) == [Begun(RUN, "d-1")]
    held.relay(frames((1, 0)))
    again, _ = held.give_again(Orders(suspect_groups=((2, 3), (4, 6)), fatal_rows={5: "died"}), frozen=False)
    assert [(positions_of(each), each.alone, each.shard) for each in again] == [
        ([5], True, 0),
        ([2, 3], True, 0),
        ([4], True, 0),  # the group (4, 6) lies in two shards
        ([6], True, 1),
        ([7], False, 1),
    ]
    names = [each.lease for each in again]
    assert len({*names, "d-1", "d-2"}) == 7
    assert held.relay(Begun(RUN, names[1])) == []  # the driver knows
    assert held.relay(Begun(RUN, names[3])) == [Begun(RUN, "d-2")]
    told = [held.relay(LeaseDone(RUN, name)) for name in names]
    assert told == [[], [], [LeaseDone(RUN, "d-1")], [], [LeaseDone(RUN, "d-2")]]
    assert held.give_again(Orders(), frozen=False) == ([], [])


def test_what_a_piece_has_done_is_not_given_again():
    held = holding(lease("d-1", [1, 2, 3]))
    (apart, rest), _ = held.give_again(Orders(suspect_groups=((2,),)), frozen=False)
    held.relay(LeaseDone(RUN, apart.lease))  # without a record: a group that was dropped, say
    again, _ = held.give_again(Orders(suspect_groups=((2,), (3,))), frozen=False)
    assert [positions_of(each) for each in again] == [[3], [1]]
    assert held.relay(LeaseDone(RUN, rest.lease)) == []  # of an engine that is dead


def test_a_lease_whose_end_the_dead_engine_could_not_tell_is_done():
    held = holding(lease("d-1", [1]), lease("d-2", [2]))
    held.relay(frames((1, 0)))
    again, done = held.give_again(Orders(), frozen=False)
    assert ([each.lease for each in again], done) == (["d-2"], [LeaseDone(RUN, "d-1")])
    assert held.outbox[-1] == LeaseDone(RUN, "d-1")
    assert held.give_again(Orders(), frozen=False)[1] == []


def test_a_frozen_lease_is_given_again_whole():
    held = holding(lease("d-1", [1, 2, 3], recorded=((1, 0),)))
    held.relay(frames((2, 0)))
    (again,), _ = held.give_again(Orders(suspect_groups=((3,),)), frozen=True)
    assert (again.lease, positions_of(again), again.recorded, again.alone) == ("d-1", [1, 2, 3], ((1, 0), (2, 0)), False)
    assert held.relay(LeaseDone(RUN, "d-1")) == [LeaseDone(RUN, "d-1")]


def test_a_lease_is_taken_once_and_for_its_run_alone():
    held = holding(lease("d-1", [1]))
    assert not held.take(lease("d-1", [1]))
    held.begin("another")
    assert not held.take(lease("d-2", [2]))
    assert held.unfinished == {}


def test_another_run_forgets_all_and_the_same_run_nothing():
    held = holding(lease("d-1", [1, 2]))
    held.relay(frames((1, 0)))
    held.begin(RUN)
    assert held.unfinished == {"d-1": [1, 2]}
    held.stop()
    assert (held.unfinished, held.unacked) == ({}, True)  # what is finished is still sent
    held.relay(frames((2, 0)))
    assert [message.number for message in held.outbox if isinstance(message, Frames)] == [1, 2]
    held.begin("another")
    assert (held.outbox, held.full) == ((), False)
    assert held.relay(frames((2, 0))) == []


def test_rows_that_come_again_under_another_name_are_not_given_to_the_engine_twice():
    """The driver took this worker for gone, and then gave it its own rows again."""
    held = holding(lease("d-1", [1, 2, 3]))
    held.relay(frames((1, 0)))
    again = held.take(lease("d-2", [1, 2, 3, 4]))
    assert again is not None
    assert (positions_of(again), again.alone) == ([4], False)
    assert held.take(lease("d-3", [2, 3])) is None
    assert held.relay(Begun(RUN, again.lease)) == [Begun(RUN, "d-2")]
    held.relay(frames((2, 0), (3, 0)))
    assert held.relay(LeaseDone(RUN, "d-1")) == [LeaseDone(RUN, "d-1")]
    held.relay(frames((4, 0)))
    assert held.relay(LeaseDone(RUN, again.lease)) == [LeaseDone(RUN, "d-2"), LeaseDone(RUN, "d-3")]
    held.acknowledge(Ack(RUN, 3))
    assert {position for left in held.unfinished.values() for position in left} == set()


def test_a_new_engine_gets_rows_once_that_two_leases_have():
    for frozen in (False, True):
        held = holding(lease("d-1", [1, 2, 3]))
        assert held.take(lease("d-2", [1, 2, 3])) is None
        held.relay(frames((1, 0)))
        again, done = held.give_again(Orders(), frozen)
        assert ([positions_of(each) for each in again], done) == ([[1, 2, 3] if frozen else [2, 3]], [])
        held.relay(frames((2, 0), (3, 0)))
        assert held.relay(LeaseDone(RUN, again[0].lease)) == [LeaseDone(RUN, "d-1"), LeaseDone(RUN, "d-2")]


def test_a_second_lease_of_rows_ends_with_the_first_when_the_engine_died_at_their_end():
    held = holding(lease("d-1", [1]))
    held.take(lease("d-2", [1]))
    held.relay(frames((1, 0)))
    assert held.give_again(Orders(), frozen=False) == ([], [LeaseDone(RUN, "d-1"), LeaseDone(RUN, "d-2")])


def test_leases_of_a_policy_that_cannot_be_loaded_are_forgotten():
    held = holding(replace(lease("d-1", [1, 2]), policy="3-aa"), replace(lease("d-2", [3]), policy="2-bb"))
    held.drop_policy("3-aa")
    assert held.unfinished == {"d-2": [3]}
    again, _ = held.give_again(Orders(), False)
    assert [(each.lease, each.policy) for each in again] == [("d-2", "2-bb")]


def test_rows_that_come_again_under_another_policy_do_not_wait_for_a_lease_that_is_refused():
    held = holding(replace(lease("d-1", [1, 2]), policy="3-aa"))
    again = replace(lease("d-2", [1, 2]), policy="2-bb")
    given = held.take(again)  # the driver knew of the refusal when it sent this, and not when it sent the first one
    assert given is not None
    assert (given.lease, positions_of(given)) == ("d-2", [1, 2])
    held.drop_policy("3-aa")
    assert held.relay(LeaseDone(RUN, "d-2")) == [LeaseDone(RUN, "d-2")]


def test_a_lease_without_room_is_given_up_with_those_whose_rows_were_done_with_it():
    """The driver took this worker for gone, and gave it a shard that it has."""
    held = holding(lease("d-1", [1, 2]), lease("d-3", [5, 6], shard=1))
    assert held.take(lease("d-2", [1, 2])) is None
    assert held.give_up(NoRoom(RUN, "d-1", "small")) == [NoRoom(RUN, "d-1", "small"), NoRoom(RUN, "d-2", "small")]
    assert held.unfinished == {"d-3": [5, 6]}
    assert held.give_up(NoRoom(RUN, "d-1", "small")) == []

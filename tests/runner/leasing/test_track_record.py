"""Which workers are used no more: those that go wrong while others are fine."""

from itertools import count

from mlx_bulk.runner.leasing.track_record import TrackRecords


def lose(tracks: TrackRecords, joined: int) -> str:
    """Loses the worker "a" a second after it has joined."""
    return tracks.lose("a", joined, joined + 1)


def test_a_worker_that_is_lost_three_times_without_a_row_is_bad_while_others_are_fine():
    tracks, times = TrackRecords(), count(step=2)
    assert [lose(tracks, next(times)) for _ in range(5)] == [""] * 5  # nobody else has done anything
    tracks.land("a", 1, 0)
    assert [lose(tracks, next(times)), lose(tracks, next(times))] == ["", ""]
    tracks.land("b", 1, 0)
    assert lose(tracks, next(times)).startswith("was lost 3 times in a row without a finished row, while others are fine")


def test_workers_of_a_machine_that_are_lost_together_count_once():
    """Its network goes twice: eight workers each time, while another machine's rows arrive in between."""
    tracks = TrackRecords()
    for cut in (100, 200):
        tracks.land("b", 1, 0)
        for worker in range(8):
            assert tracks.lose("a", cut - 50 + worker, cut + worker / 10) == ""
            tracks.land("b", 1, 0)
    assert tracks.lose("a", 250, 300).startswith("was lost 3 times in a row")


def test_a_row_in_between_wipes_out_the_losses():
    tracks = TrackRecords()
    for _ in range(20):
        tracks.land("b", 8, 0)
        assert lose(tracks, 0) == ""
        tracks.land("a", 0, 1)


def test_rows_that_fail_one_after_another_speak_against_the_worker_and_not_against_the_data():
    tracks = TrackRecords()
    assert [tracks.land("a", 0, 10) for _ in range(5)] == [""] * 5
    tracks.land("b", 19, 0)
    assert tracks.land("a", 0, 10) == ""
    tracks.land("b", 1, 0)
    assert tracks.land("a", 0, 10).startswith("failed 70 rows in a row, while others are fine; these rows are in errors/")
    tracks.land("a", 1, 19)
    assert tracks.land("a", 0, 19) == ""


def test_the_third_damaged_message_is_one_too_many():
    tracks = TrackRecords()
    assert [tracks.damage("a"), tracks.damage("a"), tracks.damage("b"), tracks.damage("a")] == ["", "", "", "sent damaged records 3 times"]


def test_two_models_that_break_down_at_one_shard_accuse_the_rows():
    tracks = TrackRecords()
    assert not tracks.breaks_again("a", [1, 2])
    assert not tracks.breaks_again("b", [3])
    assert not tracks.breaks_again("a", [2])
    assert tracks.breaks_again("c", [4, 2])

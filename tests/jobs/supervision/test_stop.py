"""Tests ``Stop`` in this process: which signals it hears, and what it leaves of handlers that were there before."""

import os
import signal
import threading
from collections.abc import Generator, Sequence

import pytest
from mlx_bulk.jobs.supervision import signals
from mlx_bulk.jobs.supervision.signals import Stop

PATIENCE = 60.0  # seconds after which a test that waits has failed


def test_earlier_signal_handlers_come_back():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    wakeup, handlers = signal.set_wakeup_fd(writing), [signal.getsignal(number) for number in signals.SIGNALS]
    try:
        with Stop():
            assert signal.getsignal(signal.SIGTERM) is not handlers[1]
        assert [signal.getsignal(number) for number in signals.SIGNALS] == handlers
    finally:
        assert signal.set_wakeup_fd(wakeup) == writing
        os.close(reading)
        os.close(writing)


@pytest.fixture
def hangup_heard() -> Generator[None]:
    """SIGHUP ends a process, also where pytest was started by ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_are_told(number: int):
    told: list[int] = []
    heard = threading.Event()

    def tell(number: int) -> None:
        told.append(number)
        heard.set()

    with Stop(tell) as stop:
        assert not stop.requested()
        assert signal.getsignal(number) is not signal.SIG_DFL
        os.kill(os.getpid(), number)
        assert stop.requested()
        assert heard.wait(PATIENCE)
    assert (told, stop.code) == ([number], 128 + number)


@pytest.mark.usefixtures("hangup_heard")
def test_signals_of_a_forked_process_are_its_own():
    told: list[int] = []
    reading, writing = os.pipe()
    with Stop(told.append) as stop:
        if not (child := os.fork()):
            try:
                os.write(writing, b"x")
                signal.pause()
            finally:
                os._exit(0)
        os.read(reading, 1)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
        assert not stop.requested()
        os.kill(os.getpid(), signal.SIGHUP)  # the watcher tells what comes first
        assert stop.requested()
    os.close(reading)
    os.close(writing)
    assert (told, stop.code) == ([signal.SIGHUP], 128 + signal.SIGHUP)


def test_a_hangup_that_the_start_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_takes_no_signals():
    ended: Sequence[bool] = []

    def run() -> None:
        with Stop() as stop:
            ended.append(stop.requested())  # type: ignore[attr-defined]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert list(ended) == [False]

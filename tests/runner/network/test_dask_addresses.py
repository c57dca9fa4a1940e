"""What a worker says of an address at which no driver answers: nobody, something else, or a driver that is silent."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import pytest
from mlx_bulk.runner.network import dask_link
from mlx_bulk.runner.network.dask_link import DriverLink

from ..pipeline.test_progress_display import heard
from .dask_ends import PATIENCE, fleet


def test_what_is_missing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mlx_bulk")
    with fleet() as driver:
        address = driver.address
    worker = DriverLink(address)
    for _ in range(2):
        with pytest.raises(OSError, match="Connection refused"):
            worker.connect()
    worker.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"no driver answers at {address} (Connection refused); trying again until one does"
    ]


def test_what_is_no_driver_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    def serve() -> None:
        for _ in range(2):  # the link looks first whether anyone listens
            with listening.accept()[0] as peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3)

    caplog.set_level("INFO", "mlx_bulk")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        worker = DriverLink(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(OSError, match="no driver of mlx-bulk"):
            worker.connect()
        worker.close()
    (line,) = caplog.messages
    assert line.startswith("no driver answers at tcp://127.0.0.1:")
    assert "what answers there is no driver of mlx-bulk" in line


def test_what_waits_for_a_request_is_told_before_the_attempt_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a web server does, which says nothing before it is asked. A worker may not wait as long as an attempt takes."""
    monkeypatch.setattr(dask_link, "SILENT_SECONDS", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent, heard() as log:
        worker = DriverLink(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        attempt = threading.Thread(target=lambda: suppressed(worker.connect), daemon=True)
        attempt.start()
        deadline = monotonic() + PATIENCE
        while not log.messages and monotonic() < deadline:
            attempt.join(0.02)
        assert attempt.is_alive()
        worker.close()
        attempt.join()
    (line,) = log.messages
    assert line.startswith("no driver answers at tcp://127.0.0.1:")
    assert "something listens there, but does not answer as a driver of mlx-bulk does" in line


def suppressed(call: Callable[[], object]) -> None:
    with suppress(OSError):
        call()


@pytest.mark.slow
def test_a_link_can_be_closed_while_it_waits_for_a_silent_driver() -> None:
    """In a process of its own, since Python tells of tasks that were left behind as it ends."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", _CLOSING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "this end is closed\n", "")


# Python in this mode also tells of each step of a loop that took a tenth of a second: so does any on a busy machine.
_CLOSING = """
import logging, socket, threading
logging.getLogger("asyncio").addFilter(lambda said: not said.getMessage().startswith("Executing "))
from mlx_bulk.runner.network.dask_link import DriverLink

def connect():
    try:
        link.connect()
    except OSError as error:
        print(error)

silent = socket.create_server(("127.0.0.1", 0))
link = DriverLink(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
waits = threading.Thread(target=connect)
waits.start()
ends = [silent.accept() for _ in range(2)]
link.close()
waits.join()
for end in (silent, *(connection for connection, _ in ends)):
    end.close()
"""

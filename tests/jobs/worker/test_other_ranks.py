"""Tests what an agent does with the further ranks of a group. ssh is not called."""

import sys
import threading
from typing import Any

import pytest
from mlx_bulk.jobs.worker import other_ranks
from mlx_bulk.jobs.worker.hostfile import Hostfile
from mlx_bulk.jobs.worker.other_ranks import OtherRanks

PAIR = Hostfile.model_validate({"hosts": [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}, {"ssh": "second.local", "ips": ["10.0.0.2"]}]})
HERE = [sys.executable, "-c", "print(77, flush=True); import sys; sys.stdin.read()"]


def test_an_agent_does_not_wait_for_ssh_to_end_a_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(other_ranks, "remote_command", lambda *_: HERE)
    others = OtherRanks(PAIR, ["unused"])
    (rank,) = others._ranks  # pyright: ignore[reportPrivateUsage]
    while rank.remote is None:
        threading.Event().wait(0.01)
    back, ended = threading.Event(), threading.Event()
    in_time = list[bool]()

    def ssh(*_: Any, **__: Any) -> None:
        in_time.append(back.wait(5))
        ended.set()

    monkeypatch.setattr(other_ranks.subprocess, "run", ssh)
    others.kill()
    back.set()
    assert ended.wait(30)
    assert in_time == [True]
    assert rank.process.wait(30) != 0

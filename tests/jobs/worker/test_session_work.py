"""Tests which workers a config starts on the driver's own machine, and with which options."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.jobs.worker import session_work
from mlx_bulk.runner.cluster import fleet_work

pytest.importorskip("distributed")
from mlx_bulk.runner.network import dask_fleet

ADDRESS = "tcp://127.0.0.1:8786"


class Started:
    """Stands for the workers, and notes how they were started."""

    def __init__(self, count: int, address: str, wait: float, threads: int | None, options: Sequence[str], secret: str | None):
        self.secret, self.wait, self.level = secret, wait, options[options.index("--log-level") + 1]
        STARTED.append(self)

    def end(self) -> None:
        """Nothing is there to end."""


class OpensAtOnce:
    """Stands for the work of a cluster: opens the connections, and does nothing over them."""

    def __init__(self, fleet: Callable[[], Any], settings: ClusterConfig):
        fleet()

    def close(self, dismiss: bool) -> None:
        """Nothing is there to close."""


class Listens:
    """Stands for the connections."""

    def __init__(self, listen: str, tls: str | None, lost_after: float, secret: str | None):
        self.address = ADDRESS
        SECRETS.append(secret)


STARTED: list[Started] = []
SECRETS: list[str | None] = []


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_work, "LocalWorkers", Started)
    monkeypatch.setattr(fleet_work, "ClusterWork", OpensAtOnce)
    monkeypatch.setattr(dask_fleet, "DaskFleet", Listens)


def started(**settings: Any) -> Started:
    with session_work.session_work(ClusterConfig(workers=2, **settings), deterministic=False):
        return STARTED.pop()


@pytest.mark.parametrize(
    ("settings", "wait"),
    [({}, 15.0), ({"wait": 3}, 3.0), ({"listen": "127.0.0.1:8786"}, 600.0), ({"listen": "127.0.0.1:8786", "wait": 9}, 9.0)],
)
def test_workers_wait_for_a_driver_only_where_the_next_one_listens_at_the_same_port(settings: dict[str, Any], wait: float):
    assert started(**settings).wait == wait


@pytest.mark.parametrize(("level", "passed"), [("DEBUG", "debug"), ("INFO", "warning"), ("WARNING", "warning"), ("ERROR", "error")])
def test_workers_log_what_the_driver_does_not_say_itself(level: str, passed: str):
    log = logging.getLogger("mlx_bulk")
    before = log.level
    log.setLevel(level)
    try:
        assert started().level == passed
    finally:
        log.setLevel(before)


def test_each_driver_for_its_own_workers_alone_has_a_secret_with_them():
    found = [started().secret for _ in range(2)]
    assert None not in found
    assert len({*found}) == 2
    assert SECRETS[-2:] == found
    assert started(listen="127.0.0.1:8786").secret is None  # others may join
    assert started(tls="keys").secret is None  # keys do the same
    assert SECRETS[-2:] == [None, None]


def test_without_the_extra_nothing_is_begun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, dask_fleet.__name__)
    monkeypatch.delattr("mlx_bulk.runner.network.dask_fleet")
    monkeypatch.setitem(sys.modules, "mlx_bulk.runner.network.dask_comms", None)
    with pytest.raises(ImportError), session_work.session_work(ClusterConfig(workers=2), deterministic=False):
        pytest.fail("a run could have begun")

"""Workers of one run refuse a policy at different times: its leases are given out again under another one, and no worker is blamed.

Workers are threads here; see ThreadFleet.
"""

import threading
from itertools import count

import pytest
from mlx_bulk.runner.cluster.lease_policies import LeasePolicies
from mlx_bulk.runner.cluster.messages import Frames
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.worker.sent_policies import PolicyNotLoaded, SentPolicies

from ..jobs.support.bench import Bench
from ..jobs.support.cluster_runs import engine
from ..jobs.verify.test_verify import verify
from ..runner.support.thread_fleet import StopEarly, ThreadFleet
from .test_cluster_policies import over, records, roll, step, versions


def test_all_workers_give_up_the_leases_of_a_policy_that_they_refuse_in_turn(bench: Bench):
    broken = step(bench, 3) / "adapters.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    fleet = ThreadFleet(engine, 2)
    stuck = StopEarly(1)
    watchdog = threading.Timer(30, lambda: stuck.watch("", Frames("", 0, 0, (), (), ())))
    watchdog.start()
    done = roll(bench, over(fleet, speculate=False, min_workers=2), HostProcess(stuck.stopped))
    watchdog.cancel()
    fleet.end(True)
    assert (done.complete, done.rows, done.errors, done.refused) == (True, 24, 0, 1)
    assert set().union(*versions(records(bench)).values()) == {0}


def test_records_of_a_policy_that_another_worker_refused_meanwhile_are_done_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The first worker to load policy 3 has it once the driver knows that the other one has no room."""
    step(bench, 3)
    turns, refused = count(), threading.Event()
    load, refuse = SentPolicies.load_kept, LeasePolicies.refuse

    def load_in_turn(policies: SentPolicies, name: str) -> None:
        if name.startswith("3-"):
            if next(turns):
                raise PolicyNotLoaded(name, "no room")
            assert refused.wait(30)
        load(policies, name)

    def refuse_and_tell(policies: LeasePolicies, name: str, reason: str) -> bool:
        found = refuse(policies, name, reason)
        refused.set()
        return found

    monkeypatch.setattr(SentPolicies, "load_kept", load_in_turn)
    monkeypatch.setattr(LeasePolicies, "refuse", refuse_and_tell)
    fleet = ThreadFleet(engine, 2)
    done = roll(bench, over(fleet, min_workers=2))
    fleet.end(True)
    assert (done.complete, done.rows, done.errors, done.refused) == (True, 24, 0, 1)
    assert set().union(*versions(records(bench)).values()) == {0}
    assert "sent records that are too late (policy 3-" in caplog.text
    assert "damaged" not in caplog.text
    assert verify(bench.root / "cluster").exit_code == 0

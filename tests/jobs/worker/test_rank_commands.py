"""How ranks are started on other machines. ssh is not called: what it would run there is run here."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_bulk.jobs.worker.hostfile import Hostfile
from mlx_bulk.jobs.worker.other_ranks import GroupEnd, group_end
from mlx_bulk.jobs.worker.rank_commands import ports_for, rank_variables, remote_command, remote_kill

PAIR = Hostfile.model_validate({"hosts": [{"ssh": "127.0.0.1", "ips": ["10.0.0.1"]}, {"ssh": "second.local", "ips": ["10.0.0.2"]}]})
SHOW = "import json, os, sys; print(json.dumps([os.environ['MLX_RANK'], open(os.environ['MLX_HOSTFILE']).read(), sys.stdin.read()]))"


def remote(code: str, given: str = "") -> "tuple[int, list[str]]":
    """Runs Python code as the second machine would; returns the exit code and the lines printed."""
    variables = rank_variables(PAIR, 1, ports_for(PAIR))
    *ssh, host, script = remote_command("second.local", variables, [sys.executable, "-c", code])
    assert (ssh[0], host) == ("ssh", "second.local")
    done = subprocess.run(script, shell=True, input=given, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines()


def test_a_rank_elsewhere_finds_its_number_and_the_others():
    code, (process, shown) = remote(SHOW, "end of the agent")
    rank, hostfile, given = json.loads(shown)
    assert (code, int(process) > 0, rank, given) == (0, True, "1", "end of the agent")
    assert json.loads(hostfile) == [["10.0.0.1:32323"], ["10.0.0.2:32324"]]


def test_its_end_is_told_as_it_was():
    assert remote("raise SystemExit(92)")[0] == 92
    assert remote(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")[0] == 128 + signal.SIGKILL


def test_its_folder_is_this_one_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    odd = tmp_path / "it's here"
    odd.mkdir()
    monkeypatch.chdir(odd)
    assert remote("import os; print(os.getcwd())")[1][1] == str(odd)


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code, lines = remote("import os; print(os.environ['MLX_HOSTFILE'])")
    assert (code, lines[1].startswith(str(tmp_path)), os.listdir(tmp_path)) == (0, True, [])  # noqa: PTH208


def test_a_process_elsewhere_is_killed_by_its_number():
    assert shlex.join(remote_kill("second.local", 4711)).endswith("second.local 'kill -KILL 4711'")


def test_jaccl_has_its_devices_and_a_coordinator():
    hosts = [
        host.model_dump() | {"rdma": devices} for host, devices in zip(PAIR.hosts, ([None, "rdma_en2"], ["rdma_en3", None]), strict=True)
    ]
    fast = Hostfile.model_validate({"backend": "jaccl", "hosts": hosts, "envs": ["MLX_METAL_FAST_SYNCH=1"]})
    variables = rank_variables(fast, 1, ports_for(fast))
    assert variables.values == {
        "MLX_BULK_CPU": "generic",
        "MLX_METAL_FAST_SYNCH": "1",
        "MLX_RANK": "1",
        "MLX_JACCL_COORDINATOR": "10.0.0.1:32323",
    }
    assert json.loads(variables.files["MLX_IBV_DEVICES"]) == [[None, "rdma_en2"], ["rdma_en3", None]]


@pytest.mark.parametrize(
    ("codes", "end"),
    [
        ([("first", 92), ("second", -9)], GroupEnd(-9, "second")),  # the other one saw the connection break
        ([("first", 92), ("second", 128 + 11)], GroupEnd(-11, "second")),  # by ssh
        ([("first", 1), ("second", 92)], GroupEnd(1, "first")),
        ([("first", 92), ("second", 255)], GroupEnd(255, "second", "ssh has no connection to second")),
        ([("first", 91)], GroupEnd(91, "first", "first saw no step of the others")),
        ([("first", 92), ("second", 92)], GroupEnd(92, "first", "first lost another rank")),
        ([("first", 0), ("second", 0)], GroupEnd(0, "first")),
        ([("first", 0), ("second", 92)], GroupEnd(0, "first")),  # it saw the first one's end
    ],
)
def test_what_ended_a_group(codes: list[tuple[str, int]], end: GroupEnd):
    assert group_end(codes) == end

"""Hostfiles as mlx.launch has them, and what is said of those that are none."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.jobs.worker.hostfile import Host, read_hostfile

PAIR: list[dict[str, Any]] = [{"ssh": "127.0.0.1", "ips": ["10.0.0.1"]}, {"ssh": "second.local", "ips": ["10.0.0.2"]}]


def written(folder: Path, content: Any) -> str:
    path = folder / "hosts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_both_forms_of_mlx_are_read(tmp_path: Path):
    plain = read_hostfile(written(tmp_path, PAIR))
    assert (plain.backend, [host.ssh for host in plain.hosts], plain.local) == ("ring", ["127.0.0.1", "second.local"], False)
    named = {"backend": "jaccl", "envs": ["MLX_METAL_FAST_SYNCH=1"], "hosts": [{**host, "rdma": [None, "rdma_en2"]} for host in PAIR]}
    fast = read_hostfile(written(tmp_path, named))
    assert (fast.backend, fast.envs, fast.hosts[1].rdma) == ("jaccl", ["MLX_METAL_FAST_SYNCH=1"], [None, "rdma_en2"])
    assert read_hostfile(written(tmp_path, {"backend": "", "hosts": PAIR})).backend == "ring"


def test_this_machine_is_known_by_its_name():
    here = socket.gethostname().removesuffix(".local")
    assert [Host(ssh=name).local for name in (here, f"{here}.local", f"me@{here}", "localhost", "me@second")] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "hosts.json is no JSON"),
        ([], "hosts: List should have at least 2 items"),
        (PAIR[:1], "hosts: List should have at least 2 items"),
        ([PAIR[0], {"ips": ["10.0.0.2"]}], "hosts.1.ssh: Field required"),
        ([PAIR[0], {"ssh": "-oProxyCommand=x", "ips": ["10.0.0.2"]}], "hosts.1.ssh: String should match"),
        ([PAIR[0], {"ssh": "second.local"}], "found no ips of second.local; expected its address"),
        (PAIR[::-1], "its first machine is second.local, and this one is"),
        ({"backend": "mpi", "hosts": PAIR}, "backend: Input should be 'ring' or 'jaccl'"),
        ({"backend": "jaccl", "hosts": PAIR}, "found 0 rdma devices of 127.0.0.1; expected 2"),
        ({"envs": ["x; rm -rf /"], "hosts": PAIR}, "envs.0: String should match"),
    ],
)
def test_what_is_no_hostfile_is_refused(tmp_path: Path, content: Any, message: str):
    with pytest.raises(ConfigError) as error:
        read_hostfile(written(tmp_path, content))
    assert str(error.value).startswith("--group: ")
    assert message in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--group: .*none\.json cannot be read: No such file"):
        read_hostfile(str(tmp_path / "none.json"))

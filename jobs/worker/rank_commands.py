"""The commands that start and end a group's ranks: here as they are, on another machine by ssh, as ``mlx.launch`` does. Runs nothing."""

import json
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .hostfile import Hostfile

FIRST_PORT = 32323  # mlx.launch's
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
GENERIC = {"MLX_BULK_CPU": "generic"}  # the CPU kernels know whole layers alone


@dataclass(slots=True, frozen=True)
class RankVariables:
    """What a rank finds in its environment: plain values, and files by the variable that names each."""

    values: Mapping[str, str]
    files: Mapping[str, str]


def rank_variables(hostfile: "Hostfile", rank: int, ports: Sequence[int]) -> RankVariables:
    """Returns the environment of a rank, which mlx reads. ports: a port for each rank."""
    values = {**GENERIC, **dict(each.split("=", 1) for each in hostfile.envs), "MLX_RANK": str(rank)}
    if hostfile.backend == "ring":
        ring = [[f"{ip}:{port}" for ip in host.ips] for host, port in zip(hostfile.hosts, ports, strict=True)]
        return RankVariables(values, {"MLX_HOSTFILE": json.dumps(ring)})
    values["MLX_JACCL_COORDINATOR"] = f"{hostfile.hosts[0].ips[0]}:{ports[0]}"
    return RankVariables(values, {"MLX_IBV_DEVICES": json.dumps([host.rdma for host in hostfile.hosts])})


def ports_for(hostfile: "Hostfile") -> list[int]:
    """Returns a port for each rank: free ones on this machine alone, else those of ``mlx.launch``, for which firewalls may be open."""
    if not hostfile.local:
        return [FIRST_PORT + rank for rank in range(len(hostfile.hosts))]
    sockets = [socket.socket() for _ in hostfile.hosts]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def remote_command(host: str, variables: RankVariables, command: Sequence[str]) -> list[str]:
    """Returns the command that runs ``command`` on ``host``. It prints the number of its process first, and ends when stdin does.

    The shell stays, so that the exit code tells of a signal: ssh alone would hide it.
    """
    folder = shlex.quote(str(Path.cwd()))
    lines = [f"if [ -d {folder} ]; then cd {folder}; fi"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.values.items()]
    for name, content in variables.files.items():
        lines += [f"export {name}=$(mktemp)", f"printf %s {shlex.quote(content)} > ${name}"]
    lines += ["exec 3<&0", f"{shlex.join(command)} <&3 3<&- &", "echo $!", "wait $!", "code=$?"]
    lines += [f"rm -f ${name}" for name in variables.files]
    lines.append("exit $code")
    return [*SSH, host, shlex.join(["/bin/bash", "-c", "\n".join(lines)])]


def remote_kill(host: str, process: int) -> list[str]:
    """Returns the command that ends a process on ``host`` at once, also one that is stopped."""
    return [*SSH, host, f"kill -KILL {process}"]

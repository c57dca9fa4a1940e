"""The file that names a group's machines, as ``mlx.launch`` and ``mlx.distributed_config`` have it. Starts nothing."""

import json
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...configs.errors import ConfigError

LOCAL = ("127.0.0.1", "localhost")
_EXAMPLE = '[{"ssh": "first.local", "ips": ["10.0.0.1"]}, {"ssh": "second.local", "ips": ["10.0.0.2"]}]'


class Host(BaseModel):
    """A machine of the group. ssh: its name for ssh. ips: its addresses to the others. rdma: its devices to each of them, for JACCL."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    ssh: Annotated[str, Field(min_length=1, pattern="^[^-]")]  # ssh would take it for an option
    ips: list[str] = []
    rdma: list[str | list[str] | None] = []

    @property
    def local(self) -> bool:
        """Returns True for this machine."""
        name = self.ssh.rpartition("@")[2]  # behind the user's
        return name in LOCAL or name.removesuffix(".local") == socket.gethostname().removesuffix(".local")


class Hostfile(BaseModel):
    """The machines of a group, in the order of their ranks. envs: variables for all ranks, as NAME=VALUE."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hosts: Annotated[list[Host], Field(min_length=2)]
    backend: Literal["ring", "jaccl"] = "ring"
    envs: list[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*=")]] = []

    @property
    def local(self) -> bool:
        """Returns True where all ranks are processes of this machine."""
        return all(host.local for host in self.hosts)


def read_hostfile(path: str) -> Hostfile:
    """Reads a hostfile. Raises ConfigError where it is none, or not of this machine."""
    try:
        content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("backend") == "":  # mlx's word for its choice
            content = {key: value for key, value in content.items() if key != "backend"}
        hostfile = Hostfile.model_validate({"hosts": content} if isinstance(content, list) else content)
    except OSError as error:
        raise ConfigError(f"--group: {path} cannot be read: {error.strerror}; name a JSON file such as {_EXAMPLE}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"--group: {path}: {where}: {first['msg']}; expected a hostfile such as {_EXAMPLE}") from error
    except ValueError as error:
        raise ConfigError(f"--group: {path} is no JSON ({error}); expected a hostfile such as {_EXAMPLE}") from error
    _require_addresses(hostfile, path)
    return hostfile


def _require_addresses(hostfile: Hostfile, path: str) -> None:
    """Raises ConfigError where an address is missing that the backend needs, or the first machine is another one."""
    first, size = hostfile.hosts[0], len(hostfile.hosts)
    if not first.local:
        raise ConfigError(
            f"--group: {path}: its first machine is {first.ssh}, and this one is {socket.gethostname()}; start the worker on {first.ssh}, "
            "or write this machine first"
        )
    for number, host in enumerate(hostfile.hosts):
        if not host.ips and (hostfile.backend == "ring" or number == 0):
            raise ConfigError(f"--group: {path}: found no ips of {host.ssh}; expected its address to the other machines, such as 10.0.0.1")
        if hostfile.backend == "jaccl" and len(host.rdma) != size:
            raise ConfigError(
                f"--group: {path}: found {len(host.rdma)} rdma devices of {host.ssh}; expected {size}: one to each machine, null to itself"
            )

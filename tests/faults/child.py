"""A process that has imported what a run needs, and forks a child for each command it reads; a child may die at a named point.

A program of its own, started by ``children.py``: JSON lines on stdin and stdout, and the names of points on a pipe. Where a fork
is not possible it runs the one command it is given. Knows the points as data: which function, which call of it, what happens.
"""

import ctypes
import errno
import fcntl
import gc
import itertools
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
NO_MOUNTS = 99  # exit code: this machine lets us mount nothing
PATIENCE = 300  # seconds after which a command that hangs is ended by a signal

write = os.write  # the points wrap os.write itself


def prepare(model: str) -> None:
    """Imports all that a run of ``model`` will import, and nothing that starts threads of mlx's."""
    backend: Any = import_module("mlx_bulk.kernels.backend")
    backend.load_mlx()
    family = json.loads((Path(model) / "config.json").read_bytes())["model_type"]
    for name in (
        "mlx_bulk.jobs.cli.main",
        "mlx_bulk.jobs.report.report",
        "mlx_bulk.jobs.kinds",
        "mlx_bulk.runner.pipeline.session",
        "datasets",
        "mlx_bulk.runner.vision.two_towers" if family in ("clip", "siglip") else f"mlx_lm.models.{family}",
    ):
        import_module(name)
    tokenizer: Any = import_module("mlx_bulk.runner.text.tokenizer")
    tokenizer.load_tokenizer(Path(model), None, {}, False)  # transformers imports its parts when they are first used


# ---------------------------------------------------------------------------------------------------------- the points


def place_of(argument: object) -> str:
    """Returns the text in which a point's pattern is searched: a path, the path of an open file, or the first bytes written."""
    if isinstance(argument, str | os.PathLike):
        return os.fspath(argument)
    if isinstance(argument, bytes | memoryview):
        return bytes(argument[:200]).decode("latin-1")
    if not isinstance(argument, int):
        return str(getattr(argument, "position", ""))  # a row
    try:
        if sys.platform == "darwin":
            return fcntl.fcntl(argument, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode()
        return str(Path(f"/proc/self/fd/{argument}").readlink())
    except OSError:
        return ""


def act(name: str, action: str, said: int) -> None:
    """Says the point's name, and does there what is to happen."""
    write(said, f"{os.getpid()} {name}\n".encode())
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "hold":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        errors: Any = import_module("mlx_bulk.runner.core.errors")
        raise errors.RowError("generate", f"made to fail at {name}")


def watched(real: Callable[..., Any], point: dict[str, Any], calls: "itertools.count[int]", said: int) -> Callable[..., Any]:
    """``real`` with the point in it."""
    pattern = re.compile(point["where"])

    def call(*arguments: Any, **keywords: Any) -> Any:
        if point["where"] and not pattern.search(" ".join(map(place_of, arguments))):
            return real(*arguments, **keywords)
        number = next(calls)
        if number != point["nth"] and not (point["again"] and number > point["nth"]):
            return real(*arguments, **keywords)
        if point["when"] == "torn":
            tear(real, arguments)
        done = real(*arguments, **keywords) if point["when"] == "after" else None
        act(point["name"], point["action"], said)
        return done if point["when"] == "after" else real(*arguments, **keywords)

    return call


def tear(real: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Leaves half of a call's bytes on the disk: the first half of a write, or of a file to be synced."""
    if len(arguments) == 2:
        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
    else:
        os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)


def install(point: dict[str, Any], said: int) -> None:
    """Puts the point into the functions it names ("module:attribute"); they share one count."""
    calls = itertools.count(1)
    for attribute in point["functions"]:
        module, _, path = attribute.partition(":")
        *owners, name = path.split(".")
        owner: Any = import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, watched(getattr(owner, name), point, calls, said))


# -------------------------------------------------------------------------------------------------------- one command


def mount(volumes: list[list[str]]) -> None:
    """Mounts ["tmpfs", folder, size] and ["read-only", folder] for this process alone; ends it where that is not permitted."""
    if not volumes:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNS):
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER):
            os._exit(NO_MOUNTS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    failed = libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    for kind, folder, *size in volumes:
        at = folder.encode()
        if kind == "tmpfs":
            failed |= libc.mount(b"tmpfs", at, b"tmpfs", 0, f"size={size[0]}".encode())
        else:
            failed |= libc.mount(at, at, None, MS_BIND, None)
            failed |= libc.mount(b"none", at, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)
    if failed:
        os._exit(NO_MOUNTS)


def perform(command: dict[str, Any], said: int) -> None:
    """Runs ``mlx-bulk`` with the command's arguments in this process, and ends it with the exit code."""
    code = 98
    signal.alarm(PATIENCE)
    try:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(command[name], flags, 0o666), number)
        os.chdir(command["cwd"])
        mount(command["mounts"])
        for point in command["points"]:
            install(point, said)
        sys.argv[:] = ["mlx-bulk", *command["arguments"]]
        cli: Any = import_module("mlx_bulk.jobs.cli.main")
        drawing: Any = import_module("mlx_bulk.jobs.report.report")
        drawing.report_at_end = lambda folder: None  # pyright: ignore[reportUnknownLambdaType]: a second a child
        cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
        for source, target in command["keep"]:
            import_module("shutil").copytree(source, target)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(said: int) -> None:
    """Forks a child for each command, and tells how they ended, until stdin is closed."""
    gc.freeze()  # a child's collections then leave the pages that they share alone
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "wait":
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(command["pid"], 0)[1])}
        else:
            pid = os.fork()
            if pid == 0:
                perform(command, said)
            answer = {"pid": pid}
        write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        prepare(sys.argv[3])
        serve(int(sys.argv[2]))
    else:
        perform(json.loads(sys.argv[3]), int(sys.argv[2]))

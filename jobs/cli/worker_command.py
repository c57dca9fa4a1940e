"""``mlx-bulk worker ADDRESS``: joins a driver, and works on its runs. A hidden command is the process of its engine."""

import signal
import sys
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click

from ...configs.errors import ConfigError
from ..supervision.crash_suspects import Suspects
from ..supervision.signals import heeded
from ..terminal.console import one_line_errors, set_log
from .options import log_level_option, quiet_option

_ONCE_WAIT = 600.0  # as cluster.wait


@click.command("worker")
@click.argument("address")
@click.option("--tls", metavar="FOLDER", help="Folder of keys that mlx-bulk cluster-keys made: the driver's, copied to this machine.")
@click.option(
    "--stay/--once", default=True, help="Waits for the next run with the model in memory, or leaves with its run.  [default: --stay]"
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"Leaves after so long without a driver.  [default: never; {_ONCE_WAIT:g} with --once]",
)
@click.option("--name", help="Stands for this worker in messages and in status.  [default: the machine's name]")
@click.option(
    "--models", metavar="FOLDER", help="Models that the driver has in folders of its own are looked up below this one, by their weights."
)
@click.option(
    "--group",
    metavar="FILE",
    help="A hostfile of mlx.launch: its machines, this one first, hold one model together and are one worker.",
)
@click.option(
    "--stall-seconds",
    type=click.FloatRange(min=1),
    default=120.0,
    metavar="SECONDS",
    help="Of a group: after so long without a step, all its processes are started again.  [default: 120]",
)
@log_level_option
@quiet_option
def worker(
    address: str,
    tls: str | None,
    stay: bool,
    wait: float | None,
    name: str | None,
    models: str | None,
    group: str | None,
    stall_seconds: float,
    log_level: str,
    quiet: bool,
) -> None:
    """Joins the run that listens at ADDRESS (tcp://HOST:PORT, or tls://HOST:PORT with keys), and does rows for it.

    Whoever runs the driver may run code on this machine, and on those of its group.
    """
    set_log(log_level, quiet, name)
    with one_line_errors():
        from ..worker.light_imports import light_imports

        with light_imports():
            from ...runner.network.dask_link import DriverLink
        from ..worker.agent import Agent, Signalled, Stay
        from ..worker.engine_process import EngineProcess
        from ..worker.introduction import first_hello
        from ..worker.local_workers import given_secret
        from ..worker.other_ranks import OtherRanks

        inbox: SimpleQueue[Any] = SimpleQueue()
        for number in heeded():
            signal.signal(number, lambda number, _: inbox.put(Signalled(number)))
        options = ["--log-level", log_level, *(["--quiet"] if quiet else []), *(["--name", name] if name is not None else [])]
        if models is not None and not Path(models).is_dir():
            raise ConfigError(f"--models: found {models}, which is no folder here; name the folder below which this machine's models lie")
        options += ["--models", models] if models is not None else []
        hostfile = None
        if group is not None:
            from ..worker.hostfile import read_hostfile

            hostfile = read_hostfile(group)
            options += ["--backend", hostfile.backend, "--stall-seconds", f"{stall_seconds:g}"]
        module = [sys.executable, "-P", "-m", "mlx_bulk.jobs"]

        def start(suspects: Suspects, inbox: "SimpleQueue[Any]") -> EngineProcess:
            others = None if hostfile is None else OtherRanks(hostfile, [*module, "worker-rank", *options])
            return EngineProcess([*module, "worker-engine", *options], suspects, inbox, others)

        limits = Stay(once=not stay, wait=_ONCE_WAIT if wait is None and not stay else wait)
        sys.exit(Agent(DriverLink(address, tls, secret=given_secret()), first_hello(name), start, limits, inbox).run())


_models_option = click.option("--models", type=click.Path(path_type=Path))
_backend_option = click.option("--backend")
_stall_option = click.option("--stall-seconds", type=float, default=0.0)


@click.command("worker-engine", hidden=True)
@click.argument("descriptor", type=int)
@click.option("--name")
@_models_option
@_backend_option
@_stall_option
@log_level_option
@quiet_option
def worker_engine(
    descriptor: int, name: str | None, models: Path | None, backend: str | None, stall_seconds: float, log_level: str, quiet: bool
) -> None:
    """Runs the engine of a worker; ``mlx-bulk worker`` starts it. With a backend it is the first rank of a group."""
    from ..terminal.engine_imports import engine_imports
    from ..worker.engine_host import host_engine

    set_log(log_level, quiet, name)
    with one_line_errors():
        with engine_imports(kernels=True):
            from ...runner.ranks.joined_group import joined_group
            from ...runner.worker.engine_service import serve_engine
            from ..kinds import KINDS

        if backend is None:
            host_engine(descriptor, lambda connection, process: serve_engine(connection, KINDS, process, models=models))
        else:
            join = partial(joined_group, backend, stall_seconds)
            host_engine(descriptor, lambda connection, process: join(lambda ranks: serve_engine(connection, KINDS, process, ranks, models)))


@click.command("worker-rank", hidden=True)
@click.option("--name")
@_models_option
@_backend_option
@_stall_option
@log_level_option
@quiet_option
def worker_rank(name: str | None, models: Path | None, backend: str, stall_seconds: float, log_level: str, quiet: bool) -> None:
    """Runs a further rank of a worker's group; ``mlx-bulk worker --group`` starts it."""
    from ..terminal.engine_imports import engine_imports
    from ..worker.engine_host import host_rank

    set_log(log_level, quiet, name)
    with one_line_errors():
        with engine_imports():
            from ...runner.ranks.joined_group import joined_group
            from ...runner.worker.rank_service import serve_rank
            from ..kinds import KINDS

        host_rank(lambda: joined_group(backend, stall_seconds, lambda ranks: serve_rank(KINDS, ranks, models)))

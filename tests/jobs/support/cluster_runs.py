"""Runs over workers that are threads, and the same runs on one machine."""

from itertools import count
from pathlib import Path
from typing import Any

from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.cluster.messages import Frames
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import SessionWork
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.runs.summary import Summary
from mlx_bulk.runner.store.results import read_results
from mlx_bulk.runner.worker.engine_service import serve_engine

from ...runner.support.thread_fleet import PipeEnd, ThreadFleet
from .bench import Bench, Record

ROWS: list[Record] = [{"q": "word " * (1 + row % 7)} for row in range(40)]
SETTINGS: dict[str, Any] = {"workers": 2, "lease_seconds": 0.05}


def engine(end: PipeEnd) -> None:
    """Does the work of a worker's engine process, in a thread."""
    serve_engine(end, KINDS, HostProcess())


def mortal_fleet(workers: int, nth: int) -> tuple[ThreadFleet, "count[int]"]:
    """Starts a fleet in which a worker dies with the ``nth`` frames of all on the way, and another one takes its place.

    Returns the number of the next frames too.
    """
    frames = count(1)

    def watch(worker: str, message: object) -> bool:
        if isinstance(message, Frames) and next(frames) == nth:
            fleet.kill(worker)
            fleet.start_worker()
            return False
        return True

    fleet = ThreadFleet(engine, workers, watch)
    return fleet, frames


def run_config(path: Path, work: SessionWork, host: HostProcess | None = None) -> Summary:
    """Does the job of a config file."""
    config: Any = load_config(path)
    return session.run_job(config, KINDS[config.job], Start(), host or HostProcess(), "nothing", work)


def run(bench: Bench, work: SessionWork, output: str, host: HostProcess | None = None, **sections: Any) -> Summary:
    """Does a job over ``ROWS`` in small shards."""
    batch = {"rows": 4, "rows_per_shard": 8, **sections.pop("batch", {})}
    rows = sections.pop("rows", ROWS)
    return run_config(bench.write_config(rows=rows, output={"path": str(bench.root / output)}, batch=batch, **sections), work, host)


def parts(folder: Path) -> list[bytes]:
    """Returns the bytes of the results, part by part."""
    return [path.read_bytes() for path in sorted((folder / "results").iterdir())]


def records(bench: Bench, output: str) -> list[tuple[int, int, str]]:
    """Returns row, sample and completion of each record."""
    batches = read_results(bench.root / output)
    return [(each["row"], each["sample"], each["completion"]) for batch in batches for each in batch.to_pylist()]

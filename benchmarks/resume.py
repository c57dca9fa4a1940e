"""Measures the time and memory in which a run of millions of rows recovers: bookkeeping alone, no model, no input.

All rows but the last thousands are finished and committed by the project's own writer, 1,024 a shard, some of the last shard's are
in its journal; then a process of its own recovers. The last line is JSON: seconds and bytes of that, and how long writing took.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.writer import Writer

SCHEMA = pa.schema([("row", pa.int64()), ("key", pa.string()), ("sample", pa.int32()), ("completion", pa.large_string())])
IDENTITY, PER_SHARD = "ab12", 1024
KILOBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


def write(folder: Path, layout: Layout) -> None:
    """Does all rows but the last hundred."""
    with RunDir.open(folder) as run:
        run.identity = IDENTITY
        writer = Writer(run, IDENTITY, SCHEMA, layout, run.recover(layout, SCHEMA), 3600.0)
        for row in range(layout.rows):
            writer.admit(row, 1)
            if row < layout.rows - 100:
                writer.add(row, 0, {"key": str(row), "completion": "42"})
        writer.close()


def recover(folder: Path, layout: Layout) -> None:
    """Prints what recovering takes."""
    with RunDir.open(folder) as run:
        run.identity = IDENTITY
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        recovered = run.recover(layout, SCHEMA)
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert recovered.records == layout.rows - 100
    assert len(recovered.committed) == layout.shards - 1
    print(json.dumps({"recover_seconds": round(took, 3), "recover_bytes": (after - before) * KILOBYTE}))


def main() -> None:
    """Writes, then recovers in another process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="A run that was written before: it is recovered, in this process.")
    args = parser.parse_args()
    layout = Layout(args.rows, PER_SHARD)
    if args.folder is not None:
        recover(args.folder, layout)
        return
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder, began = Path(name) / "run", time.perf_counter()
        write(folder, layout)
        took = time.perf_counter() - began
        command = [sys.executable, __file__, "--rows", str(args.rows), "--folder", str(folder)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(json.dumps({"rows": args.rows, "shards": layout.shards, **found, "write_seconds": round(took, 1)}))


if __name__ == "__main__":
    main()

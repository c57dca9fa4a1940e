"""Measures a run over workers of one BLAS thread each: two workers beside one, and one beside a plain run, by the real command.

All have the same input and model, and run one after the other; a row of the table is a run. Seconds are those from
the first loaded model to the last commit, so that starting counts for none.
Needs an idle machine of two cores or more. The last line is JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from about import about, table

DEMO = Path(__file__).parents[1] / "configs" / "demo"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")} | {"OPENBLAS_NUM_THREADS": "1"}


def write(folder: Path, model: Path, rows: int, tokens: int) -> Path:
    """Writes an input and a config; returns its path."""
    (folder / "rows.jsonl").write_text("".join(json.dumps({"q": f"Tell me about thing {row}"}) + "\n" for row in range(rows)))
    config: dict[str, Any] = {
        "job": "generate",
        "model": {"path": str(model)},
        "data": {"path": str(folder / "rows.jsonl")},
        "prompt": {"text": "{{ q }}"},
        "sampling": {"max_tokens": tokens, "temperature": 0},
        "batch": {"rows": 32},
        "output": {"path": str(folder / "run")},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def seconds(config: Path, workers: int) -> float:
    """Runs the job; returns the seconds from the first loaded model to the last commit. workers: 0 for a plain run."""
    run = config.parent / f"run-{workers}"
    command = [sys.executable, "-m", "mlx_bulk.jobs", "run", str(config), "--output", str(run)]
    command += ["--workers", str(workers)] if workers else []
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (run / "sessions.jsonl").exists():
        time.sleep(0.01)
    begun = time.time()
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return (run / "commits.jsonl").stat().st_mtime - begun


def main() -> None:
    """Runs all three and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens a row")
    parser.add_argument("--model", type=Path, default=DEMO)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        config = write(Path(name).absolute(), args.model.absolute(), args.rows, args.tokens)
        took = {label: seconds(config, workers) for label, workers in (("plain", 0), ("1 worker", 1), ("2 workers", 2))}
    table({label: (f"{each:.1f}", f"{args.rows / each:.1f}") for label, each in took.items()}, ["seconds", "rows/s"])
    ratios = {"two_beside_one": took["1 worker"] / took["2 workers"], "one_beside_plain": took["plain"] / took["1 worker"]}
    print(json.dumps({**{name: round(ratio, 3) for name, ratio in ratios.items()}, "seconds": took, "rows": args.rows, **about()}))


if __name__ == "__main__":
    main()

"""Measures a run over workers of one BLAS thread each: two workers beside one, and one beside a plain run, by the real command.

All have the same input and model, and run one after the other; a row of the table is a run. Seconds are those from
the first loaded model to the last commit, so that starting counts for none; a second worker may load its model within them. ``steady``
are the rows a second in the middle: from the first tenth of the rows to the last.
Needs an idle machine of two cores or more. The last line is JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
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


def measured(config: Path, workers: int) -> tuple[float, float | None]:
    """Runs the job; returns the seconds from the first loaded model to the last commit, and the rows a second in the middle.

    workers: 0 for a plain run.
    """
    run = config.parent / f"run-{workers}"
    command = [sys.executable, "-m", "mlx_bulk.jobs", "run", str(config), "--output", str(run), "--json-progress"]
    command += ["--workers", str(workers)] if workers else []
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    told: list[tuple[float, int, int]] = []
    reader = threading.Thread(target=listen, args=(process, told))
    reader.start()
    while process.poll() is None and not (run / "sessions.jsonl").exists():
        time.sleep(0.01)
    begun = time.time()
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    reader.join()
    middle = [(when, rows) for when, rows, of in told if 0.1 * of <= rows <= 0.9 * of]
    steady = (middle[-1][1] - middle[0][1]) / (middle[-1][0] - middle[0][0]) if len(middle) > 1 else None
    return (run / "commits.jsonl").stat().st_mtime - begun, steady


def listen(process: "subprocess.Popen[str]", told: list[tuple[float, int, int]]) -> None:
    """Notes what a run tells of its progress: when, the rows that are done, and all rows."""
    assert process.stderr is not None
    lines = (json.loads(line) for line in process.stderr if line.startswith("{"))
    told.extend((time.time(), said["rows"], said["of"]) for said in lines)


def main() -> None:
    """Runs all three and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens a row")
    parser.add_argument("--model", type=Path, default=DEMO)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        config = write(Path(name).absolute(), args.model.absolute(), args.rows, args.tokens)
        runs = {label: measured(config, workers) for label, workers in (("plain", 0), ("1 worker", 1), ("2 workers", 2))}
    whole = {label: args.rows / took for label, (took, _) in runs.items()}
    steady = {label: rate for label, (_, rate) in runs.items() if rate is not None}
    table(
        {label: (f"{took:.1f}", f"{whole[label]:.1f}", f"{rate:.1f}" if rate else "") for label, (took, rate) in runs.items()},
        ["seconds", "rows/s", "steady rows/s"],
    )
    figures = {f"{name}{part}": ratio for part, rates in (("", whole), ("_steady", steady)) for name, ratio in ratios(rates).items()}
    print(json.dumps({**figures, "seconds": {label: took for label, (took, _) in runs.items()}, "rows": args.rows, **about()}))


def ratios(rates: dict[str, float]) -> dict[str, float]:
    """Returns how much faster two workers are than one, and one than a plain run; nothing where a rate lacks."""
    pairs = {"two_beside_one": ("2 workers", "1 worker"), "one_beside_plain": ("1 worker", "plain")}
    return {name: round(rates[one] / rates[other], 3) for name, (one, other) in pairs.items() if {one, other} <= rates.keys()}


if __name__ == "__main__":
    main()

"""Measures how batch size changes greedy completions, and the cost of `batch.deterministic`.

The embedded demo model, or a random 135 M shape (`--shape 135m`: random weights have many near-ties, so its share is an upper bound),
over questions from a JSON-lines file with a column `question`, or made here. The last line is JSON: `differ` is the share of rows whose
greedy completion at that batch size is not the one at batch size 1, `slowdown` the seconds of deterministic mode to those without it.
"""

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

from racing.options import QUESTIONS, options

from durability import job
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.store.results import read_results

Found = tuple[float, list[tuple[list[int], list[float]]]]


def run(config: Path, models: ModelPool, **batch: Any) -> Found:
    """Seconds of a run, and each row's token ids and logprobs."""
    loaded: Any = load_config(config, [f"batch.{key}={json.dumps(value)}" for key, value in batch.items()])
    began = time.perf_counter()
    summary = session.run_job(loaded, KINDS["generate"], Start(overwrite=True), HostProcess(), "nothing", ModelWork(models))
    took = time.perf_counter() - began
    assert summary.complete, summary
    batches = read_results(Path(loaded.output.path), ["completion_ids", "logprobs"])
    return took, [(r["completion_ids"], r["logprobs"]) for one in batches for r in one.to_pylist()]


def main() -> None:
    """Runs at several batch sizes, then with and without deterministic mode in turns."""
    args = options(__doc__, shapes=("demo", "135m"), data=QUESTIONS, rows=512, tokens=64, rounds=2).parse_args()
    logging.getLogger("mlx_bulk").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        model = "demo"
        if args.shape == "135m":
            from networks import shapes

            (folder / "model").mkdir()
            shapes.save(folder / "model", shapes.LLAMA_135M)
            model = str(folder / "model")
        config = job(folder, model, args.data, args.rows, args.tokens)
        models = ModelPool()
        _, alone = run(config, models, rows=1)
        differ: dict[str, float] = {}
        largest = 0.0
        for rows in (2, 8, 32):
            _, found = run(config, models, rows=rows)
            same = [mine == theirs for (mine, _), (theirs, _) in zip(found, alone, strict=True)]
            differ[str(rows)] = round(1 - sum(same) / len(same), 5)
            equal = [(a[1], b[1]) for a, b, s in zip(found, alone, same, strict=True) if s]
            largest = max(largest, *(abs(x - y) for a, b in equal for x, y in zip(a, b, strict=True)))
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(args.rounds):
            for way in (True, False) if turn % 2 else (False, True):
                times[way].append(run(config, models, rows=32, deterministic=way)[0])
        slowdown = sorted(a / b for a, b in zip(times[True], times[False], strict=True))[args.rounds // 2]
    print(json.dumps({"differ": differ, "largest_difference": largest, "slowdown": round(slowdown, 3), "rows": len(alone)}))


if __name__ == "__main__":
    main()

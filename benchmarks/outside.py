"""Measures the time that a run's model thread spends outside the engine, in the real pipeline on a file of questions.

    python benchmarks/outside.py --data gsm8k_test.jsonl

The working phase lasts from the engine's first turn until the last record and the statistics are written; what the engine waits for its
input counts as outside. Loading, probing and scanning the input come before it, and stand apart (``start_seconds``). The last line is
JSON: ``outside`` is the median share over rounds.
"""

import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from networks import shapes
from racing.about import about, table
from racing.lengths import texts
from racing.options import options

import numpy as np
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.generate.generate import GenerateJob
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.core.outcomes import Outcome
from mlx_bulk.runner.core.requests import Request
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.runs.run_dir import Start

CONFIG = """
job: generate
model: {{path: {folder}}}
data: {{path: {folder}/rows.jsonl}}
prompt: {{text: "{{{{ question }}}}"}}
sampling: {{max_tokens: {new}, temperature: 0, ignore_eos: true}}
batch: {{rows: {rows}}}
output: {{path: {folder}/run}}
"""


class Timed(Engine):
    """The project's engine; when it began, and the seconds of its own work."""

    began = inside = 0.0

    def run(self, next_window: Callable[[bool], list[Request] | None], stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """The engine's outcomes; what ``next_window`` takes is not the engine's."""
        Timed.began, Timed.inside = time.perf_counter(), 0.0

        def window(wait: bool) -> list[Request] | None:
            asked = time.perf_counter()
            found = next_window(wait)
            Timed.inside -= time.perf_counter() - asked
            return found

        outcomes = super().run(window, stopped)
        while True:
            entered = time.perf_counter()
            outcome = next(outcomes, None)
            Timed.inside += time.perf_counter() - entered
            if outcome is None:
                return
            yield outcome


class TimedJob(GenerateJob):
    """A generation job whose engine is timed."""

    def engine(self, setup: Setup, reference: Setup | None) -> Engine:
        """The same engine, timed."""
        assert reference is None
        return Timed(setup, self.parts.eos, self.parts.tokenizer.stopper)


def words(folder: Path) -> list[str]:
    """Words that the demo's tokenizer takes for one token each."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(token[1:] for token in vocabulary if token[0] == "\u0120" and token[1:].isalpha() and token[1:].isascii())


def write(path: Path, lengths: list[int], choice: list[str]) -> None:
    """A JSON-lines file of questions with so many words, and tokens."""
    rng = np.random.default_rng(0)
    path.write_text("".join(json.dumps({"question": " " + " ".join(rng.choice(choice, length))}) + "\n" for length in lengths))


def run(config: Any, models: ModelPool) -> dict[str, float]:
    """One run: the share of its working phase outside the engine, that phase's seconds, and those before it."""
    begun = time.perf_counter()
    summary = session.run_job(config, TimedJob, Start(overwrite=True), HostProcess(), "nothing", ModelWork(models))
    ended = time.perf_counter()
    assert summary.complete, summary
    working = ended - Timed.began
    return {
        "outside": 1 - Timed.inside / working,
        "working_seconds": working,
        "start_seconds": Timed.began - begun,
        "tokens_per_second": summary.generated_tokens / working,
    }


def main() -> None:
    """Some runs, the first to warm up."""
    args = options(__doc__, prompts=64, new=64, rows=32, rounds=3).parse_args()
    logging.getLogger("mlx_bulk").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes.save(folder, shapes.SHAPES[args.shape])
        asked = texts(args.data, args.prompts, 2048)
        write(folder / "rows.jsonl", list(map(len, asked.questions)), words(folder))
        (folder / "job.yaml").write_text(CONFIG.format(folder=folder, new=args.new, rows=args.rows))
        config, models = load_config(folder / "job.yaml"), ModelPool()
        runs = [run(config, models) for _ in range(args.rounds + 1)][1:]
    figures = {figure: round(statistics.median(each[figure] for each in runs), 4) for figure in runs[0]}
    table({figure: [value] for figure, value in figures.items()}, [f"{args.prompts} prompts, {args.new} new tokens each"])
    what = {"shape": args.shape, "prompts": args.prompts, "new": args.new, "rows": args.rows, "lengths": asked.source}
    print(json.dumps({"benchmark": "outside", **what, **figures, **about()}))


if __name__ == "__main__":
    main()

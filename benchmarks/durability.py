"""Measures the cost of durability: generation with the journal and its fsyncs, against records kept in memory.

Ours in both cases, the embedded demo model (small, so that records come fast: the worst case), questions from a JSON-lines file with
a column `question` (GSM8K's, say) or made here. The runs take turns in one process. The last line is JSON: `ratio` is the median over
rounds of the seconds with the journal to those without, `writer_cpu_share` the processor time of the writer's thread in a run's wall time.
"""

import json
import logging
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from racing.options import QUESTIONS, options

from mlx_bulk.kernels.backend import load_mlx
from mlx_bulk.runner.pipeline.model_work import ModelWork

load_mlx()

import pyarrow as pa  # noqa: E402
from mlx_bulk.configs.load import load_config  # noqa: E402
from mlx_bulk.jobs.kinds import KINDS  # noqa: E402
from mlx_bulk.runner.core.host_process import HostProcess  # noqa: E402
from mlx_bulk.runner.models.model_pool import ModelPool  # noqa: E402
from mlx_bulk.runner.pipeline import session  # noqa: E402
from mlx_bulk.runner.runs.run_dir import Start  # noqa: E402
from mlx_bulk.runner.store.arrow_builder import record_batch  # noqa: E402
from mlx_bulk.runner.store.writer import Writer  # noqa: E402

WORDS = "a farmer has twelve apples and sells half of them to his neighbour who pays two dollars for each how many are left".split()  # noqa: SIM905

CONFIG = """
job: generate
model: {{path: {model}}}
data: {{path: {data}, limit: {rows}}}
prompt: {{text: "{{{{ question }}}}"}}
sampling: {{max_tokens: {tokens}, temperature: 0, ignore_eos: true}}
output: {{path: {output}}}
"""


class InMemory:
    """Keeps records until the end and writes them at once, as most batch scripts do."""

    def __init__(self, run_dir: Any, identity: str, schema: pa.Schema, *_: Any):
        self.rows = self.records = self.errors = 0
        self._path, self._schema, self._held = run_dir.root / "results" / "all.arrow", schema, list[dict[str, Any]]()

    def admit(self, row: int, samples: int) -> None:
        """Nothing is waited for."""

    def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
        """Keeps the record."""
        self._held.append({**record, "row": row, "sample": sample})
        self.rows = self.records = len(self._held)

    def wait(self) -> None:
        """Returns at once: the counts are those of this thread."""

    def finish(self) -> None:
        """Writes them all."""
        self._held.sort(key=lambda record: (record["row"], record["sample"]))
        with self._path.open("wb") as file, pa.ipc.new_file(file, self._schema) as sink:
            sink.write_batch(record_batch(self._schema, self._held))

    def close(self) -> None:
        """Nothing is open."""


class Timed(Writer):
    """The project's writer, which notes its thread's processor time."""

    cpu_seconds = 0.0

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            Timed.cpu_seconds = time.thread_time()


def questions(path: Path, count: int) -> None:
    """Writes made-up questions of a few dozen words."""
    rng = random.Random(0)
    rows = ({"question": " ".join(rng.choices(WORDS, k=rng.randint(20, 80)))} for _ in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def job(folder: Path, model: str, data: Path | None, rows: int, tokens: int) -> Path:
    """Writes a job's config into ``folder``: so many ``tokens`` for each of ``rows`` questions of ``data``, else for made-up ones."""
    if data is None:
        data = folder / "rows.jsonl"
        questions(data, rows)
    config = folder / "job.yaml"
    config.write_text(CONFIG.format(model=model, data=data, rows=rows, tokens=tokens, output=folder / "run"))
    return config


def seconds(config: Path, writer: Any, models: ModelPool) -> float:
    """One whole run's wall time."""
    session.Writer = writer
    loaded: Any = load_config(config)
    began = time.perf_counter()
    session.run_job(loaded, KINDS["generate"], Start(overwrite=True), HostProcess(), "nothing", ModelWork(models))
    return time.perf_counter() - began


def main() -> None:
    """Runs both in turns."""
    args = options(__doc__, shapes=(), data=QUESTIONS, rows=1319, tokens=64, rounds=4).parse_args()
    logging.getLogger("mlx_bulk").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=".") as name:
        config = job(Path(name), "demo", args.data, args.rows, args.tokens)
        models = ModelPool()
        seconds(config, Timed, models)
        took: dict[str, list[float]] = {"journal": [], "memory": []}
        shares: list[float] = []
        for turn in range(args.rounds):
            for way in ("journal", "memory") if turn % 2 else ("memory", "journal"):
                took[way].append(seconds(config, {"journal": Timed, "memory": InMemory}[way], models))
            shares.append(Timed.cpu_seconds / took["journal"][-1])
    ratio = statistics.median(a / b for a, b in zip(took["journal"], took["memory"], strict=True))
    shown = {way: [round(s, 2) for s in times] for way, times in took.items()}
    print(json.dumps({"ratio": round(ratio, 4), "writer_cpu_share": round(statistics.median(shares), 5), "seconds": shown}))


if __name__ == "__main__":
    main()

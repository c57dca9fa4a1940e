"""Rows a second and memory of everything around the engine: a million short rows through a two-layer toy model, by the real command.

    python benchmarks/million.py
    python benchmarks/million.py --job score --rows 100000

The same with ``--few`` rows shows what memory does not grow with: ``memory`` is the ratio of both processes' peaks. Scratch files lie in
the working directory. The last line is JSON.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from racing.about import about, table
from racing.peak_memory import peak_of

WORDS = "the sea is long and my lord hath said that love will come again when night has gone from thee who art so fair".split()  # noqa: SIM905
JOBS: dict[str, dict[str, Any]] = {
    "generate": {"job": "generate", "prompt": {"text": "{{ question }}"}, "sampling": {"max_tokens": 1, "temperature": 0}},
    "score": {"job": "score", "score": {"text": "{{ question }}"}},
    "embed": {"job": "embed", "prompt": {"text": "{{ question }}"}, "embed": {"pooling": "mean"}},
}


def save_toy(folder: Path) -> None:
    """Builds the model: in a process of its own, as the command's process is charged with what its parent held."""
    from networks import shapes

    shapes.save(folder, shapes.TOY)


def questions(rows: int) -> Iterator[str]:
    """Lines of 3 to 12 words, each with its number."""
    rng = random.Random(0)
    for row in range(rows):
        yield json.dumps({"id": row, "question": " ".join(rng.choices(WORDS, k=rng.randint(3, 12)))}) + "\n"


def run(job: str, rows: int, folder: Path) -> dict[str, float]:
    """One run of the command."""
    source, model = {"path": str(folder / "rows.jsonl"), "limit": rows}, {"path": str(folder / "toy")}
    return peak_of(folder, rows, {**JOBS[job], "model": model, "data": source})


def main() -> None:
    """Few rows, then all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=list(JOBS), default="generate")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        (folder / "toy").mkdir()
        builder = multiprocessing.get_context("spawn").Process(target=save_toy, args=(folder / "toy",))
        builder.start()
        builder.join()
        with (folder / "rows.jsonl").open("w") as file:
            file.writelines(questions(args.rows))
        few, many = run(args.job, args.few, folder), run(args.job, args.rows, folder)
    figures = {"memory": round(many["peak_mb"] / few["peak_mb"], 3), "rows_per_second": many["rows_per_second"], "few": few, "many": many}
    table({"few": list(few.values()), "many": list(many.values())}, list(few))
    print(json.dumps({"benchmark": "million", "job": args.job, **figures, **about()}))


if __name__ == "__main__":
    main()

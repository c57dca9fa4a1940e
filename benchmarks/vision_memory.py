"""Memory of a run on pictures, by the real command: few rows and many, each with a picture of its own and of its own size.

    python benchmarks/vision_memory.py
    python benchmarks/vision_memory.py --rows 300 --few 100

The model is the tiny one of docs/examples/pictures. ``batch.image_memory`` is so small that features of a tenth of the few pictures fill
it, as it may be filled by design. ``memory`` is the ratio of both processes' peaks. Scratch files lie in the working directory. The last
line is JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from racing.about import about, table
from racing.peak_memory import peak_of

import numpy as np
from PIL import Image

MODEL = Path(__file__).parents[1] / "docs" / "examples" / "pictures" / "tiny_model.py"
FEATURE = 64 * 4  # bytes of a token's feature in that model
TOKENS = 28  # of a picture, about


def write_pictures(folder: Path, rows: int) -> None:
    """Writes noise in so many sizes, and the rows that ask about it."""
    rng = np.random.default_rng(0)
    with (folder / "rows.jsonl").open("w") as file:
        for row in range(rows):
            width, height = (int(side) for side in rng.integers(60, 240, 2))
            noise = rng.integers(0, 255, (height // 10, width // 10, 3)).astype(np.uint8)
            Image.fromarray(noise).resize((width, height)).save(folder / f"{row}.jpg")
            file.write(json.dumps({"id": row, "question": f"What is in picture {row}?", "image": f"{row}.jpg"}) + "\n")


def run(folder: Path, rows: int, kept: float) -> dict[str, float]:
    """One run of the command. kept: GB for features."""
    settings: dict[str, Any] = {
        "job": "generate",
        "model": {"path": str(folder / "model")},
        "data": {"path": str(folder / "rows.jsonl"), "limit": rows},
        "prompt": {"user": "{{ question }}", "images": "image"},
        "sampling": {"max_tokens": 2, "temperature": 0},
        "batch": {"image_memory": kept, "rows_per_shard": 200},
    }
    return peak_of(folder, rows, settings)


def main() -> None:
    """Few rows, then all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=1_000)
    args = parser.parse_args()
    kept = args.few / 10 * TOKENS * FEATURE / 1e9
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        subprocess.run([sys.executable, str(MODEL), str(folder / "model")], check=True)
        write_pictures(folder, args.rows)
        few, many = run(folder, args.few, kept), run(folder, args.rows, kept)
    figures = {"memory": round(many["peak_mb"] / few["peak_mb"], 3), "image_memory": kept, "few": few, "many": many}
    table({"few": list(few.values()), "many": list(many.values())}, list(few))
    print(json.dumps({"benchmark": "vision_memory", **figures, **about()}))


if __name__ == "__main__":
    main()

"""Writes docs/models.md: how each architecture of mlx-lm runs here, how far a batch is from rows alone, and mlx-lm's faults.

    MLX_BULK_CPU=generic python -m tests.zoo.table            about ten minutes; torch and transformers are needed

What it measures is what the zoo's tests bound.
"""

import logging
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from mlx_bulk.kernels import backend
from mlx_bulk.kernels.cpu.vector_units import generic

from ..runner.support.naive_truth import ECHO_TOLERANCE
from ..runner.support.tiny_runs import documents
from .configs import CANNOT, CONFIGS
from .counterparts import COUNTERPARTS, DIFFERENT, LACKING, NOT_LOADED, log_softmax, write_counterpart
from .entries import entry, loaded
from .faults import IN_ANY_CALL, IN_BATCHES, PRELUDE, Fault
from .kv_quantization import quantizable
from .trial import TEXTS, choices, forced, generating, in_chunks, logits, prompts, scoring, small

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
INTRODUCTION = """\
# Models

<!-- written by python -m tests.zoo.table -->

How each architecture of mlx-lm {} (mlx {}) runs here: in float32 by mlx's operations on a CPU ({}), on tiny random models with
every kind of layer that it can have, and windows shorter than the rows. The way is found at load by trying, not by the name. With this
program's kernels for CPUs it may be a faster one:

- **padded**: rows of unlike lengths share a batch, and new ones join it while others decode;
- **joined**: the same from the first decode step on; prompts of one length are prefilled together, as a recurrent state would keep pads;
- **exact**: a batch's rows are of one length, so that there is nothing to pad; slower, and right;
- **alone**: one row at a time.

`max Δ` is the largest difference of a logprob between a batch and each row alone: ragged prompts, rows that leave and join, two samples
of one prompt, prefill in chunks, echo, documents, choices behind a shared prefix. `Δ if padded` is what it would be with pads where there
are none. `head`: whether logits are made of chosen positions only (`apart`). `KV of 8 bits`: whether mlx-lm's caches can be quantized
(`to_quantized`) and decoding goes on; `here alone`: with the caches of this program, which `batch.kv_bits` fills, but not with those.
A trial at load says whether the model takes them. `transformers`: the largest difference from
transformers {} on a checkpoint that it has saved.
"""
HEAD = "| architecture | runs | max Δ | Δ if padded | head | KV of 8 bits | transformers |"


@dataclass(slots=True, frozen=True)
class Row:
    """A line of the table: differences are of logprobs, from each row alone; ``padded`` is None where that is the way taken."""

    name: str
    way: str
    batched: float
    padded: float | None
    head: bool
    quantizable: str
    transformers: float | None

    def __str__(self) -> str:
        cells = (
            self.name,
            self.way,
            _figure(self.batched),
            "" if self.padded is None else _figure(self.padded),
            "apart" if self.head else "whole",
            self.quantizable,
            "" if self.transformers is None else _figure(self.transformers),
        )
        return f"| {' | '.join(cells)} |"


def _figure(difference: float) -> str:
    return "crash" if np.isinf(difference) else f"{difference:.0e}"


def measured(name: str) -> Row:
    """Runs an architecture through the engine and the scorer."""
    found = entry(name)
    setup, alone = found.setup, found.alone
    runs = (generating(small(setup), alone).batched, generating(in_chunks(setup), alone).batched)
    scores = (scoring(small(setup), alone, asked) for asked in (documents(prompts(TEXTS)), choices()))
    way = found.about["way"]
    padded = None if way == "padded" else forced(setup, found.model.network)["padded"]()
    against = against_transformers(name) if name in COUNTERPARTS else None
    return Row(name, way, max(*runs, *scores), padded, setup.head is not None, quantizable(name, way), against)


def against_transformers(name: str, more: dict[str, Any] | None = None) -> float:
    """Returns how far logprobs are from transformers' on a checkpoint that it saved."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)

    lacking = LACKING.get(name, "nothing") if more is None else "nothing"
    with tempfile.TemporaryDirectory() as folder:
        theirs: Any = write_counterpart(name, Path(folder), more, lambda path: lacking in path)
        ids = prompts((40,))[0]
        with torch.no_grad():
            expected = log_softmax(theirs(torch.tensor([ids])).logits[0].numpy())
        if expected.std() <= 1:
            raise ValueError(f"{name}: logprobs spread by {expected.std():.2g}; an error would hide: raise counterparts.GAIN")
        found = log_softmax(logits(loaded(Path(folder)).network, ids))
    return float(np.abs(found - expected).max())


def page(rows: list[Row]) -> str:
    """The whole page."""
    ways, worst = Counter(row.way for row in rows), max(rows, key=lambda row: row.batched)
    compared = [row.transformers for row in rows if row.transformers is not None]
    totals = (
        f"**{len(rows)} of {len(rows) + len(CANNOT)}** architectures run: {ways['padded']} padded, {ways['joined']} joined, "
        f"{ways['exact']} exact, {ways['alone']} alone. "
        f"The worst Δ is {worst.batched:.1e} ({worst.name}; allowed {ECHO_TOLERANCE:.0e}). {len(compared)} are compared with transformers; "
        f"the worst Δ there is {max(compared, default=0.0):.1e}."
    )
    lines = [
        INTRODUCTION.format(version("mlx-lm"), version("mlx"), backend.prepare(), version("transformers")),
        totals,
        "",
        HEAD,
        "|---" * 7 + "|",
        *map(str, rows),
        "",
        "Not here:",
        "",
        *(f"- **{name}**: {reason}." for name, reason in sorted(CANNOT.items())),
        "",
        "## Faults of mlx-lm in padded batches",
        "",
        "Each script stands behind this one, and fails:",
        "",
        "```python",
        PRELUDE.rstrip(),
        "```",
        "",
        *_listed(IN_BATCHES),
        "## Other faults of mlx-lm",
        "",
        *_listed(IN_ANY_CALL),
        "## Where mlx-lm differs from transformers",
        "",
        "A row alone differs too, so nothing here can tell. Δ is of a logprob, on tiny random models.",
        "",
        *(f"- **{name}**: {why} (Δ {_figure(against_transformers(name, settings))})." for name, (settings, why) in DIFFERENT.items()),
        "",
        "Checkpoints that transformers 5 has saved, and that mlx-lm does not load:",
        "",
        *(f"- **{name}**: {why}." for name, (_, why) in NOT_LOADED.items()),
        "",
    ]
    return "\n".join(lines)


def _listed(faults: tuple[Fault, ...]) -> list[str]:
    lines: list[str] = []
    for fault in faults:
        names = ", ".join(fault.architectures)
        lines += [f"**{names}**: {fault.what}. Here: {fault.done}.", "", "```python", fault.script.rstrip(), "```", ""]
    return lines


def main() -> None:
    """Measures all, and writes the page."""
    if not generic():
        sys.exit("set MLX_BULK_CPU=generic: the page tells what holds on any device")
    warnings.simplefilter("ignore")
    logging.getLogger("mlx_bulk").setLevel(logging.ERROR)
    rows: list[Row] = []
    for name in sorted(CONFIGS, key=str.lower):
        rows.append(measured(name))
        sys.stderr.write(f"{rows[-1]}\n")
    DOCS.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

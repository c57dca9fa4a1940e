"""Measures the probes at load: on a twin of the model (once, then remembered), and short rows on its weights.

The first is a matter of the architecture alone. What is tried on the weights is some calls of few tokens: each takes as long as it
takes to read all weights. The embedded demo and a Llama of 135 M parameters, by random weights. The last line is JSON: seconds of wall
time, of the processor in brackets on the lines before it.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

remembered = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = remembered.name  # nothing is known of any model yet

from networks import shapes  # noqa: E402

from mlx_bulk.configs.schema import BatchConfig, ModelConfig  # noqa: E402
from mlx_bulk.runner.checks.capabilities import capabilities_of  # noqa: E402
from mlx_bulk.runner.checks.engine_setup import fit  # noqa: E402
from mlx_bulk.runner.core.logprob_options import LogprobOptions  # noqa: E402
from mlx_bulk.runner.models.checkpoint import find_checkpoint  # noqa: E402
from mlx_bulk.runner.models.loader import LanguageModel, load_model  # noqa: E402


def timed(name: str, work: Callable[[], Any]) -> float:
    """Seconds of wall time that ``work`` takes; a line says so."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - wall
    print(f"{name:<44}{seconds:6.2f} s ({time.process_time() - processor:.2f} s)")
    return round(seconds, 3)


def cost(name: str, path: str) -> dict[str, float]:
    """Of one model, after it has run once: mlx compiles its kernels at their first use."""
    config = ModelConfig(path=path)

    def loaded() -> LanguageModel:
        return load_model(config, find_checkpoint(config), memory=1 << 40)

    def fitted(model: LanguageModel, echo: bool) -> None:
        fit(model, BatchConfig(), LogprobOptions(echo=echo))

    model = loaded()
    return {
        "twin": timed(f"{name}: twin, never seen before", lambda: capabilities_of(model)),
        "remembered": timed(f"{name}: twin, remembered", lambda: capabilities_of(model)),
        "generate": timed(f"{name}: tried on the weights, to generate", lambda: fitted(model, False)),
        "score": timed(f"{name}: tried on the weights, to score", lambda: fitted(model, True)),
        "load": timed(f"{name}: reading the weights, with substitutes", loaded),
    }


def main() -> None:
    """Both models, the small one first."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shapes.save(Path(folder), shapes.LLAMA_135M)
        found = {"demo": cost("demo", "demo"), "135m": cost("135m", folder)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Performs stages of ``gpu.py`` in a process of its own, which may run out of memory or be killed: what it has found by then is told.

A line of stdin is a request, each answer a line of stdout: pieces of JSON that belong together, the last of which says ``done``.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

from gpu_work.device_limits import DeviceLimits, measured
from gpu_work.gpu_stages import TINY, Sizes, Stage
from gpu_work.stage_performance import Performance, Tell, failure_kind, planned
from networks.random_models import Variant, build, mx

from mlx_bulk.kernels import backend
from mlx_bulk.runner.core.errors import first_line
from mlx_bulk.runner.models.loader import LanguageModel

SMALL_MEMORY = 64 << 20  # a CPU's limits are measured for the program's test alone


def device() -> dict[str, Any]:
    """Kind, name and memory of the device that computes."""
    kind = backend.device_name()
    info = mx.device_info() if kind != "cpu" else {}
    name = str(info.get("device_name", "the CPU, by mlx's operations"))
    return {"kind": kind, "name": name, "memory": backend.memory_bytes()}


def main() -> None:
    """Answers requests until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", choices=("gpu", "tiny"), default="gpu")
    sizes = TINY if parser.parse_args().sizes == "tiny" else Sizes()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer

    def tell(piece: dict[str, Any]) -> None:
        print(json.dumps(piece), file=out, flush=True)

    models: dict[Variant, LanguageModel] = {}  # at most one
    for line in sys.stdin:
        asked = json.loads(line)
        if "limits" not in asked:
            own = device()
            tell({"device": own, "limits": measured(own["memory"] if own["kind"] != "cpu" else SMALL_MEMORY).to_json(), "done": True})
            continue
        stage = Stage(Variant(**asked["variant"]), asked["kind"], asked["rows"], tuple(asked["others"]))
        try:
            _perform(stage, asked, sizes, models, tell)
        except Exception as error:
            tell({"error": f"{failure_kind(error)}: {first_line(error)}"})
            raise  # another process goes on
        tell({"done": True})


def _perform(stage: Stage, asked: dict[str, Any], sizes: Sizes, models: dict[Variant, LanguageModel], tell: Tell) -> None:
    """Performs the stage on the model that is there, or on its own, which takes that one's place."""
    limits = DeviceLimits(**asked["limits"])
    work = planned(stage, sizes, limits)
    if isinstance(work, str):
        tell({"skipped": work})
        return
    if stage.variant not in models:
        models.clear()  # two may not fit
        mx.clear_cache()
        models[stage.variant] = build(stage.variant)
    Performance(stage, models[stage.variant], sizes, limits, time.perf_counter() + asked["seconds"], tell).run(work)


if __name__ == "__main__":
    main()

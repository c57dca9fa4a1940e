"""Speed on a GPU, in one command of half an hour: ours beside mlx-lm's ``BatchGenerator``, on random weights in Qwen3's shapes.

    python benchmarks/gpu.py --results outputs/gpu.json
    python benchmarks/gpu.py --results outputs/gpu.json --minutes 10     # goes on where the first one ended

It installs and downloads nothing, and finds Metal or CUDA by itself (a CPU gets tiny sizes, to try the program). On CUDA, transformers
and vLLM are further peers where they are installed. Stages run in the order of their importance while time is left; each is in the
file when it ends. One that runs out of memory or out of time is a line of the table, which is printed in Markdown at the end.
The exit code is 1 where outputs disagree or ours fails.
"""

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_work.stage_process import StageProcess
from racing.about import about

from external_peers import MODULES, installed
from gpu_table import commit, markdown

LEAST = 20.0  # seconds left, for another stage to start
ROUNDS = 0.4  # of a stage's time, after which no round begins; the rest is for its other figures
SHORTAGE = "out of memory"


def main() -> None:
    """Runs the stages that are not in the file yet, and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("outputs/gpu.json"), help="JSON file; stages that are in it do not run again.")
    parser.add_argument("--minutes", type=float, default=28.0, help="Minutes for all stages; default %(default)g.")
    parser.add_argument("--stage-minutes", type=float, default=3.0, help="Minutes for one stage at most; default %(default)g.")
    parser.add_argument("--only", nargs="+", default=[], help="Runs stages whose name holds one of these texts, also those in the file.")
    parser.add_argument("--peers", nargs="*", choices=list(MODULES), help="Further peers; by default those that are installed, on CUDA.")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))  # the stage's process must not stay behind on the GPU
    results = performed(args, time.monotonic() + 60 * args.minutes)
    print(markdown(results))
    if wrong := [name for name, stage in results["stages"].items() if failed(stage)]:
        sys.exit(f"wrong: {'; '.join(wrong)}")


def performed(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """What the file holds once the time is over, or all stages are done."""
    from gpu_work.gpu_stages import TINY, Sizes, stages

    from mlx_bulk.kernels.backend import device_name

    kind = device_name()
    if kind == "cpu":
        os.environ.setdefault("MLX_BULK_CPU", "generic")
    sizes = TINY if kind == "cpu" else Sizes()
    others = installed(kind) if args.peers is None else tuple(args.peers)
    with StageProcess("tiny" if kind == "cpu" else "gpu") as process:
        results = _begun(args, process, deadline)
        print(found_device(results), flush=True)
        for stage in stages(kind, results["device"]["memory"], sizes, others):
            again = any(text in stage.name for text in args.only)
            if not again and (args.only or stage.name in results["stages"]):
                continue
            left = deadline - time.monotonic()
            if left < LEAST:
                print(f"{stage.name}: no time left", flush=True)
                continue
            limit, began = min(60 * args.stage_minutes, left), time.monotonic()
            request = {"variant": asdict(stage.variant), "kind": stage.kind, "rows": stage.rows, "others": stage.others}
            found = process.ask(request | {"limits": results["limits"]["exact"], "seconds": ROUNDS * limit}, limit)
            results["stages"][stage.name] = {**request, **found, "took": round(time.monotonic() - began, 1)}
            _write(args.results, results)
            print(f"{stage.name}: {said(results['stages'][stage.name])}", flush=True)
    return results


def _begun(args: argparse.Namespace, process: StageProcess, deadline: float) -> dict[str, Any]:
    """What the file holds already, or the device and its limits. On CUDA that compiles kernels, for a minute or more on a new machine."""
    now = {"commit": commit(Path(__file__).parent), **about()}
    if args.results.exists():
        results = json.loads(args.results.read_text())
        if results["commit"] != now["commit"]:
            sys.exit(f"{args.results} holds results of commit {results['commit']}, this is {now['commit']}: give another --results")
        return results
    found = process.ask({}, deadline - time.monotonic())
    if "limits" not in found:
        sys.exit(f"the device's limits could not be measured: {found['error']}")
    results = {**found, **now, "stages": {}}
    _write(args.results, results)
    return results


def found_device(results: dict[str, Any]) -> str:
    """A line on the device, so that a GPU that mlx does not see shows at once."""
    device, limits = results["device"], results["limits"]
    if device["kind"] == "cpu":
        return "no GPU that mlx can use: tiny sizes on the CPU, to try the program; none of its figures means anything"
    reach = f"{limits['bandwidth_gb_s']:,.0f} GB/s, {limits['tflops_bfloat16']:,.0f} TFLOP/s in bfloat16"
    return f"{device['name']} ({device['kind']}), {device['memory'] / 1e9:.0f} GB; measured: {reach}"


def failed(stage: dict[str, Any]) -> bool:
    """Whether a stage's outputs disagree, or ours fails for another reason than memory."""
    error = stage.get("peers", {}).get("ours", {}).get("error", SHORTAGE)
    return "disagreement" in stage or not error.startswith(SHORTAGE)


def said(stage: dict[str, Any]) -> str:
    """A stage in a line."""
    peers = [f"{peer} {one.get('tokens_per_second') or one.get('error')}" for peer, one in stage.get("peers", {}).items()]
    troubles = [f"{name.upper()}: {stage[name]}" for name in ("skipped", "disagreement", "error") if name in stage]
    return f"{', '.join([*peers, *troubles])} ({stage['took']} s)"


def _write(path: Path, results: dict[str, Any]) -> None:
    """Whole or not at all: the machine may go at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    main()

"""Compares ``mlx-bulk plan --calibrate`` with the run: time (promised within 25 %) and disk (within 10 %).

    python benchmarks/plan_accuracy.py questions.jsonl [model]

The file has columns ``question`` and ``answer``, as GSM8K has. Plan and run are the real commands, one after the other; what else
the machine does in one of them and not in the other counts against the plan. Ends with one JSON line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHAT = {"prompt": {"user": "{{ question }}"}}
JOBS: dict[str, dict[str, Any]] = {
    "greedy": {"job": "generate", **CHAT, "sampling": {"max_tokens": 64, "temperature": 0}},
    "samples": {"job": "generate", **CHAT, "sampling": {"max_tokens": 32, "n": 4}, "logprobs": {"top": 5}, "data": {"limit": 400}},
    "to the end": {"job": "generate", **CHAT, "sampling": {"max_tokens": 48, "ignore_eos": True}},
    "documents": {"job": "score", "score": {"text": "{{ question }} {{ answer }}"}},
    "completions": {"job": "score", "prompt": {"text": "{{ question }}"}, "score": {"completion": " {{ answer }}"}},
}


def command(*arguments: str) -> str:
    """Returns the output of one mlx-bulk command."""
    done = subprocess.run([sys.executable, "-m", "mlx_bulk.jobs", *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)
    return done.stdout


def compared(name: str, job: dict[str, Any], data: str, model: str, folder: Path) -> dict[str, Any]:
    """Plans and runs one job; returns the forecast, the measured value, and the relative error."""
    run = folder / name.replace(" ", "-")
    config = folder / f"{run.name}.yaml"
    sections = {"model": {"path": model}, "output": {"path": str(run)}, "data": {"path": data, **job.get("data", {})}}
    config.write_text(json.dumps({**job, **sections}))
    plan = json.loads(command("plan", str(config), "--calibrate", "--json", "--log-level", "error"))
    command("run", str(config), "-q", "--no-supervised")
    seconds = json.loads((run / "summary.json").read_text())["session"]["seconds"]
    disk = sum(file.stat().st_size for part in ("results", "errors") for file in (run / part).iterdir())
    figures = {"seconds": (plan["seconds"], seconds), "bytes": (plan["disk_bytes"], disk)}
    found: dict[str, Any] = {"job": name}
    for what, (foreseen, real) in figures.items():
        found |= {f"planned_{what}": round(foreseen, 1), what: round(real, 1), f"{what}_off": round(foreseen / real - 1, 3)}
    print(
        f"{name}: {plan['seconds']:.1f} s planned, {seconds:.1f} s taken; {plan['disk_bytes']:,} bytes planned, {disk:,} taken", flush=True
    )
    return found


def main() -> None:
    """Compares all jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="JSON-lines file.")
    parser.add_argument("model", nargs="?", default="demo", help="Default: %(default)s.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [compared(name, job, args.data, args.model, Path(folder)) for name, job in JOBS.items()]
    worst = {f"worst_{what}_off": max(abs(each[f"{what}_off"]) for each in found) for what in ("seconds", "bytes")}
    print(json.dumps({"benchmark": "plan_accuracy", "model": args.model, "jobs": found, **worst}))


if __name__ == "__main__":
    main()

"""The table of ``gpu.py``'s results in Markdown, for README.md: no figure in it is typed by hand.

python benchmarks/gpu_table.py outputs/gpu.json
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

COLUMNS = (
    "model",
    "work",
    "peer",
    "tokens a second",
    "ours to it",
    "again",
    "ours to it, again",
    "step, ms",
    "queued step, ms",
    "device waited",
    "limit, ms",
    "memory, GB",
    "rms from float32",
)
WORKS = {
    "generate": "{rows} rows, greedy, {new} tokens",
    "score": "{prompts} texts scored",
    "samples": "{prompts} prompts, {rows} samples in all, {new} tokens",
    "prefix": "{rows} rows behind a common prefix, {new} tokens",
    "kv": "{rows} rows of long prompts, {new} tokens",
}


def commit(folder: Path) -> str:
    """The commit of the clone that holds ``folder``, with a plus where files differ from it; "unknown" without a clone."""
    try:
        run = ["git", "-C", str(folder)]
        named = subprocess.run([*run, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*run, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return named + ("+" if changed else "")


def markdown(results: dict[str, Any]) -> str:
    """The whole table, with what it holds for."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for name, stage in results["stages"].items():
        lines += [f"| {' | '.join(cells)} |" for cells in _rows(name, stage)]
    return "\n".join([*lines, "", *(f"- {line}" for line in _conditions(results))])


def _rows(name: str, stage: dict[str, Any]) -> list[list[str]]:
    model, kind = name.split(": ")
    if "skipped" in stage or "peers" not in stage:
        return [[model, kind, f"not run: {stage.get('skipped') or stage.get('error')}", *[""] * (len(COLUMNS) - 3)]]
    rows: list[list[str]] = []
    for peer, one in stage["peers"].items():
        first = [model, WORKS[stage["kind"]].format(**stage)] if not rows else ["", ""]
        rows.append([*first, peer, *_figures(peer, one, stage)])
    troubles = [f"**{name}**: {stage[name]}" for name in ("disagreement", "error") if name in stage]
    return [*rows, *(["", "", trouble, *[""] * (len(COLUMNS) - 3)] for trouble in troubles)]


def _figures(peer: str, one: dict[str, Any], stage: dict[str, Any]) -> list[str]:
    ours = stage["peers"].get("ours", {})
    floor = one.get("floor_ms")
    agreed = stage.get("agreement", {}).get(peer, {})
    step = one.get("step_ms")  # a difference of two times: where they are short and others use the machine, it may be below 0
    return [
        str(one["error"]) if "error" in one else _shown(one.get("tokens_per_second"), "{:,.0f}"),
        _ratio(peer, ours, one, "tokens_per_second"),
        _shown(one.get("again"), "{:,.0f}"),
        _ratio(peer, ours, one, "again"),
        _shown(step if step is None or step > 0 else None, "{:.2f}"),
        _shown(one.get("queued_step_ms", {}).get("device"), "{:.2f}"),
        _shown(one.get("waited"), "{:.0%}"),
        f"{max(floor.values()):.2f} ({max(floor, key=lambda which: floor[which])})" if floor else "",
        _shown(one.get("peak_gb"), "{:.1f}"),
        _shown(agreed.get("rms"), "{:.2g}"),
    ]


def _ratio(peer: str, ours: dict[str, Any], one: dict[str, Any], figure: str) -> str:
    own, its = ours.get(figure), one.get(figure)
    return "" if peer == "ours" or not own or not its else f"{own / its:.2f}×"


def _shown(value: float | None, how: str) -> str:
    return "" if value is None else how.format(value)


def _conditions(results: dict[str, Any]) -> list[str]:
    device, limits = results["device"], results["limits"]
    versions = ", ".join(f"{package} {version}" for package, version in results["versions"].items())
    noises = [stage["agreement"]["noise"]["rms"] for stage in results["stages"].values() if "agreement" in stage]
    wrong = [name for name, stage in results["stages"].items() if "disagreement" in stage]
    return [
        f"Device: {device['name']} ({device['kind']}), {device['memory'] / 1e9:.0f} GB; machine: {results['machine']}.",
        f"Commit {results['commit']}, {results['date']}; {versions}.",
        f"Measured limits: {limits['bandwidth_gb_s']} GB/s of a copy, {limits['tflops_bfloat16']} TFLOP/s of products in bfloat16, "
        f"{limits['tflops_4bit']} by weights of 4 bits, {limits['round_trip_us']} µs of a round trip.",
        f"Outputs that disagree with float32 beyond rounding: {', '.join(wrong) or 'none'}; "
        f"mlx-lm's own noise is {min(noises, default=0):.2g} to {max(noises, default=0):.2g}.",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a file that gpu.py has written")
    print(markdown(json.loads(parser.parse_args().file.read_text())))

"""The tables of README.md, made of the JSON lines of the programs: no figure in them is typed by hand.

A folder holds a file for each run, ``NAME.json``, as ``all.py`` leaves them. A figure whose run or peer is not there says so.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from racing.commands import COMMANDS

README = Path(__file__).parents[1] / "README.md"
TIMES, SHARE, RATIO, SPEED = "{:.2f}×", "{:.1%}", "{:.3f}", "{:,.0f} a second"
Found = dict[str, dict[str, Any]]


@dataclass(slots=True, frozen=True)
class Row:
    """A line of the table: the run and the key of its figure (names joined by dots), and how it is shown."""

    work: str
    against: str  # may name keys of the run's JSON in braces
    bar: str
    run: str
    key: str
    shown: str = TIMES


ROWS = [
    Row("(b) greedy, logprobs", "mlx-lm as installed ({slow_prompts} of the prompts)", "30×, aim 60×", "135m-greedy-32", "ratio.mlx_lm"),
    Row("(b)", "mlx-lm, same BLAS", "2×, aim 3×", "135m-greedy-32", "ratio.mlx_lm_fast"),
    Row("(b)", "transformers float32, sorted", "1.5×, aim 2.5×", "135m-greedy-32", "ratio.transformers_sorted"),
    Row("(b)", "transformers float32, as they come", "", "135m-greedy-32", "ratio.transformers"),
    Row("(b)", "transformers bfloat16, sorted", "for information", "135m-greedy-32", "ratio.transformers_bfloat16"),
    Row("(b), 32 rows", "llama.cpp float32", "1.0×, aim 1.4×", "135m-greedy-32", "ratio.llama_cpp"),
    Row("(b), 64 rows", "llama.cpp float32", "1.0×, aim 1.4×", "135m-greedy-64", "ratio.llama_cpp"),
    Row("(b), 32 rows", "llama.cpp, float16 cache", "for information", "135m-greedy-32", "ratio.llama_cpp_half"),
    Row("(b) sampled", "mlx-lm, same BLAS", "", "135m-sampled-32", "ratio.mlx_lm_fast"),
    Row("(b) sampled", "transformers float32, sorted", "", "135m-sampled-32", "ratio.transformers_sorted"),
    Row("(b) sampled", "llama.cpp float32", "", "135m-sampled-32", "ratio.llama_cpp"),
    Row("(a) greedy, logprobs", "mlx-lm as installed ({slow_prompts} of the prompts)", "", "5m-greedy-32", "ratio.mlx_lm"),
    Row("(a)", "mlx-lm, same BLAS", "", "5m-greedy-32", "ratio.mlx_lm_fast"),
    Row("(a)", "transformers float32, sorted", "1.5×, aim 2.5×", "5m-greedy-32", "ratio.transformers_sorted"),
    Row("(a)", "transformers bfloat16, sorted", "for information", "5m-greedy-32", "ratio.transformers_bfloat16"),
    Row("(a)", "llama.cpp float32", "1.8×, aim 2.5×", "5m-greedy-32", "ratio.llama_cpp"),
    Row("(a), 64 rows", "llama.cpp float32", "1.8×, aim 2.5×", "5m-greedy-64", "ratio.llama_cpp"),
    Row("(a) sampled", "transformers float32, sorted", "", "5m-sampled-32", "ratio.transformers_sorted"),
    Row("(c) scoring", "transformers float32, sorted", "1.8×, aim 2.5×", "score", "ratio.transformers"),
    Row("(c)", "transformers float32, all logits at once", "", "score", "ratio.transformers_logits"),
    Row("(c)", "transformers bfloat16, sorted", "for information", "score", "ratio.transformers_bfloat16"),
    Row("(c)", "mlx-lm's evaluate, same BLAS", "", "score", "ratio.mlx_lm"),
    Row("(c)", "llama.cpp float32", "1.1×, aim 1.4×", "score", "ratio.llama_cpp"),
    Row("(c)", "llama.cpp, float16 cache", "for information", "score", "ratio.llama_cpp_half"),
    Row("(c)", "sgemm of the run, {sgemm_gflops} GFLOP/s in the BLAS's units", "50 %, aim 60 %", "score", "peak_share", SHARE),
    Row("(d) answers behind a common prefix", "ourselves without sharing", "4×, aim 5×", "answers", "ratio"),
    Row("(d)", "(c)'s tokens a second, on the tokens computed", "kept", "answers", "kept", SHARE),
    Row("(d)", "(c)'s GFLOP a second: each token attends to the prefix too", "", "answers", "kept_flops", SHARE),
    Row("(e) 16 samples a prompt", "16 separate rows a prompt", "2.5×, aim 3.5×", "samples", "ratio"),
    Row("(f) skewed lengths, {count:,} rows", "padded to real tokens in prefill", "at most 1.05", "skew", "padding", RATIO),
    Row("(f), {rows} rows at once", "decode slots filled", "90 %", "skew", "filled", SHARE),
    Row("(f)", "the same until no row waits", "", "skew", "filled_before_the_end", SHARE),
    Row("(g) {many[rows]:,} rows", "memory at {few[rows]:,}", "at most 1.05", "million", "memory", RATIO),
    Row("(g)", "rows", "", "million", "rows_per_second", SPEED),
    Row("(g) scoring {many[rows]:,} rows", "memory at {few[rows]:,}", "at most 1.05", "million-score", "memory", RATIO),
    Row("(g) scoring", "rows", "", "million-score", "rows_per_second", SPEED),
    Row("(b) through the pipeline", "wall time outside the engine", "at most 3 %, aim 1 %", "outside", "outside", SHARE),
]


def read(folder: Path) -> Found:
    """Of each file its last line, by the file's name."""
    return {path.stem: json.loads(path.read_text().splitlines()[-1]) for path in sorted(folder.glob("*.json"))}


def lines(found: Found, of: Sequence[Row] = ROWS, commands: Mapping[str, list[str]] = COMMANDS) -> list[str]:
    """The table in Markdown, and what it holds for."""
    rows = [
        f"| {row.work.format(**run)} | {row.against.format(**run)} | {row.bar} | {_figure(row, run)} |"
        for row in of
        if (run := found.get(row.run))
    ]
    lacking = list(dict.fromkeys(row.run for row in of if row.run not in found))
    closing = [f"Not run yet: {', '.join(lacking)}."] if lacking else []
    return ["| work | against | at least | figure |", "|---|---|---|---|", *rows, "", *_conditions(found, commands), *closing]


def _figure(row: Row, run: dict[str, Any]) -> str:
    figure: Any = run
    for name in row.key.split("."):
        if name not in figure:
            return "peer left out"
        figure = figure[name]
    return row.shown.format(figure)


def _conditions(found: Found, commands: Mapping[str, list[str]]) -> list[str]:
    """Date, machine, versions and lengths, each once however many runs share it; and how the outputs agreed."""
    told: dict[str, set[str]] = {"date": set(), "machine": set(), "blas": set(), "versions": set(), "lengths": set()}
    for run in found.values():
        versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
        for name, value in {**run, "versions": versions}.items():
            if name in told:
                told[name].add(value)
    stated = [f"{name.capitalize()}: {'; '.join(sorted(values))}." for name, values in told.items() if values]
    runs = "; ".join(f"{name} `{' '.join(commands[name])}`" for name in found)
    programs = f"Programs, each with `--data` where lengths are taken from it: {runs}."
    return [*stated, programs, *_speeds(found), *_fastest(found), *_agreement(found)]


def _speeds(found: Found) -> list[str]:
    """Tokens a second of each peer, a line a run that has peers."""
    shown: list[str] = []
    for name, run in found.items():
        if isinstance(run.get("ratio"), dict):
            speeds = {peer: run[peer]["tokens_per_second"] for peer in ("ours", *run["ratio"])}
            listed = ", ".join(f"{peer} {speed:,.0f}" for peer, speed in speeds.items())
            shown.append(f"Tokens a second, {name}: {listed}; sgemm {run['sgemm_gflops']} GFLOP/s.")
    return shown


def _fastest(found: Found) -> list[str]:
    """How many times faster ours is in the fastest round of each, a line a run: other work slows those down least."""
    shown: list[str] = []
    for name, run in found.items():
        ratio = run.get("ratio")
        if not isinstance(ratio, dict) or any("seconds" not in run[peer] for peer in ("ours", *ratio)):
            continue
        best = {peer: run[peer]["tokens"] / min(run[peer]["seconds"]) for peer in ("ours", *ratio)}
        listed = ", ".join(f"{TIMES.format(best['ours'] / best[peer])} to {peer}" for peer in ratio)
        share = run["peak_share"] * best["ours"] / run["ours"]["tokens_per_second"] if "peak_share" in run else None
        shown.append(f"Of the fastest rounds, {name}: {listed}" + ("." if share is None else f"; {SHARE.format(share)} of sgemm."))
    return shown


def _agreement(found: Found) -> list[str]:
    """The least agreement of a peer in float32 over all greedy runs."""
    peers = [
        (name, held)
        for name, run in found.items()
        if run["benchmark"] == "generate_speed" and not run["sampled"]
        for peer, held in run["agreement"].items()
        if not peer.endswith(("half", "bfloat16"))
    ]
    if not peers:
        return []
    equal, largest = min(held["equal"] for _, held in peers), max(held["largest_difference"] for _, held in peers)
    return [f"Greedy completions equal to ours, of each peer in float32: at least {equal:.0%}; logprobs up to a tie within {largest:.1g}."]


def rewrite(folder: Path, mark: str = "latest", of: Sequence[Row] = ROWS, commands: Mapping[str, list[str]] = COMMANDS) -> None:
    """Puts the table between README.md's markers. Raises FileNotFoundError where the folder holds none of the runs."""
    runs = {name: run for name, run in read(folder).items() if name in commands}
    if not runs:
        raise FileNotFoundError(f"{folder} holds no JSON file of a run; all.py writes them")
    text, begin, end = README.read_text(), f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    made = lines(runs, of, commands)
    at = made.index("")
    body = "\n".join(made[:at]) + "\n\n" + "\n".join(f"- {line}" for line in made[at + 1 :])
    README.write_text(f"{before}{begin}\n{body}\n{end}{after}")

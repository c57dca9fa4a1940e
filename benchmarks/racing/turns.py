"""Runs peers in turns, each in a process of its own (their thread pools would disturb each other), and collects their times.

A peer is one name of a program: the program calls ``serve`` when it is started with that name. All are warm before the first
turn, and those that wait use no processor, so what else the machine does falls on all alike. None sees the machine's settings
for a BLAS or for threads: all have the same ones, the libraries' own, within the units that ``MLX_BULK_CPU`` allows (``tiers.py``).
"""

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from racing import tiers

SETTINGS = ("OPENBLAS_", "OMP_", "MKL_", "GOTO_", "MLX_BULK_BLAS")
THREADS = os.cpu_count() or 1


def serve(build: Callable[[], Callable[[], Any]], warm_up: bool = True) -> None:
    """In a peer's process: builds it and does its work once to warm up, then once a line of stdin.

    Prints the seconds, and what it returns. A peer whose library is not installed says so instead. ``warm_up=False``: for one that
    has warmed up by itself, as it takes too long.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    try:
        work = build()
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}), file=out, flush=True)
        return
    if warm_up:
        work()
    gc.freeze()  # as mlx-bulk's command does: a full collection would look through all libraries, in the middle of a round
    print(json.dumps({"ready": True}), file=out, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        found = work()
        took = time.perf_counter() - began
        print(json.dumps({"seconds": took, "found": found, "peak_mb": peak_mb()}), file=out, flush=True)


def race(program: str, peers: list[str], folder: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Of each peer: ``seconds`` a round, the last ``found``, ``peak_mb`` of memory. The program gets the peer's name and ``folder``.

    A peer whose library is missing is left out, and a line says how to get it; the first one must be there.
    """
    running: dict[str, subprocess.Popen[str]] = {}
    results: dict[str, dict[str, Any]] = {}
    for peer in peers:
        command = [sys.executable, program, "--peer", peer, "--folder", str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        said = _answer(process, peer)
        if "missing" in said:
            process.communicate()
            line = f"{peer}: no module {said['missing']}; `pip install 'mlx-bulk[bench]'` has it"
            if peer == peers[0]:
                raise SystemExit(line)
            print(f"left out: {line}", file=sys.stderr)
            continue
        running[peer] = process
        results[peer] = {"seconds": []}
    for _ in range(rounds):
        for peer, process in running.items():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            found = _answer(process, peer)
            results[peer]["seconds"].append(round(found["seconds"], 3))
            results[peer] |= {"found": found["found"], "peak_mb": found["peak_mb"]}
    for process in running.values():
        process.communicate()
    return results


def environment() -> dict[str, str]:
    """Returns what a peer's process gets: no settings of the machine, and the limits of the tier."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)} | tiers.variables()


def compare(results: dict[str, dict[str, Any]], tokens: dict[str, int]) -> dict[str, float]:
    """Returns how many times faster the first peer of ``tokens`` is than each other, as the median over rounds.

    tokens: what each peer does in a round. Notes it and the tokens a second with the peer's results.
    """
    for peer, count in tokens.items():
        results[peer] |= {"tokens": count, "tokens_per_second": round(count / statistics.median(results[peer]["seconds"]), 1)}
    own, *others = tokens
    ratios: dict[str, float] = {}
    for peer in others:
        rounds = zip(results[own]["seconds"], results[peer]["seconds"], strict=True)
        ratios[peer] = round(statistics.median(theirs / mine for mine, theirs in rounds) * tokens[own] / tokens[peer], 2)
    return ratios


def _answer(process: subprocess.Popen[str], peer: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{peer} ended without an answer; what it said stands above")
    return json.loads(line)


def peak_mb() -> int:
    """The most memory that this process has held, in MB."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux, where getrusage counts what the parent held too
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_000_000
    return int(status.split("VmHWM:", 1)[1].split()[0]) * 1024 // 1_000_000

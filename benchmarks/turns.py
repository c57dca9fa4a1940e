"""Runs peers in turns, each in a process of its own (their thread pools would disturb each other), and collects their times.

A peer is one name of a program: the program calls ``serve`` when it is started with that name. All are warm before the first
turn, and those that wait use no processor, so what else the machine does falls on all alike.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def serve(work: Callable[[], float]) -> None:
    """In a peer's process: does ``work`` once to warm up, then once a line of stdin. Prints the seconds, and what it returns."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    work()
    print(json.dumps({"ready": True}), file=out, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        found = work()
        took = time.perf_counter() - began
        print(json.dumps({"seconds": took, "found": found, "peak_mb": peak_mb()}), file=out, flush=True)


def race(program: str, peers: list[str], folder: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Of each peer: ``seconds`` a round, the last ``found``, ``peak_mb`` of memory. The program gets the peer's name and ``folder``."""
    running: dict[str, subprocess.Popen[str]] = {}
    results: dict[str, dict[str, Any]] = {}
    for peer in peers:
        command = [sys.executable, program, "--peer", peer, "--folder", str(folder)]
        running[peer] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _answer(running[peer], peer)
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


def _answer(process: subprocess.Popen[str], peer: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{peer} ended without an answer; what it said stands above")
    return json.loads(line)


def peak_mb() -> int:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000

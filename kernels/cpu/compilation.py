"""Compiles C++ once for this machine's processor and keeps the library. Knows nothing of what the library computes.

The units of a library, its files ``.cpp``, are compiled beside each other, one process a core, and linked after.
"""

import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .cores import usable_cores

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True, frozen=True)
class Build:
    """What a library is made of: ``units``, files .cpp with options of their own, and ``headers``; ``command`` has the options of all.

    Units that take longest come first.
    """

    units: Mapping[Path, Sequence[str]]
    headers: Sequence[Path]
    command: Sequence[str]


def build_key(build: Build) -> str:
    """Returns a hash of all files, the options, the compiler and the processor.

    Raises OSError where there is no compiler, CalledProcessError where it does not run.
    """
    texts = [path.read_text() for path in (*build.units, *build.headers)]
    options = [*build.command, *(" ".join([path.name, *own]) for path, own in build.units.items())]
    return hashlib.sha256("\n".join([*texts, *options, _version(build.command[0]), _processor()]).encode()).hexdigest()[:32]


def shared_library(build: Build, folder: Path, opening: ExitStack) -> Path:
    """Returns the library, compiled unless ``folder`` holds it.

    Open it before ``opening`` ends: a file that could not be kept in ``folder`` is removed then. Raises CalledProcessError with what the
    compiler says, OSError where nothing can be written.
    """
    key = build_key(build)
    kept = folder.absolute() / f"{key}.so"
    if kept.is_file() and kept.stat().st_size:
        return kept
    log.info("compiling kernels for this CPU, once: some seconds")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=kept.parent, prefix=f"{key}.")
    except OSError as error:  # no home, or one that cannot be written
        log.warning(
            "kernels for this CPU are compiled anew at each start, some seconds: %s cannot be written (%s)", kept.parent, error.strerror
        )
        kept = Path(opening.enter_context(tempfile.TemporaryDirectory(prefix="mlx-bulk-", ignore_cleanup_errors=True))) / kept.name
        handle, new = tempfile.mkstemp(dir=kept.parent, prefix=f"{key}.")
    with os.fdopen(handle, "rb") as file:
        try:
            _compile(build, Path(new))
            os.fsync(file.fileno())
            Path(new).replace(kept)  # whole or not at all: others may compile it too
        finally:
            Path(new).unlink(missing_ok=True)
    return kept


def _compile(build: Build, to: Path) -> None:
    include = [f"-I{folder}" for folder in {path.parent for path in build.headers}]

    def run(*arguments: str) -> None:
        subprocess.run([*build.command, *include, *arguments], capture_output=True, text=True, check=True)

    with tempfile.TemporaryDirectory(dir=to.parent, prefix="units.", ignore_cleanup_errors=True) as folder:
        parts = {unit: str(Path(folder) / f"{unit.stem}.o") for unit in build.units}
        with ThreadPoolExecutor(max(2, usable_cores())) as beside:
            list(beside.map(lambda unit: run(*build.units[unit], "-c", "-o", parts[unit], str(unit)), parts))
        run("-o", str(to), *parts.values())


def compiler_message(error: OSError | subprocess.CalledProcessError) -> str:
    """Returns the first line of what the compiler or the system says."""
    said = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
    return said[0]


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


def processor_key() -> str:
    """Returns a short name of what this processor can do: machines that share it are alike."""
    return hashlib.sha256(_processor().encode()).hexdigest()[:8]


@cache
def _processor() -> str:
    """Returns what ``-march=native`` depends on, as machines may share the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("flags", "Features", "model", "CPU part", "cpu family")))

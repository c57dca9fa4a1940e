"""Keeps the kernels that mlx compiles on CUDA from one process to the next, and whole.

mlx compiles a kernel when it is first needed, which takes a second or so for each, and keeps it in a folder that all processes of a
machine share. It writes into the file under its name, so another process that starts meanwhile may load half a kernel: some of 14 that
began together met illegal memory accesses, or "Failed to load compiled kernel". So here each process has a folder of its own. It begins
with all kernels that were kept, as links. What it adds is kept once it has ended: the next process sees to that, however that one ended.
"""

import logging
import os
import platform
import shutil
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("mlx_bulk")

VARIABLE = "MLX_PTX_CACHE_DIR"  # mlx reads it when it compiles or loads its first kernel
PROCESS = "process "  # a process's folder: then its machine and its id
CODE, NAMES, SOURCE = ".ptx", ".txt", ".cu"  # a kernel's files, in the order in which mlx writes them; it needs the first two


def share(kept: Path) -> Path | None:
    """Gives mlx a folder of this process's own with the kernels in ``kept``, and returns it.

    ``kept`` is of one version of mlx and one kind of GPU. Returns None where the user has set ``MLX_PTX_CACHE_DIR``, or where nothing
    can be written: then mlx does as it always does.
    """
    if (given := os.environ.get(VARIABLE)) and not Path(given).name.startswith(PROCESS):  # else a parent's
        return None
    own = kept / f"{PROCESS}{platform.node()} {os.getpid()}"
    try:
        _collect(kept)
        own.mkdir(parents=True)
        first = not _take(kept, own)
    except OSError as error:
        log.warning("kernels for this GPU are not kept for the next run: %s", error)
        return None
    if first:
        log.info("mlx compiles its kernels for this GPU as they are needed, once: the first run takes a minute or more longer")
    os.environ[VARIABLE] = str(own)
    return own


def _collect(kept: Path) -> None:
    """Keeps what ended processes of this machine have compiled, and removes their folders."""
    start = f"{PROCESS}{platform.node()} "
    for folder in kept.glob(f"{PROCESS}*"):
        number = folder.name.removeprefix(start)
        if not number.isdecimal() or (int(number) != os.getpid() and _lives(int(number))):
            continue
        for path in _kernels(folder):
            target = kept / path.relative_to(folder)
            if target.exists() or not path.with_suffix(SOURCE).exists():  # kept already, or killed while mlx wrote it
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process keeps it meanwhile
                for suffix in (NAMES, CODE):
                    path.with_suffix(suffix).replace(target.with_suffix(suffix))
        shutil.rmtree(folder, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def _take(kept: Path, own: Path) -> int:
    """Links all kernels that are kept to a process's folder, and counts them."""
    kernels = _kernels(kept)
    for path in kernels:
        for file in (path.with_suffix(NAMES), path):
            new = own / file.relative_to(kept)
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, new)
            except OSError:  # a disk without links
                shutil.copyfile(file, new)
    return len(kernels)


def _kernels(folder: Path) -> list[Path]:
    """Lists the code of kernels in a folder whose names are there too; mlx divides long names into folders."""
    found = (path for path in folder.rglob(f"*{CODE}") if not path.relative_to(folder).parts[0].startswith(PROCESS))
    return [path for path in found if path.with_suffix(NAMES).is_file()]

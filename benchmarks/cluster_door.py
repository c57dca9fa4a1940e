"""Has workers join that do not fit a run, one for each difference: how soon both sides say why.

Each worker joins a run of its own: with other weights or another tokenizer at the path of the run's model, with another version of
mlx-bulk, and, for a deterministic run, with another device (its kernels are switched off). Seconds begin when the worker has what it
needs to know. Other weights are so large that their sha256 is kept in the user's cache, and they begin when it is. All others begin when
the worker's process starts, Python and mlx included. The last line is JSON. Exit 1 where one is beyond the bound, or does not say why.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster_runs.cluster_config import DEMO, write
from cluster_runs.cluster_processes import Field
from racing.about import about, table

import numpy as np
from cluster_restart import until
from safetensors.numpy import load_file, save_file

SETTLED_SECONDS = 2.5  # after so long the sha256 of a large file is kept
SIGNS = {"worker": ("is not for this worker: ", "does not use this worker: "), "driver": ("is not used: ",)}


Change = Callable[[Path], dict[str, str]]  # makes the worker differ, in the folder of its run; returns variables of its environment


def main() -> None:
    """Measures all and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bound", type=float, default=2.0, help="seconds until both sides have said why")
    parser.add_argument("--only", nargs="+", choices=list(DIFFERENCES), default=list(DIFFERENCES), help="these differences")
    args = parser.parse_args()
    seconds, said, wrong = dict[str, dict[str, float]](), dict[str, dict[str, str]](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        for label in args.only:
            change, named = DIFFERENCES[label]
            seconds[label], said[label] = refused(Path(name).resolve() / label.replace(" ", "-"), change)
            wrong += [f"{label}: the {side} does not name {named}: {text}" for side, text in said[label].items() if named not in text]
            wrong += [f"{label}, {what}: {each:.2f} s" for what, each in seconds[label].items() if what in SIGNS and each > args.bound]
    table({label: tuple(f"{each[what]:.2f}" for what in (*SIGNS, "whole")) for label, each in seconds.items()}, [*SIGNS, "the whole"])
    for label, sides in said.items():
        for side, text in sides.items():
            print(f"{label}: the {side} said: {text}")
    rounded = {label: {what: round(value, 3) for what, value in each.items()} for label, each in seconds.items()}
    print(json.dumps({"seconds": rounded, "said": said, "wrong": wrong, "bound": args.bound, **about()}))
    sys.exit(1 if wrong else 0)


def refused(folder: Path, change: Change) -> tuple[dict[str, float], dict[str, str]]:
    """Has a worker join that differs. Returns the seconds until each side said so, those of the whole, and what each said."""
    folder.mkdir()
    shutil.copytree(DEMO, folder / "model")
    if change is _other_weights:
        save_padded(folder / "model" / "model.safetensors", 0)
    field = Field(folder, 0, random.Random(0))
    try:
        sections: dict[str, Any] = {"model": {"path": str(folder / "model")}, "batch": {"deterministic": True}}
        write(folder, 100, **sections, cluster={"listen": f"127.0.0.1:{field.port}"})
        field.start_driver()
        until(field, (folder / "run" / "run.json").exists)  # the run's own files are known from here on
        variables = change(folder)
        begun = time.time()
        field.add_agent(variables)
        told, said = dict[str, float](), dict[str, str]()

        def look() -> bool:
            lines = field.log_lines()
            for side, signs in SIGNS.items():
                heard = [line.partition(sign)[2] for line in lines for sign in signs if sign in line]
                if side not in said and heard:
                    told[side], said[side] = time.time(), heard[0]
            return len(said) == len(SIGNS)

        until(field, look)
        known = [when for kept in kept_digests(folder) if (when := kept.stat().st_mtime) > begun]
    finally:
        field.end()
        for kept in kept_digests(folder):
            kept.unlink()
    since = max(known, default=begun)
    return {side: told[side] - since for side in SIGNS} | {"whole": max(told.values()) - begun}, said


def _other_weights(folder: Path) -> dict[str, str]:
    save_padded(folder / "other", 1)
    (folder / "other").replace(folder / "model" / "model.safetensors")
    time.sleep(SETTLED_SECONDS)
    return {}


def _other_tokenizer(folder: Path) -> dict[str, str]:
    with (folder / "model" / "tokenizer.json").open("a") as file:
        file.write("\n")
    return {}


def _other_version(folder: Path) -> dict[str, str]:
    """Python finds the metadata of this version first."""
    metadata = folder / "packages" / "mlx_bulk-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: mlx-bulk\nVersion: 0.0.1\n")
    return {"PYTHONPATH": str(metadata.parents[1])}


def _other_device(_: Path) -> dict[str, str]:
    return {"MLX_BULK_CPU": "generic"}


DIFFERENCES: dict[str, tuple[Change, str]] = {  # with what both sides name
    "other weights": (_other_weights, "model.weights"),
    "another tokenizer": (_other_tokenizer, "model.tokenizer"),
    "another version": (_other_version, "mlx-bulk 0.0.1"),
    "another device": (_other_device, "kernels"),
}


def save_padded(path: Path, value: int) -> None:
    """Writes the demo model's weights, with a tensor of one value that makes them so large that their sha256 is kept."""
    from mlx_bulk.runner.files.hash_cache import REMEMBERED_BYTES

    save_file(load_file(DEMO / "model.safetensors") | {"padding": np.full(REMEMBERED_BYTES, value, np.uint8)}, path)


def kept_digests(folder: Path) -> Iterator[Path]:
    """Yields the files of the user's cache that hold a sha256 of a file below ``folder``, as it is or was."""
    from mlx_bulk.kernels.backend import cache_folder

    for kept in list(cache_folder("sha256").glob("*.json")):
        with suppress(OSError):
            if str(folder) in kept.read_text():
                yield kept


if __name__ == "__main__":
    main()

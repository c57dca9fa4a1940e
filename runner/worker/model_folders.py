"""Models that lie elsewhere on this machine than where the driver has them: known by their weights, looked up below a folder."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..cluster.config_files import ModelMark, weight_bytes
from ..core.errors import ModelError
from ..core.units import size_as_text
from ..files.hash_cache import folder_sha256
from ..models.checkpoint import WEIGHTS
from ..pooling.sentence_folder import transformer_folder

_DEEPEST = 5  # folders below the one that is looked through: a hub's cache has models--org--name/snapshots/REVISION


def find_model(mark: ModelMark, key: str, told: str, root: Path | None) -> Path:
    """Returns where the model lies here that the driver has in the folder ``told``: there, or below ``root``.

    key: its place in the config. Raises ModelError where it is at neither.
    """
    here = Path(told)
    if here.is_dir() and (root is None or _holds(here, mark)):
        return here
    if root is None:
        raise ModelError(
            f"{key}: the driver has this model in its folder {told}, which is not here; put it there, or start this worker with "
            "--models FOLDER, below which the model lies"
        )
    looked = 0
    for folder in _models_below(root):
        looked += 1
        if _holds(folder, mark):
            return folder
    raise ModelError(
        f"{key}: the driver has this model in its folder {told}; none of the {looked} models below {root} has the same weights "
        f"(sha256 {mark.weights[:12]}…, {size_as_text(mark.bytes)}); copy it there"
    )


def _models_below(root: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(root, followlinks=True):
        folder = Path(name)
        if {"config.json", "modules.json"} & set(files):
            yield folder
        if len(folder.relative_to(root).parts) >= _DEEPEST:
            folders.clear()


def _holds(home: Path, mark: ModelMark) -> bool:
    """Returns whether the folder holds these weights. They are read only where their bytes are as many."""
    try:
        folder = transformer_folder(home)
        if weight_bytes(folder) != mark.bytes:
            return False
        name = json.loads((folder / "config.json").read_bytes()).get("model_file")
        return folder_sha256(folder, (*WEIGHTS, *([name] if isinstance(name, str) else []))) == mark.weights
    except (OSError, ValueError, AttributeError, ModelError):  # no model, or a broken one
        return False

"""Folders that ``datasets.save_to_disk`` wrote: which files hold rows, and which splits there are. Reads metadata only.

DatasetDict: dataset_dict.json {"splits": ["train", "test"]}, and a folder for each split
Dataset:     state.json {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}, dataset_info.json
"""

import json
from pathlib import Path
from typing import Any

from ..core.errors import DataError

# Files in which datasets describes rows. They hold none, and load_dataset skips them too.
_METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")


def is_metadata(file: Path) -> bool:
    """Returns True for a file in which ``datasets`` describes rows and holds none."""
    return file.name in _METADATA or (file.name == "state.json" and saved_files(file.parent) is not None)


def saved_files(folder: Path) -> list[str] | None:
    """Returns the names of the files with the rows of the saved dataset ``folder``; None where it is not one.

    Other Arrow files in it are caches of ``datasets``. Raises DataError where one is missing.
    """
    state = _document(folder / "state.json")
    listed = state.get("_data_files")
    if not isinstance(listed, list):
        return None
    names = [str(one["filename"]) for one in listed if isinstance(one, dict) and "filename" in one]
    if gone := [name for name in names if Path(name).name != name or not (folder / name).exists()]:
        raise DataError(
            f"data.path: {folder}/state.json names {gone[0]!r}, which is not there. Copy the whole folder that save_to_disk wrote."
        )
    return names


def saved_split(folder: Path) -> str | None:
    """Returns the split that the saved dataset ``folder`` is, or None where it is not one or does not say."""
    split = _document(folder / "state.json").get("_split")
    return split if isinstance(split, str) and split else None


def saved_splits(folder: Path) -> list[str]:
    """Returns the splits of a saved DatasetDict, in its order; none where the folder is not one."""
    splits = _document(folder / "dataset_dict.json").get("splits")
    return [str(split) for split in splits] if isinstance(splits, list) else []


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}

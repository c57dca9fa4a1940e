"""The splits of local files, by the rules of ``datasets.load_dataset``: from a README's ``configs:``, from saved datasets, or from names.

Knows paths and small files of metadata, and no rows.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ...configs.visible import visible
from ..core.errors import DataError
from ..formats.source import Source
from .saved_dataset import saved_split, saved_splits

log = logging.getLogger("mlx_bulk")

# Of datasets.data_files: a word counts between the ends of a name and these characters.
_WORDS = {"train": "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation"}
_EDGE = "[-._ 0-9]"
_IN_FOLDER_NAME = {split: re.compile(rf"(?:.*{_EDGE})?(?:{words})(?:{_EDGE}.*)?") for split, words in _WORDS.items()}
_IN_FILE_NAME = {split: re.compile(rf"(?:.*{_EDGE})?(?:{words}){_EDGE}.*") for split, words in _WORDS.items()}
_SHARD = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}.*\..*")
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---", re.DOTALL)

ONLY = "train"  # the split of files that nothing divides

Splits = dict[str, list[Source]]


@dataclass(slots=True, frozen=True)
class Listing:
    """The sources that one path of ``data.path`` comes to. ``folder``: where their names begin; ``whole``: the path is that folder."""

    folder: Path
    sources: list[Source]
    whole: bool = False


def splits_of(listing: Listing, config: str | None) -> Splits:
    """Returns the sources by split; one split ``ONLY`` where nothing divides them, and none where there are none.

    ``config``: of the folder's README, where it names several. Raises DataError for one that is not there.
    """
    if listing.whole and (configs := readme_configs(listing.folder)):
        return _splits_of_config(listing, configs, config)
    if config is not None:
        raise DataError(
            f"data.config: found {config!r}, but {listing.folder} is no folder whose README.md names configurations; remove it."
        )
    return _saved(listing) or _named(listing) or ({ONLY: listing.sources} if listing.sources else {})


def readme_configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the configurations that the folder's README.md names, by name; none where it names none."""
    readme = folder / "README.md"
    try:
        front = _FRONT_MATTER.match(readme.read_text(encoding="utf-8"))
        front_matter = yaml.safe_load(front[1]) if front else None
    except (OSError, UnicodeDecodeError):
        return {}
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # a date that there is not is a ValueError
        mark = getattr(error, "problem_mark", None)
        at = "" if mark is None else f", line {mark.line + 2}"  # its first line is the one of the dashes
        _warn(f"{readme}{at}: what stands between its lines of dashes is no YAML, and is left out; splits go by the names of files")
        return {}
    listed = front_matter.get("configs") if isinstance(front_matter, dict) else None
    configs = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return {str(one.get("config_name", "default")): one for one in configs}


@cache
def _warn(text: str) -> None:
    """Logs a warning once a process: a folder is looked at more than once."""
    log.warning("%s", text)


def _splits_of_config(listing: Listing, configs: Mapping[str, dict[str, Any]], wanted: str | None) -> Splits:
    defaults = [name for name, config in configs.items() if config.get("default") is True or name == "default"]
    name = wanted or next(iter(defaults if len(configs) > 1 else configs), None)
    if name is None or name not in configs:
        problem = "not set" if name is None else f"found {name!r}"
        raise DataError(f"data.config: {problem}, and {listing.folder}/README.md names {names_in_words(configs)}; set one of them.")
    config = configs[name]
    inner = listing.folder / str(config.get("data_dir") or ".")
    if config.get("data_files") is None:
        sources = [source for source in listing.sources if Path(source.path).is_relative_to(inner)]
        return splits_of(Listing(inner, sources), None)
    return {
        split: [source for source in listing.sources if Path(source.path).resolve() in files]
        for split, files in _files_by_split(inner, config["data_files"]).items()
    }


def _files_by_split(folder: Path, data_files: object) -> dict[str, set[Path]]:
    """Returns the files that a README's ``data_files`` names, by split: one pattern, a list, or a list of {split, path}."""
    files: dict[str, set[Path]] = {}
    for one in data_files if isinstance(data_files, list) else [data_files]:
        split, path = (str(one.get("split", ONLY)), one.get("path")) if isinstance(one, dict) else (ONLY, one)
        for pattern in path if isinstance(path, list) else [path]:
            files.setdefault(split, set()).update(_matches(folder, str(pattern)))
    return files


def _matches(folder: Path, pattern: str) -> Iterable[Path]:
    try:
        found = list(folder.glob(pattern.removeprefix("./")))
    except (ValueError, NotImplementedError):  # an absolute pattern, or one that pathlib does not read
        return []
    below = (file for path in found if path.is_dir() for file in path.rglob("*"))
    return [path.resolve() for path in (*found, *below) if path.is_file()]


def _saved(listing: Listing) -> Splits:
    """Returns the splits of a folder that ``save_to_disk`` wrote, or of none."""
    if not listing.whole:
        return {}
    if split := saved_split(listing.folder):
        return {split: listing.sources}
    return {
        split: [source for source in listing.sources if Path(source.path).is_relative_to(listing.folder / split)]
        for split in saved_splits(listing.folder)
    }


def _named(listing: Listing) -> Splits:
    """Returns the splits that names tell: of shards in data/, else of folders, else of files. None where no name tells one."""
    paths = [(source, Path(source.path).relative_to(listing.folder)) for source in listing.sources]
    sharded: Splits = {}
    for source, path in paths:
        if (found := _SHARD.fullmatch(path.name)) and str(path.parent) == "data":
            sharded.setdefault(found[1], []).append(source)
    in_folders, in_files = (
        {split: [source for source, path in paths if any(map(pattern.fullmatch, parts(path)))] for split, pattern in patterns.items()}
        for patterns, parts in ((_IN_FOLDER_NAME, lambda path: path.parent.parts), (_IN_FILE_NAME, lambda path: (path.name,)))
    )
    splits = next((splits for splits in (sharded, in_folders, in_files) if any(splits.values())), {})
    return {split: sources for split, sources in splits.items() if sources}


def names_in_words(names: Iterable[str]) -> str:
    """Returns names as a list in words, as a terminal may show them."""
    return ", ".join(map(visible, names))


def split_sources(listings: Sequence[Listing], split: str, config: str | None) -> set[Source]:
    """Returns the sources of ``split``. Raises DataError where there are none."""
    found = [splits_of(listing, config) for listing in listings]
    chosen = {source for splits in found for source in splits.get(split, [])}
    if not chosen:
        names = dict.fromkeys(name for splits in found for name, sources in splits.items() if sources)
        told = f"they hold {names_in_words(names)}" if set(names) - {ONLY} else "nothing divides them into splits"
        where = names_in_words(str(listing.folder) for listing in listings)
        if any(split in splits for splits in found):  # of a README's configs, or of dataset_dict.json
            told = "the folder's metadata names it, but none of its files is there"
        raise DataError(
            f"data.split: no file has the split {split!r} in {where}, by README.md, folders and file names; {told}. "
            "Correct data.split, or remove it to read all files."
        )
    return chosen

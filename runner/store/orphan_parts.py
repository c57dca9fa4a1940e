"""Parts that no line of the commit log declares: left by a kill, or by damage to the log.

One that validates, and that no journal can make again, is adopted: a line declares it. What a later generation has replaced goes, and
so does what a journal makes again. Everything else is set aside, never removed. The caller holds the run's lock.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from ..files.atomic import fsync_folder
from .commit_log import Commit, CommitLog, PartFile, append_commit
from .journal import Header
from .part_file import check_part, errors_schema, has_schema
from .paths import OWN_PARTS, RunPaths, part_of

log = logging.getLogger("mlx_bulk")


def adopt(
    paths: RunPaths, run: str, schema: pa.Schema, commits: CommitLog, journals: Mapping[int, Header], rows_of: Callable[[int], range]
) -> None:
    """Declares the undeclared parts that are whole and this run's.

    run: digest of the run's identity; ``rows_of``: the input rows of a shard; ``commits`` learns of the new commits.
    """
    for shard, generation in sorted(found for part in paths.results.iterdir() if (found := part_of(part.name))):
        remade = shard in journals and journals[shard].generation == generation
        if remade or generation <= commits.generations.get(shard, 0):
            continue
        commit = _validated(paths, run, schema, shard, generation)
        had = commits.commits[shard].rows if shard in commits.commits else 0
        if commit is None or not had <= commit.rows <= len(rows_of(shard)):
            continue
        append_commit(paths, commit)
        commits.commits[shard], commits.generations[shard] = commit, generation
        part = paths.results_part(shard, generation)
        log.warning("%s: no line of %s declares it, but it is whole and this run's: adopted", part, paths.commits.name)


def _validated(paths: RunPaths, run: str, schema: pa.Schema, shard: int, generation: int) -> Commit | None:
    """What a line of these parts would say, where both are whole, belong together, and hold the shard's records of this run."""
    part, errors_part = paths.results_part(shard, generation), paths.errors_part(shard, generation)
    if (checked := check_part(part)) is None:
        return None
    declared, results = checked
    if (declared.run, declared.shard) != (run, shard) or not has_schema(part, schema):
        return None
    failures: PartFile | None = None
    if declared.errors_sha256 is not None:
        checked = check_part(errors_part) if errors_part.exists() else None
        if checked is None or checked[1].sha256 != declared.errors_sha256 or not has_schema(errors_part, errors_schema(schema)):
            return None
        failures = checked[1]
    return Commit.of(shard, generation, declared.rows, (declared.records, declared.errors), results, failures)


def put_away(paths: RunPaths, commits: CommitLog, journals: Mapping[int, Header]) -> None:
    """Leaves the declared parts alone in their folders, beside those set aside: call it when the log is settled."""
    for folder in (paths.results, paths.errors):
        declared = {file for commit in commits.commits.values() for file, _ in commit.files(paths)}
        changed = False
        for part in sorted(_undeclared(folder, declared)):
            changed = True
            if part.suffix == ".tmp" or _replaced(part, commits, journals):
                part.unlink()
            else:
                aside = _free_name(part)
                log.warning("%s: set aside as %s, as no commit declares it", part, aside.name)
                part.replace(aside)
        if changed:
            fsync_folder(folder)


def _undeclared(folder: Path, declared: Collection[Path]) -> Iterator[Path]:
    for part in folder.iterdir():
        if part not in declared and OWN_PARTS.fullmatch(part.name) and (part_of(part.name) or part.suffix == ".tmp"):
            yield part


def _replaced(part: Path, commits: CommitLog, journals: Mapping[int, Header]) -> bool:
    """Whether the part's records are in a later generation, or are made into a part again from a journal."""
    shard, generation = part_of(part.name) or (-1, 0)
    if shard in journals and journals[shard].generation == generation:
        return True
    return shard in commits.commits and generation < commits.commits[shard].generation


def _free_name(part: Path) -> Path:
    number, aside = 1, part.with_name(f"{part.name}.orphan")
    while aside.exists():
        number += 1
        aside = part.with_name(f"{part.name}.orphan.{number}")
    return aside

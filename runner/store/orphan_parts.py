"""Parts that no line of the commit log declares: a kill left them, or damage to the log.

A part that is whole and that no journal can make again is adopted: a line declares it. A part is removed where a later generation has
replaced it, or where a journal makes it again. All others are set aside, never removed. The caller holds the run's lock.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from ..files.atomic import fsync_folder
from .commit_log import Commit, CommitLog, PartFile, append_commit, read_commits
from .journal import Header
from .open_journals import journal_files, uncommitted_journals
from .part_file import check_part, errors_schema, has_schema
from .paths import OWN_PARTS, RunPaths, part_of

log = logging.getLogger("mlx_bulk")


def adopt_orphans(
    paths: RunPaths,
    identity: str,
    schema: pa.Schema,
    commit_log: CommitLog,
    headers: Mapping[int, Header],
    rows_of: Callable[[int], range],
) -> None:
    """Declares the undeclared parts that are whole and this run's, in the file and in ``commit_log``.

    identity: digest of the run's identity. headers: of the uncommitted journals, by shard. rows_of: the input rows of a shard.
    """
    for shard, generation in _undeclared_results(paths, commit_log, headers):
        commit = _validated(paths, identity, schema, shard, generation)
        least = commit_log.commits[shard].rows if shard in commit_log.commits else 0
        if commit is None or not least <= commit.rows <= len(rows_of(shard)):
            continue
        append_commit(paths, commit)
        commit_log.commits[shard], commit_log.generations[shard] = commit, generation
        part = paths.results_part(shard, generation)
        log.warning("%s: no line of %s declares it, but it is whole and this run's: adopted", part, paths.commits.name)


def has_undeclared_results(run: Path) -> bool:
    """Returns True where results lie in the run directory ``run`` that neither its commit log nor a journal knows: the log was damaged."""
    paths = RunPaths(run)
    commit_log = read_commits(paths)
    begun = [each.journal.header for each in uncommitted_journals(journal_files(paths), commit_log) if each.journal is not None]
    return paths.results.is_dir() and bool(_undeclared_results(paths, commit_log, {header.shard: header for header in begun}))


def _undeclared_results(paths: RunPaths, commit_log: CommitLog, headers: Mapping[int, Header]) -> list[tuple[int, int]]:
    """Lists shard and generation of the parts that no line declares, and that no journal can make again."""
    found = sorted(name for part in paths.results.iterdir() if (name := part_of(part.name)))
    generations = commit_log.generations
    return [(shard, n) for shard, n in found if n > generations.get(shard, 0) and not _is_in_journal(headers, shard, n)]


def _validated(paths: RunPaths, identity: str, schema: pa.Schema, shard: int, generation: int) -> Commit | None:
    """Returns the commit of these parts; None unless both are whole, belong together, and hold the shard's records of this run."""
    part, errors_part = paths.results_part(shard, generation), paths.errors_part(shard, generation)
    if (checked := check_part(part)) is None:
        return None
    declared, results = checked
    if (declared.run, declared.shard) != (identity, shard) or not has_schema(part, schema):
        return None
    errors: PartFile | None = None
    if declared.errors_sha256 is not None:
        checked = check_part(errors_part) if errors_part.exists() else None
        if checked is None or checked[1].sha256 != declared.errors_sha256 or not has_schema(errors_part, errors_schema(schema)):
            return None
        errors = checked[1]
    return Commit.of(shard, generation, declared.rows, (declared.records, declared.errors), results, errors)


def clear_orphans(paths: RunPaths, commit_log: CommitLog, headers: Mapping[int, Header]) -> None:
    """Leaves only the declared parts in their folders, and those set aside. Call it when the commit log is settled."""
    for folder in (paths.results, paths.errors):
        declared = {file for commit in commit_log.commits.values() for file, _ in commit.files(paths)}
        changed = False
        for part in sorted(_undeclared(folder, declared)):
            changed = True
            if part.suffix == ".tmp" or _is_replaced(part, commit_log, headers):
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


def _is_replaced(part: Path, commit_log: CommitLog, headers: Mapping[int, Header]) -> bool:
    """Returns True when a later generation has the part's records, or a journal makes the part again."""
    shard, generation = part_of(part.name) or (-1, 0)
    if _is_in_journal(headers, shard, generation):
        return True
    return shard in commit_log.commits and generation < commit_log.commits[shard].generation


def _is_in_journal(headers: Mapping[int, Header], shard: int, generation: int) -> bool:
    return shard in headers and headers[shard].generation == generation


def _free_name(part: Path) -> Path:
    number, aside = 1, part.with_name(f"{part.name}.orphan")
    while aside.exists():
        number += 1
        aside = part.with_name(f"{part.name}.orphan.{number}")
    return aside

"""commits.jsonl: the authority on which shards are done, one checksummed line a commit.

A line of a higher generation supersedes a shard's earlier ones: a new commit, or a void line that says why the shard is
open again. A run is complete while its closing line is the last. Knows nothing of how parts are made or read.
"""

from dataclasses import asdict, dataclass
from typing import Any

from .durable import append_line, mend_lines, read_lines
from .paths import RunPaths, part_name


@dataclass(slots=True, frozen=True)
class Commit:
    """One committed part. rows: input rows; records: results; errors: quarantined rows or samples (no file when 0)."""

    shard: int
    generation: int
    rows: int
    records: int
    errors: int
    results_sha256: str
    results_bytes: int
    errors_sha256: str | None
    errors_bytes: int


@dataclass(slots=True)
class CommitLog:
    """What commits.jsonl says: the commits in force, each shard's highest generation, and the closing line if it is last."""

    commits: dict[int, Commit]
    generations: dict[int, int]
    closing: dict[str, Any] | None


def read_commits(paths: RunPaths) -> CommitLog:
    """Reads the log without touching it, also while another process writes. Raises RunDirError for damage in the middle."""
    return _log(read_lines(paths.commits))


def mend_commits(paths: RunPaths) -> CommitLog:
    """Reads the log and cuts off a torn tail, so that it can be appended to. Raises RunDirError for damage in the middle."""
    return _log(mend_lines(paths.commits))


def _log(lines: list[dict[str, Any]]) -> CommitLog:
    log = CommitLog({}, {}, None)
    for line in lines:
        log.closing = line if "complete" in line else None
        if log.closing or line["generation"] < log.generations.get(line["shard"], 0):
            continue
        log.generations[line["shard"]] = line["generation"]
        if "void" in line:
            log.commits.pop(line["shard"], None)
        else:
            log.commits[line["shard"]] = Commit(**{name: value for name, value in line.items() if name != "name"})
    return log


def append_commit(paths: RunPaths, commit: Commit) -> None:
    """Declares the shard done; its parts must be durable by now."""
    append_line(paths.commits, {"name": part_name(commit.shard), **asdict(commit)})


def append_void(paths: RunPaths, shard: int, generation: int, reason: str) -> None:
    """Declares the shard open again, under the next generation."""
    append_line(paths.commits, {"name": part_name(shard), "shard": shard, "generation": generation, "void": reason})


def append_closing(paths: RunPaths, rows: int, records: int, errors: int) -> None:
    """Declares the run complete, with its totals."""
    append_line(paths.commits, {"complete": True, "rows": rows, "records": records, "errors": errors})

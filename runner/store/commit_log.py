"""The commit log, commits.jsonl, decides which shards are done. It has one checksummed line per commit.

A line of a higher generation supersedes a shard's earlier ones. A void line takes its generation back and says why. A retry line
names the shards whose errors are to be done again, each until its next commit or void line. A run is complete while its closing
line is the last. Does not know how parts are made or read.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ..files.checked_lines import append_line, read_lines, salvage_lines
from ..files.file_stamp import Stamp, stamp_of
from .paths import RunPaths, part_name


@dataclass(slots=True, frozen=True)
class PartFile:
    """A part's file: the hex sha256 of all its bytes, its size in bytes, and its stamp at the commit.

    A file that still has this size and stamp is trusted without being read. Without a stamp (None) it is always read.
    """

    sha256: str
    bytes: int
    stamp: Stamp | None

    @classmethod
    def at(cls, path: Path, sha256: str) -> Self:
        """Describes the file at ``path``, whose sha256 is known."""
        stat = path.stat()
        return cls(sha256, stat.st_size, stamp_of(stat))


@dataclass(slots=True, frozen=True)
class Commit:
    """One committed shard. rows: input rows. records: results. errors: quarantined rows or samples (no file when 0)."""

    shard: int
    generation: int
    rows: int
    records: int
    errors: int
    results_sha256: str
    results_bytes: int
    errors_sha256: str | None
    errors_bytes: int
    results_stamp: Stamp | None = None
    errors_stamp: Stamp | None = None

    @classmethod
    def of(cls, shard: int, generation: int, rows: int, counts: tuple[int, int], results: PartFile, failures: PartFile | None) -> Self:
        """Makes the commit of these two files. counts: of records and of errors."""
        errors = PartFile("", 0, None) if failures is None else failures
        digest = None if failures is None else errors.sha256
        files = (results.sha256, results.bytes, digest, errors.bytes, results.stamp, errors.stamp)
        return cls(shard, generation, rows, *counts, *files)

    def files(self, paths: RunPaths) -> Iterator[tuple[Path, PartFile]]:
        """Yields the file with the results, then the file with the errors where there is one."""
        yield paths.results_part(self.shard, self.generation), PartFile(self.results_sha256, self.results_bytes, self.results_stamp)
        if self.errors_sha256 is not None:
            yield paths.errors_part(self.shard, self.generation), PartFile(self.errors_sha256, self.errors_bytes, self.errors_stamp)


@dataclass(slots=True)
class CommitLog:
    """The contents of commits.jsonl: the commits in force, each shard's highest generation, and the closing line if it is last.

    retries: the shards whose errors are to be done again, each with the number of the last retry that named it.
    """

    commits: dict[int, Commit]
    generations: dict[int, int]
    closing: dict[str, Any] | None
    retries: dict[int, int] = field(default_factory=dict[int, int])

    def is_complete(self, rows: int) -> bool:
        """Returns True when the run is closed over ``rows`` rows. After its input has grown, a closing line may count fewer rows."""
        return self.closing is not None and self.closing["rows"] == rows


def read_commits(paths: RunPaths) -> CommitLog:
    """Reads the log and leaves it as it is, also while another process writes. Passes over damaged lines."""
    return _log(read_lines(paths.commits))


def mend_commits(paths: RunPaths) -> CommitLog:
    """Reads the log and takes damaged lines and a torn tail out, so that it can be appended to.

    The part that a damaged line declared is then undeclared; see ``orphan_parts``.
    """
    return _log(salvage_lines(paths.commits)[0])


def _log(lines: list[dict[str, Any]]) -> CommitLog:
    log = CommitLog({}, {}, None)
    for line in lines:
        log.closing = line if "complete" in line else None
        if "retry" in line:
            log.retries |= dict.fromkeys(line["shards"], line["retry"])
            continue
        if log.closing or line["generation"] < log.generations.get(line["shard"], 0):
            continue
        log.generations[line["shard"]] = line["generation"]
        log.retries.pop(line["shard"], None)
        if "void" in line:
            log.commits.pop(line["shard"], None)
        else:
            # An earlier version wrote lines without stamps; --overwrite still reads these.
            stamps: dict[str, Any] = {name: tuple(line[name]) if line.get(name) else None for name in ("results_stamp", "errors_stamp")}
            values = {name: value for name, value in line.items() if name != "name"} | stamps
            log.commits[line["shard"]] = Commit(**values)
    return log


def append_commit(paths: RunPaths, commit: Commit) -> None:
    """Declares the shard done. Its parts must already be durable."""
    append_line(paths.commits, {"name": part_name(commit.shard, commit.generation), **asdict(commit)})


def append_void(paths: RunPaths, commit: Commit, reason: str) -> None:
    """Takes a commit back. The shard is open again, and its next generation is the one after this."""
    name, generation = part_name(commit.shard, commit.generation), commit.generation
    append_line(paths.commits, {"name": name, "shard": commit.shard, "generation": generation, "void": reason})


def append_retry(paths: RunPaths, retry: int, shards: Collection[int]) -> None:
    """Declares that the errors of these shards are to be done again. retry: a number above all those in force."""
    append_line(paths.commits, {"retry": retry, "shards": sorted(shards)})


def append_closing(paths: RunPaths, rows: int, records: int, errors: int) -> None:
    """Declares the run complete, with its totals."""
    append_line(paths.commits, {"complete": True, "rows": rows, "records": records, "errors": errors})

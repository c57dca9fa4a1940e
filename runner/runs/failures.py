"""How many groups of a run were left out on purpose: their failures stand in errors/ and in journals with the stage ``DROP``.

Takes no lock and changes nothing. Knows no reasons for leaving a group out.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from ..core.errors import DROP
from ..store import journal
from ..store.commit_log import read_commits
from ..store.journal import Journal
from ..store.paths import RunPaths
from ..store.results import read_errors


def dropped(paths: RunPaths) -> int:
    """Counts them, those that are not committed yet too, as the run's errors are counted. Raises RunDirError where a part is missing."""
    journals = list(_journals(paths))
    retried = {each.header.shard for each in journals if each.header.retry}  # none of their base's failures counts any more
    return committed_drops(paths, without=retried) + sum(_drops(each.errors) for each in journals)


def committed_drops(paths: RunPaths, without: Collection[int] = ()) -> int:
    """Counts those that stand in errors/, less those of the shards ``without``. Raises RunDirError where a part is missing."""
    return _drops(read_errors(paths.root, ["stage"], without))


def _drops(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.column("stage").to_pylist().count(DROP) for batch in batches)


def _journals(paths: RunPaths) -> Iterator[Journal]:
    """Those that are not committed yet."""
    generations = read_commits(paths).generations
    for file in sorted(file for file in paths.journal.glob("*") if file.name.isdigit()):
        with suppress(FileNotFoundError):  # committed in this moment
            found, _ = journal.peek(file)
            if found is not None and found.header.generation > generations.get(found.header.shard, 0):
                yield found

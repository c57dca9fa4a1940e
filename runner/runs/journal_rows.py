"""Counts the finished rows that lie in journals, whose shards are not committed. Takes no lock and changes nothing."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..files.checked_lines import read_lines
from ..store.commit_log import CommitLog
from ..store.journal import Journal
from ..store.open_journals import journal_files, uncommitted_journals
from ..store.paths import RunPaths
from ..store.row_order import positions
from ..store.shard_ledger import WHOLE

_MAX_BYTES = 256 << 20  # of journals, which are read whole


def samples_of_rows(config: dict[str, Any], paths: RunPaths) -> int | None:
    """Returns how many records and failures each row has, or None where rows differ in it."""
    if (sampling := config.get("sampling")) is None or config.get("select") == "best":
        return 1
    adopted = {line.get("key") for line in read_lines(paths.sessions) if line.get("event") == "adopted"}
    varies = "n" in sampling["columns"] or config["data"]["format"] == "openai"
    return None if varies or adopted & {"sampling.n", "sampling.columns"} else int(sampling["n"])


def journaled_rows(paths: RunPaths, log: CommitLog, samples: int | None) -> tuple[int, int] | None:
    """Returns how many rows are resolved in the journals of shards that are not committed at all, and how many failures are there.

    samples: records and failures of each row. Returns None where rows differ in it, or journals are large.
    """
    files, size = journal_files(paths), 0
    for file in files:
        with suppress(FileNotFoundError):  # committed in this moment
            size += file.stat().st_size
    if samples is None or size > _MAX_BYTES:
        return None
    rows = errors = 0
    for content in _new_journals(files, log):
        rows += _resolved(content, samples)
        errors += sum(batch.num_rows for batch in content.errors)
    return rows, errors


def _new_journals(files: list[Path], log: CommitLog) -> list[Journal]:
    """Reads the journals of shards that have no commit: what others hold counts among the committed rows."""
    found = (each.journal for each in uncommitted_journals(files, log))
    return [content for content in found if content is not None and content.header.base is None]


def _resolved(content: Journal, samples: int) -> int:
    """Counts the rows that failed as a whole, or have as many records and failures as ``samples``."""
    places = [positions(batches) for batches in (content.results, content.errors)]
    rows, numbers = (np.concatenate(each) for each in zip(*places, strict=True))
    whole = np.unique(rows[numbers == WHOLE])
    found, counts = np.unique(rows[numbers != WHOLE], return_counts=True)
    return len(whole) + int(np.count_nonzero(counts[~np.isin(found, whole)] >= samples))

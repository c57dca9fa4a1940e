"""Names the files of a run directory, and tells which names there are ours. Reads and writes nothing."""

import re
from dataclasses import dataclass
from pathlib import Path

OWN_FILES = (
    "inputs.json",
    "stats.arrow",
    "metrics.jsonl",
    "summary.json",
    "kv_difference.json",
    "report.html",
    "sessions.jsonl",
    "workers.jsonl",
    "workers.json",
)
OWN_FOLDERS = ("results", "errors", "journal")
_PART = r"part-(\d{8,})(?:\.g([2-9]|[1-9]\d+))?\.arrow"
OWN_PARTS = re.compile(rf"{_PART}(?:\.orphan(?:\.\d+)?)?|\.{_PART}\.tmp")
OWN_POLICIES = re.compile(r"\d+-[0-9a-f]{12}|\.new|events\.jsonl(?:\.damaged)?|\.events\.jsonl(?:\.damaged)?\.tmp")
OWN_JOURNALS = re.compile(r"\d{8,}|\.\d{8,}\.tmp")


@dataclass(slots=True)
class RunPaths:
    """The paths of a run directory's files below ``root``."""

    root: Path

    @property
    def run(self) -> Path:
        """Describes the run; written when it starts, and when its input grows."""
        return self.root / "run.json"

    @property
    def inputs(self) -> Path:
        """Holds the scan of the input."""
        return self.root / "inputs.json"

    @property
    def sessions(self) -> Path:
        """Has a line for each start and each end."""
        return self.root / "sessions.jsonl"

    @property
    def results(self) -> Path:
        """Holds committed records, one part per shard."""
        return self.root / "results"

    @property
    def errors(self) -> Path:
        """Holds quarantined rows, one part for each shard that has any."""
        return self.root / "errors"

    @property
    def journal(self) -> Path:
        """Holds finished rows of open shards."""
        return self.root / "journal"

    @property
    def commits(self) -> Path:
        """Says which shards are done."""
        return self.root / "commits.jsonl"

    @property
    def stats(self) -> Path:
        """Holds statistics, one row per group."""
        return self.root / "stats.arrow"

    @property
    def workers(self) -> Path:
        """One line a lease of a run over workers: who did which rows, and how long it took."""
        return self.root / "workers.jsonl"

    @property
    def workers_now(self) -> Path:
        """What each worker has done in all, with open leases, when a run over workers last wrote it: every few seconds."""
        return self.root / "workers.json"

    @property
    def metrics(self) -> Path:
        """Has one line per interval."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Holds the figures of the run's closing line."""
        return self.root / "summary.json"

    @property
    def kv_difference(self) -> Path:
        """Holds what quantized keys and values changed, by a sample of the records."""
        return self.root / "kv_difference.json"

    @property
    def report(self) -> Path:
        """Shows the run as an HTML page."""
        return self.root / "report.html"

    @property
    def doomed(self) -> Path:
        """Exists while the run here is still to be removed, as ``--overwrite`` asked."""
        return self.root / ".overwrite"

    @property
    def policies(self) -> Path:
        """Holds the policies that rollouts were sampled from, one folder per version."""
        return self.root / "policies"

    @property
    def policy_events(self) -> Path:
        """Has a line for each policy that was taken or refused."""
        return self.policies / "events.jsonl"

    def results_part(self, shard: int, generation: int) -> Path:
        """Returns the file of the results of ``shard`` in this generation."""
        return self.results / part_name(shard, generation)

    def errors_part(self, shard: int, generation: int) -> Path:
        """Returns the file of the quarantined rows of ``shard`` in this generation; it is missing when there are none."""
        return self.errors / part_name(shard, generation)

    def journal_of(self, shard: int) -> Path:
        """Returns the file of the finished rows of ``shard`` while it is open."""
        return self.journal / f"{shard:08d}"


def part_name(shard: int, generation: int) -> str:
    """Returns the file name of a shard's part. Each generation has its own, so no committed file is overwritten."""
    return f"part-{shard:08d}.arrow" if generation == 1 else f"part-{shard:08d}.g{generation}.arrow"


def part_of(name: str) -> tuple[int, int] | None:
    """Returns (shard, generation) of a part's file name; None for any other name, also for parts that were set aside."""
    match = re.fullmatch(_PART, name)
    return None if match is None else (int(match[1]), int(match[2] or 1))

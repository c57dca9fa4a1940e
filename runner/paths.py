"""Where things lie in a run directory, and which names there are ours. Knows names only; reads and writes nothing."""

import re
from dataclasses import dataclass
from pathlib import Path

OWN_FILES = ("inputs.json", "stats.arrow", "metrics.jsonl", "summary.json", "report.html", "sessions.jsonl")
OWN_PARTS = re.compile(r"part-\d{8,}\.arrow(\.orphan)?|\.part-\d{8,}\.arrow\.tmp")
OWN_JOURNALS = re.compile(r"\d{8,}")


@dataclass(slots=True)
class RunPaths:
    """The names of the contract's "Run directory" below ``root``."""

    root: Path

    @property
    def run(self) -> Path:
        """What the run is: written when it starts, and when its input grows."""
        return self.root / "run.json"

    @property
    def inputs(self) -> Path:
        """The pre-scan of the input."""
        return self.root / "inputs.json"

    @property
    def sessions(self) -> Path:
        """One line a start and one an end."""
        return self.root / "sessions.jsonl"

    @property
    def results(self) -> Path:
        """Committed records, a part a shard."""
        return self.root / "results"

    @property
    def errors(self) -> Path:
        """Quarantined rows, a part a shard that has any."""
        return self.root / "errors"

    @property
    def journal(self) -> Path:
        """Finished rows of open shards."""
        return self.root / "journal"

    @property
    def commits(self) -> Path:
        """Which shards are done."""
        return self.root / "commits.jsonl"

    @property
    def stats(self) -> Path:
        """Statistics, one row a group."""
        return self.root / "stats.arrow"

    @property
    def metrics(self) -> Path:
        """One line an interval."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What the last line of the run said."""
        return self.root / "summary.json"

    def results_part(self, shard: int) -> Path:
        """The committed results of ``shard``."""
        return self.results / part_name(shard)

    def errors_part(self, shard: int) -> Path:
        """The quarantined rows of ``shard``; missing when there are none."""
        return self.errors / part_name(shard)

    def journal_of(self, shard: int) -> Path:
        """The finished rows of ``shard`` while it is open."""
        return self.journal / f"{shard:08d}"


def part_name(shard: int) -> str:
    """The file name of a shard's part, in ``results`` and in ``errors``."""
    return f"part-{shard:08d}.arrow"

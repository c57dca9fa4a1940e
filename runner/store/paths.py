"""Where things lie in a run directory, and which names there are ours. Knows names only; reads and writes nothing."""

import re
from dataclasses import dataclass
from pathlib import Path

OWN_FILES = ("inputs.json", "stats.arrow", "metrics.jsonl", "summary.json", "report.html", "sessions.jsonl")
OWN_FOLDERS = ("results", "errors", "journal")
_PART = r"part-(\d{8,})(?:\.g([2-9]|[1-9]\d+))?\.arrow"
OWN_PARTS = re.compile(rf"{_PART}(?:\.orphan(?:\.\d+)?)?|\.{_PART}\.tmp")
OWN_POLICIES = re.compile(r"\d+-[0-9a-f]{12}|\.new|events\.jsonl(?:\.damaged)?|\.events\.jsonl(?:\.damaged)?\.tmp")
OWN_JOURNALS = re.compile(r"\d{8,}|\.\d{8,}\.tmp")


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

    @property
    def report(self) -> Path:
        """The run as a page to look at."""
        return self.root / "report.html"

    @property
    def doomed(self) -> Path:
        """There while the run that lies here is still to be removed, as ``--overwrite`` asked."""
        return self.root / ".overwrite"

    @property
    def policies(self) -> Path:
        """The policies that rollouts were sampled from, a folder a version."""
        return self.root / "policies"

    @property
    def policy_events(self) -> Path:
        """One line a policy that was taken or refused."""
        return self.policies / "events.jsonl"

    def results_part(self, shard: int, generation: int) -> Path:
        """The results of ``shard`` that were committed as this generation."""
        return self.results / part_name(shard, generation)

    def errors_part(self, shard: int, generation: int) -> Path:
        """The quarantined rows of ``shard``, likewise; missing when there are none."""
        return self.errors / part_name(shard, generation)

    def journal_of(self, shard: int) -> Path:
        """The finished rows of ``shard`` while it is open."""
        return self.journal / f"{shard:08d}"


def part_name(shard: int, generation: int) -> str:
    """The file name of a shard's part, in ``results`` and in ``errors``. No two generations share one: nothing is overwritten."""
    return f"part-{shard:08d}.arrow" if generation == 1 else f"part-{shard:08d}.g{generation}.arrow"


def part_of(name: str) -> tuple[int, int] | None:
    """(shard, generation) of a part's file name; None for any other name, also that of a part set aside."""
    found = re.fullmatch(_PART, name)
    return None if found is None else (int(found[1]), int(found[2] or 1))

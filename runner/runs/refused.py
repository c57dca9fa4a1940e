"""How many policies of a run were refused, by the lines that were written of each. Knows no network, and no reasons."""

from ..files.checked_lines import read_lines
from ..store.paths import RunPaths

REFUSED = "refused"


def refused_policies(paths: RunPaths) -> int:
    """Counts the trainer's steps, each once however often it was tried; 0 where no policy was watched for."""
    return len({(line["version"], line["source"]) for line in read_lines(paths.policy_events) if line["event"] == REFUSED})

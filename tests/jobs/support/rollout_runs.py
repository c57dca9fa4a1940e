"""Makes rollout runs of the real command on the tiny model: groups of four over five rows, with two checks for all of them."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from .bench import Bench, Done, Record

SAMPLES = 4
REWARDS = """
def vowels(completions, **kwargs):
    return [float(sum(map(text.count, "aeiou"))) for text in completions]

def long_enough(completions, completion_ids, **kwargs):
    return [1.0 if len(ids) > 3 else None for ids in completion_ids]
"""


def roll(bench: Bench, *options: str, rows: list[Record] | None = None, **sections: Any) -> Done:
    """Runs ``mlx-bulk run`` on a rollout job with ``sections``."""
    sampling = {"n": SAMPLES, "max_tokens": 6, "temperature": 1.0} | sections.pop("sampling", {})
    return bench.run(*options, rows=rows, **{"job": "rollout", "sampling": sampling} | sections)


def rewards_file(bench: Bench, source: str = REWARDS) -> str:
    """Writes reward functions; the path to name them by."""
    path = bench.root / "rewards.py"
    path.write_text(source)
    return str(path)


def groups(records: Iterable[Record]) -> dict[tuple[int, int], list[Record]]:
    """Returns the records by round and row. Raises AssertionError where a group's are not together in the order of samples."""
    found: dict[tuple[int, int], list[Record]] = {}
    for place, those in groupby(records, key=lambda record: (record["round"], record["row"])):
        assert place not in found
        found[place] = list(those)
        assert [record["sample"] for record in found[place]] == list(range(len(found[place])))
        assert len({(record["policy_version"], record["policy_sha"], record["group_id"]) for record in found[place]}) == 1
    return found

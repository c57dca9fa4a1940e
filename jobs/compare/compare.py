"""Compares two run directories: settings, statistics and documents (``mlx-bulk compare``). text.py shows the result.

Takes no lock and changes nothing. Runs may be at work: what they have committed is compared.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.score import ScoreConfig
from ...runner.core.errors import RunDirError
from ...runner.core.shard_layout import total_rows
from ...runner.runs.drift import COLUMN
from ...runner.runs.failures import committed_drops
from ...runner.runs.run_files import notes_on, stored_run, stored_statistics
from ...runner.store.commit_log import read_commits
from ...runner.store.paths import RunPaths
from ..statistics import completion_stats, rollout_stats, score_stats
from .paired_records import PairedRecords, pair_records

_STEERS = ("output.", "batch.memory", "batch.stall_seconds", "batch.prefix_cache", "on_error", "cluster")
_REFERENCE_PATH = "score.reference.path"


_WITHOUT_PAIRS = ("embed", "classify")  # kinds whose documents have no figure to hold against each other


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the runs. kind: "generate", or what a score job scores. done: rows committed; of: rows of the input.

    errors: rows in quarantine; dropped: groups left out on purpose, which are no errors.
    """

    path: Path
    kind: str
    complete: bool
    done: int
    of: int
    records: int
    errors: int
    dropped: int


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs side by side.

    notes: on the comparison itself. settings: key -> the values of A and B where they differ, None
    for a key that a run does not have. statistics: name -> values, of the row over all, none of them nested. paired: None for
    runs of unlike kinds.
    """

    a: ComparedRun
    b: ComparedRun
    notes: list[str]
    settings: dict[str, tuple[Any, Any]]
    statistics: dict[str, tuple[Any, Any]]
    paired: PairedRecords | None


def compare_runs(a: Path, b: Path, top: int) -> RunComparison:
    """Compares the run directories ``a`` and ``b``; ``top``: how many of the most different documents to name.

    Raises RunDirError for a folder that is no run, or whose finished parts are missing or damaged.
    """
    stored = [stored_run(path) for path in (a, b)]
    for path, run in zip((a, b), stored, strict=True):
        if run["config"]["job"] == "eval":
            raise RunDirError(
                f"{path}: is an evaluation, whose records mlx-bulk compare does not read; mlx-bulk status {path} shows its figures"
            )
    sides = [_compared_run(path, run) for path, run in zip((a, b), stored, strict=True)]
    alike = _family(sides[0].kind) == _family(sides[1].kind) and sides[0].kind not in _WITHOUT_PAIRS
    by_key = all(run["config"]["data"]["key"] is not None for run in stored)
    statistics = [_statistics(side, run) for side, run in zip(sides, stored, strict=True)]
    return RunComparison(
        sides[0],
        sides[1],
        [*notes_on(a), *notes_on(b), *_notes(sides, stored, alike, by_key)],
        _differing(*(_settings(run) for run in stored)),
        {name: (statistics[0].get(name), statistics[1].get(name)) for name in dict.fromkeys([*statistics[0], *statistics[1]])},
        pair_records(a, b, sides[0].kind, by_key, top) if alike else None,
    )


def _compared_run(path: Path, run: dict[str, Any]) -> ComparedRun:
    log = read_commits(RunPaths(path))
    parts, of = log.commits.values(), total_rows(run)
    dropped = committed_drops(RunPaths(path)) if run["config"]["job"] == "rollout" else 0
    return ComparedRun(
        path,
        ScoreConfig.model_validate(run["config"]).score.kind if run["config"]["job"] == "score" else str(run["config"]["job"]),
        log.is_complete(of),
        sum(part.rows for part in parts),
        of,
        sum(part.records for part in parts),
        sum(part.errors for part in parts) - dropped,
        dropped,
    )


def _family(kind: str) -> str:
    """Returns the family of a kind. Records of one family can be compared."""
    return kind if kind in ("generate", "rollout", "choices", *_WITHOUT_PAIRS) else "text"


# ----------------------------------------------------------------------------------------------------------- what differs


def _settings(run: dict[str, Any]) -> dict[str, Any]:
    """Returns the run's settings and fingerprints by dotted key. A fingerprint of a setting's files has "(contents)" behind the key.

    The limit is that of the rows the run covers now; an extended run has a larger one than at its start.
    """
    settings = _flat(run["config"]) | {"data.limit": run["inputs"]["limit"]}
    prints = {key: value for key, value in run["identity"].items() if not key.startswith(COLUMN) and settings.get(key) != value}
    return {
        **{key: value for key, value in settings.items() if not key.startswith(_STEERS)},
        **{
            f"{key} (contents)" if key in settings or key.startswith(("model.", "score.reference.")) else key: prints[key] for key in prints
        },
    }


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return found


def _differing(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the settings that differ. Of a reference that only one run has, it returns the path alone."""
    found = {key: (a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)}
    if (a.get(_REFERENCE_PATH) is None) == (b.get(_REFERENCE_PATH) is None):
        return found
    others = {key: values for key, values in found.items() if not key.startswith("score.reference")}
    return others | {"score.reference": (a.get(_REFERENCE_PATH), b.get(_REFERENCE_PATH))}


def _notes(sides: list[ComparedRun], stored: list[dict[str, Any]], alike: bool, by_key: bool) -> list[str]:
    notes: list[str] = []
    for name, side in zip("AB", sides, strict=True):
        if not side.complete:
            notes.append(f"{name} is not complete: {side.done:,} of {side.of:,} rows are committed; what both have is compared")
    contents = [[(source["sha256"], source["bytes"]) for source in run["inputs"]["sources"]] for run in stored]
    if contents[0] != contents[1]:
        how = "keys are taken to name the same document" if by_key else "rows are taken to be the same document by their position"
        notes.append("the inputs' contents differ" + (f": {how}" if alike else ""))
    if sides[0].kind == sides[1].kind and not alike:
        notes.append(f"both are runs of {sides[0].kind}: settings and statistics are compared, and no documents")
    elif not alike:
        notes.append(f"A is a run of {sides[0].kind}, B of {sides[1].kind}: their documents cannot be held against each other")
    elif sides[0].kind != sides[1].kind:
        notes.append(f"A scores {sides[0].kind}, B {sides[1].kind}")
    prefixes = [run["config"].get("score", {}).get("prefix") for run in stored]
    if alike and prefixes[0] != prefixes[1]:
        notes.append(
            f"the runs may score different tokens (score.prefix: {prefixes[0]}, {prefixes[1]}); those that both score are compared"
        )
    return notes


# ------------------------------------------------------------------------------------------------------------ statistics


def _statistics(side: ComparedRun, run: dict[str, Any]) -> dict[str, Any]:
    """Returns the statistics over all records: the stored ones of a complete run, else computed ones."""
    table = stored_statistics(side.path) if side.complete else None
    row = (_computed(side, run) if table is None else table).slice(0, 1).to_pylist()[0]
    return _flat_statistics({name: value for name, value in row.items() if name not in ("of", "group")})


def _flat_statistics(row: dict[str, Any]) -> dict[str, Any]:
    """A statistic a name. What rollouts nest stands by its function: ``rewards.F.mean``, ``rewards.F.pass@4``,
    ``rewards.F.errors.timeout``.
    """
    nested: dict[str, dict[str, Any]] = {}
    for function, figures in (row.get("rewards") or {}).items():
        nested[function] = dict(figures or {})
    for function, figures in (row.get("pass_at") or {}).items():
        nested.setdefault(function, {}).update({f"pass@{k}": share for k, share in (figures or {}).items()})
    for function, figures in (row.get("reward_errors") or {}).items():
        counts = {f"errors.{kind}": failed and failed["count"] for kind, failed in (figures or {}).items()}
        nested.setdefault(function, {}).update(counts)
    shares = {f"share of {each['label']}": each["share"] for each in row.get("labels") or []}
    flat = {name: value for name, value in row.items() if not isinstance(value, dict | list)} | shares
    return flat | _flat(nested, "rewards.")


def _computed(side: ComparedRun, run: dict[str, Any]) -> pa.Table:
    """Computes the statistics of the committed records; none of kinds whose figures need more than these (a classifier's labels)."""
    if side.kind in _WITHOUT_PAIRS:
        return pa.table({"of": ["all"]})
    if side.kind == "generate":
        return completion_stats.completion_statistics(side.path, None, None)
    if side.kind == "rollout":
        return rollout_stats.rollout_statistics(side.path)
    table = score_stats.score_statistics(side.path, ScoreConfig.model_validate(run["config"]), "", False, None)
    return table.drop_columns(["prefix", "bos_every_window", "context"])

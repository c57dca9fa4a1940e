"""Shows the statistics of a rollout run on the terminal: a line for each reward function, then one for each policy version."""

from typing import Any

import pyarrow as pa

from ...configs.visible import visible
from ..terminal.tables import align_columns, count_text, figure, shorten

MOST_VERSIONS = 12  # lines; those between the first and the newest are left out


def rollout_closing(statistics: pa.Table, watched: str | None = None) -> str:
    """Returns the statistics as lines; empty where no group is recorded. watched: the folder of policies, if there is one."""
    rows: list[dict[str, Any]] = statistics.to_pylist()
    whole = rows[0]
    if not whole["groups"]:
        return ""
    lines = [_heading(whole), *_dropped(whole)]
    if whole["reward"] is not None or "rewards" in whole:
        lines += align_columns(_functions(whole), 1)
    for name, kinds in (whole.get("reward_errors") or {}).items():
        lines += [_error(name, kind, error) for kind, error in kinds.items() if error is not None]
    for of, word in (("round", "round"), ("policy_version", "policy version")):
        parts = [row for row in rows if row["of"] == of]
        if len(parts) > 1:
            lines += align_columns(_parts(parts, word), 1)
    if watched is not None and {row["group"] for row in rows if row["of"] == "policy_version"} == {"0"}:
        lines.append(f"no policy was ever taken from {visible(watched)}: the model itself has sampled all of it")
    return "\n".join(lines)


def _heading(whole: dict[str, Any]) -> str:
    parts = [
        f"{count_text(whole['groups'], 'group')}, {_samples(whole)}",
        f"{_share(whole['truncated'], whole['samples'])} of {'those' if whole.get('drawn') else 'them'} truncated",
    ]
    if whole.get("stale"):
        parts.append(f"{_share(whole['stale'], whole['groups'])} of the groups stale")
    if "rewards" in whole:
        parts.append(f"{_share(whole['degenerate'], whole['groups'])} of the groups with nothing to compare")
    return "; ".join(parts)


def _samples(whole: dict[str, Any]) -> str:
    if not whole.get("drawn"):
        return count_text(whole["samples"], "sample")
    return f"{count_text(whole['drawn'], 'sample')}, the best of each group kept"


def _dropped(whole: dict[str, Any]) -> list[str]:
    """Says how many groups the figures leave out, where there are any."""
    if not whole.get("dropped"):
        return []
    verb = "is" if whole["dropped"] == 1 else "are"
    text = f"of the groups that were kept: {count_text(whole['dropped'], 'dropped group')} {verb} in none of these figures"
    return [text + ("" if whole.get("pass_at") is None or any(whole["pass_at"].values()) else ", so pass@k is not to be had")]


def _share(count: int, of: int) -> str:
    return f"{count:,} ({count / of:.1%})"


def _functions(whole: dict[str, Any]) -> list[list[str]]:
    """Returns a table with a line for the reward and one for each function; pass@k for functions that give only 0 and 1."""
    passes: dict[str, dict[str, float] | None] = whole.get("pass_at") or {}
    ks = next((list(shares) for shares in passes.values() if shares), [])
    if len(ks) > 1:
        ks = [ks[0], ks[-1]]
    unrated = whole["unrated"]
    table = [["", "mean", "std", *(f"pass@{k}" for k in ks), "null"]]
    table.append(
        ["reward", figure(whole["reward"], whole["reward_stderr"]), figure(whole["reward_std"]), *("" for _ in ks), figure(unrated)]
    )
    if whole.get("drawn"):
        drawn = [figure(whole["drawn_reward"]), figure(whole["drawn_reward_std"])]
        table.append(["reward of all samples", *drawn, *("" for _ in ks), ""])
    for name, rated in (whole.get("rewards") or {}).items():
        shares = passes.get(name) or {}
        missing = figure(whole["samples"] - rated["count"])
        table.append([name, figure(rated["mean"]), figure(rated["std"]), *(figure(shares[k]) if shares else "" for k in ks), missing])
    return table


def _error(name: str, kind: str, error: dict[str, Any]) -> str:
    return f"no reward: {name}: {error['count']:,} × {kind}: {shorten(visible(error['first']), 120)}"


def _parts(parts: list[dict[str, Any]], word: str) -> list[list[str]]:
    skips = len(parts) > MOST_VERSIONS
    shown = [parts[0], *parts[1 - MOST_VERSIONS :]] if skips else parts
    table = [[word, "groups", "reward", "std", "nothing to compare", "truncated"]]
    for part in shown:
        counts = [_share(part["degenerate"], part["groups"]), _share(part["truncated"], part["samples"])]
        reward = figure(part["reward"], part["reward_stderr"])
        table.append([str(part["group"]), figure(part["groups"]), reward, figure(part["reward_std"]), *counts])
    if skips:
        table.insert(2, ["…", *[""] * (len(table[0]) - 1)])
    return table

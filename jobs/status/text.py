"""The status of a run as text for a terminal, and as JSON. Computes nothing but what it draws."""

import json
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...configs.visible import visible
from ...runner.core.errors import DROP
from ...runner.runs.failures import ErrorKind
from ...runner.runs.history import TOKENS
from ...runner.runs.status import Status
from ...runner.runs.throughput import duration
from ..statistics import rollout_table, score_table
from ..terminal.tables import count_text, fold, shorten, sparkline

_LABEL = 10
_SPARKS = 40
_KINDS = 5
_OLD_SECONDS = 90  # three intervals of metrics
_MEANING = {
    "running": "running",
    "starting": "starting (the input is read, then the model loaded)",
    "complete": "complete",
    "stopped": "stopped",
    "failed": "ended by an error",
    "killed": "killed: the process ended without a word; what was finished is safe",
    "not begun": "not begun: no start got as far as the first row",
}


def status_as_text(found: Status, width: int) -> str:
    """The status as lines of at most ``width`` columns, but for the command, which is to be copied."""
    lines: list[str] = []
    for label, text in _lines(found):
        clean = visible(" ".join(text.split()))
        pieces = fold(clean, max(30, width - _LABEL)) if label != "continue" else [clean]
        lines += [f"{head:<{_LABEL}}{piece}" for head, piece in zip([label, *[""] * len(pieces)], pieces, strict=False)]
    if came_out := _came_out(found, max(80, width)):
        lines += ["", came_out]
    return "\n".join(lines)


def _came_out(found: Status, width: int) -> str:
    """The statistics of a complete run, as they stood at its end."""
    if found.statistics is None or found.config is None:
        return ""
    match found.config["job"]:
        case "score":
            return score_table.closing_within(found.statistics, width)
        case "rollout":
            return rollout_table.rollout_closing(found.statistics)
        case _:
            return ""


def status_as_json(found: Status) -> str:
    """The status as one JSON object; times are UTC, what is not known is null."""
    return json.dumps(status_values(found), indent=2, ensure_ascii=False)


def status_values(found: Status) -> dict[str, Any]:
    """What ``status_as_json`` writes."""
    last = found.last
    return {
        "run": str(found.run),
        "state": found.state,
        "process": None if found.holder is None else {"pid": found.holder.pid, "host": found.holder.host, "since": found.holder.since},
        "job": None if found.config is None else found.config["job"],
        "rows": found.rows,
        "of": found.of,
        "rows_committed": found.committed,
        "records": found.records,
        "errors": found.errors - found.dropped,
        "dropped": found.dropped,
        "errors_by_class": [
            {"stage": kind.stage, "error": kind.error, "count": kind.count, "row": kind.row, "key": kind.key, "message": kind.message}
            for kind in found.kinds
        ],
        "policies_refused": found.refused_policies,
        "starts": len(found.history.sessions),
        "started": None if not found.history.sessions else found.history.sessions[0].started.isoformat(),
        "alive": None if found.alive is None else found.alive.isoformat(),
        "ended": None if last is None or last.ended is None else {"how": last.how, "message": last.message, "time": last.ended.isoformat()},
        "seconds": found.history.seconds,
        **found.history.tokens,
        "tokens_per_second": found.history.tokens_per_second,
        "speed": [{"time": point.time.isoformat(), "tokens_per_second": point.tokens_per_second} for point in found.history.points],
        "seconds_left": found.seconds_left,
        "statistics": None if not found.statistics else found.statistics.slice(0, 1).to_pylist()[0],
        "report": str(report) if (report := found.run / "report.html").is_file() else None,
        "command": _command(found),
        "notes": found.notes,
    }


def _lines(found: Status) -> Iterator[tuple[str, str]]:
    yield "run", f"{found.run}" + (f" ({found.config['job']} with {found.config['model']['path']})" if found.config else "")
    yield "state", _state(found)
    yield "rows", _rows(found)
    yield from _errors(found)
    if found.refused_policies:
        yield "policies", f"{found.refused_policies:,} refused; policies/events.jsonl says why"
    yield from _speed(found)
    if (left := found.seconds_left) is not None and found.of is not None and found.rows < found.of:
        at = f", until {_clock(datetime.now(UTC).timestamp() + left)}" if found.state == "running" else " at the speed it had"
        about = f"about {duration(60 * round(left / 60))}" if left >= 60 else "less than a minute"
        yield "left", f"{found.of - found.rows:,} rows, {about}{at}"
    if (found.run / "report.html").is_file():
        yield "report", str(found.run / "report.html")
    for number, note in enumerate(found.notes):
        yield "" if number else "note", note
    if (command := _command(found)) is not None:
        yield "continue", command
        if found.config is not None and (found.last is None or not found.last.words):
            yield "", "CONFIG is the file that the run was started with; say --set and --model again"


def _state(found: Status) -> str:
    last, text = found.last, _MEANING[found.state]
    match found.state:
        case "running" | "starting":
            since = "" if found.holder is None or not found.holder.since else f" (since {_clock_of(found.holder.since)})"
            who = "" if found.holder is None or found.holder.pid is None else f", process {found.holder.pid} on {found.holder.host}"
            return f"{text}{who}{since}"
        case "failed" if last is not None and last.ended is not None:
            return f"{text} {_clock(last.ended.timestamp())}: {last.how}: {last.message}"
        case "complete" | "stopped" if last is not None and last.ended is not None:
            return f"{text} {_clock(last.ended.timestamp())}"
        case "killed" if found.alive is not None:
            return f"{text} (last sign of life {_clock(found.alive.timestamp())})"
        case _:
            return text


def _rows(found: Status) -> str:
    open_rows = max(0, found.rows - found.committed)
    open_text = f"; {open_rows:,} in the journal, not in results/ yet" if open_rows else ""
    return f"{progress_of(found)}{open_text}" + ("; the input has none" if found.of == 0 else "")


def progress_of(found: Status) -> str:
    """Rows, of how many, and the share."""
    return f"{found.rows:,} of {found.of:,} ({_percent(found.rows / found.of)})" if found.of else f"{found.rows:,}"


def _percent(share: float) -> str:
    """100 % is said of what is whole, and of nothing else."""
    return "100 %" if share == 1 else f"{min(99.9, 100 * share):.1f} %"


def _errors(found: Status) -> Iterator[tuple[str, str]]:
    quarantined = [kind for kind in found.kinds if kind.stage != DROP]
    errors = found.errors - found.dropped
    yield "errors", f"{errors:,} quarantined" if errors or quarantined else "none"
    for kind in quarantined[:_KINDS]:
        yield "", f"{kind.count:,} {kind.stage} ({kind.error}), first {_place(kind)}: {kind.message}"
    if others := sum(kind.count for kind in quarantined[_KINDS:]):
        yield "", f"{others:,} of {len(quarantined) - _KINDS:,} other kinds"
    if found.dropped:
        kinds = ", ".join(f"{kind.count:,} {kind.error}" for kind in found.kinds if kind.stage == DROP)
        yield "dropped", f"{count_text(found.dropped, 'group')}: {kinds}; by the config, so they are no errors"


def _place(kind: ErrorKind) -> str:
    return f"row {kind.row:,}" + (f" (key {shorten(visible(kind.key), 24)})" if kind.key not in (None, str(kind.row)) else "")


def _speed(found: Status) -> Iterator[tuple[str, str]]:
    past = found.history
    if not (mean := past.tokens_per_second):
        return
    now = past.points[-1]
    age = (datetime.now(UTC) - now.time).total_seconds()
    latest = f"{now.tokens_per_second:,.0f} tok/s now, " if found.state == "running" and age < _OLD_SECONDS else ""
    rates = [point.tokens_per_second for point in past.points]
    bars = f"{sparkline(rates, _SPARKS)} " if len(rates) > 1 else ""
    yield "speed", f"{bars}{latest}{mean:,.0f} tok/s on average"
    if found.state == "running" and age >= _OLD_SECONDS:
        yield "", f"no figures for {duration(age)}: it hangs, sleeps, or its disk does not answer"
    counts = [f"{past.tokens[name]:,} {name.removesuffix('_tokens')}" for name in TOKENS if past.tokens[name]]
    starts = f", {len(past.sessions):,} starts" if len(past.sessions) > 1 else ""
    yield "tokens", f"{' + '.join(counts) or 'none'}, in {duration(past.seconds)} with the model loaded{starts}"


def _command(found: Status) -> str | None:
    """What continues the run: the command of its last start, or where that is not known what can be said of it."""
    if found.state in ("running", "starting", "complete"):
        return None
    if found.config is None or found.cwd is None:
        return "the command that started it"
    there = "" if Path.cwd() == Path(found.cwd) else f"cd {shlex.quote(found.cwd)} && "
    if found.last is not None and found.last.words:
        return f"{there}mlx-bulk {shlex.join(_continuing(found.last.words))}"
    return f"{there}mlx-bulk run CONFIG --output {shlex.quote(found.config['output']['path'])}"


def _continuing(words: Sequence[str]) -> Iterator[str]:
    """The words of a start without what has had its effect: the run begun anew, its errors to be retried, what was vouched for."""
    left = iter(words)
    for word in left:
        if word == "--adopt":
            next(left, None)
        elif word not in ("--overwrite", "--retry-errors") and not word.startswith("--adopt="):
            yield word


def _clock_of(time: str) -> str:
    try:
        return _clock(datetime.fromisoformat(time).timestamp())
    except ValueError:
        return time


def _clock(timestamp: float) -> str:
    """Local time; with the day where it is not today."""
    then, today = datetime.fromtimestamp(timestamp), datetime.now()
    return f"{then:%H:%M}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"

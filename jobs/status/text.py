"""Formats the status of a run as text for a terminal, and as JSON."""

import json
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...configs.visible import visible
from ...runner.core.errors import DROP
from ...runner.core.units import size_as_text
from ...runner.runs.failures import ErrorKind
from ...runner.runs.history import token_counts
from ...runner.runs.status import Status
from ...runner.runs.throughput import duration
from ...runner.runs.worker_parts import WorkerPart
from ..evals.figures import figures_closing
from ..statistics import rollout_table, score_table
from ..statistics.kv_table import kv_closing
from ..terminal.tables import align_columns, count_text, fold, shorten, sparkline

_LABEL = 10
_SPARKS = 40
_KINDS = 5
_WORKERS, _WORKER_WIDTH = 20, 40
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


def status_as_text(status: Status, width: int) -> str:
    """Returns the status as lines of at most ``width`` columns; the command keeps its one line, so that it can be copied."""
    lines: list[str] = []
    for label, text in _lines(status):
        clean = visible(" ".join(text.split()))
        pieces = fold(clean, max(30, width - _LABEL)) if label != "continue" else [clean]
        lines += [f"{head:<{_LABEL}}{piece}" for head, piece in zip([label, *[""] * len(pieces)], pieces, strict=False)]
    if status.workers:
        lines += ["", *_workers(status.workers)]
    if statistics := _statistics(status, max(80, width)):
        lines += ["", statistics]
    return "\n".join(lines)


def _workers(parts: Sequence[WorkerPart]) -> list[str]:
    """Returns a table of the workers with the most rows, and a line on the others."""
    table = [["worker", "rows", "begun again", "rows/s", "memory", "last seen"]]
    for part in parts[:_WORKERS]:
        speed = "" if part.rows_per_second is None else f"{part.rows_per_second:,.3g}"
        memory = "" if part.peak_memory_bytes is None else size_as_text(part.peak_memory_bytes)
        name, seen = shorten(visible(part.worker), _WORKER_WIDTH), _clock(part.seen.timestamp())
        table.append([name, f"{part.rows:,}", f"{part.again:,}", speed, memory, seen])
    left = parts[_WORKERS:]
    more = [f"{count_text(len(left), 'other')}: {count_text(sum(part.rows for part in left), 'row')}"] if left else []
    return [*align_columns(table, 1), *more]


def _statistics(status: Status, width: int) -> str:
    """Returns the statistics of a complete run as at its end."""
    if status.statistics is None or status.config is None:
        return ""
    match status.config["job"]:
        case "score":
            return score_table.closing_within(status.statistics, width)
        case "eval":
            return figures_closing(status.statistics)
        case "rollout":
            return "\n".join(filter(None, (rollout_table.rollout_closing(status.statistics), kv_closing(status.statistics))))
        case _:
            return kv_closing(status.statistics)


def status_as_json(status: Status) -> str:
    """Returns the status as one JSON object; times are UTC, unknown values null."""
    return json.dumps(status_values(status), indent=2, ensure_ascii=False)


def status_values(status: Status) -> dict[str, Any]:
    """Returns the values that ``status_as_json`` writes."""
    last = status.last
    return {
        "run": str(status.run),
        "state": status.state,
        "process": None if status.holder is None else {"pid": status.holder.pid, "host": status.holder.host, "since": status.holder.since},
        "job": None if status.config is None else status.config["job"],
        "rows": status.rows,
        "of": status.of,
        "rows_committed": status.committed,
        "records": status.records,
        "errors": status.errors - status.dropped,
        "dropped": status.dropped,
        "errors_by_class": [
            {"stage": kind.stage, "error": kind.error, "count": kind.count, "row": kind.row, "key": kind.key, "message": kind.message}
            for kind in status.kinds
        ],
        "policies_refused": status.refused_policies,
        "starts": len(status.history.sessions),
        "started": None if not status.history.sessions else status.history.sessions[0].started.isoformat(),
        "alive": None if status.alive is None else status.alive.isoformat(),
        "ended": None if last is None or last.ended is None else {"how": last.how, "message": last.message, "time": last.ended.isoformat()},
        "seconds": status.history.seconds,
        **status.history.tokens,
        "tokens_per_second": status.history.tokens_per_second,
        "speed": [{"time": point.time.isoformat(), "tokens_per_second": point.tokens_per_second} for point in status.history.points],
        "seconds_left": status.seconds_left,
        "statistics": None if not status.statistics else status.statistics.slice(0, 1).to_pylist()[0],
        "report": str(report) if (report := status.run / "report.html").is_file() else None,
        "workers": [
            {
                "worker": part.worker,
                "rows": part.rows,
                "rows_per_second": part.rows_per_second,
                "rows_begun_again": part.again,
                "peak_memory_bytes": part.peak_memory_bytes,
                "last_seen": part.seen.isoformat(),
            }
            for part in status.workers
        ],
        "command": _command(status),
        "notes": status.notes,
    }


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    yield "run", f"{status.run}" + (f" ({status.config['job']} with {status.config['model']['path']})" if status.config else "")
    yield "state", _state(status)
    yield "rows", _rows(status)
    yield from _errors(status)
    if status.refused_policies:
        yield "policies", f"{status.refused_policies:,} refused; policies/events.jsonl says why"
    yield from _speed(status)
    if (left := status.seconds_left) is not None and status.of is not None and status.rows < status.of:
        at = f", until {_clock(datetime.now(UTC).timestamp() + left)}" if status.state == "running" else " at the speed it had"
        about = f"about {duration(60 * round(left / 60))}" if left >= 60 else "less than a minute"
        yield "left", f"{count_text(status.of - status.rows, 'row')}, {about}{at}"
    if (status.run / "report.html").is_file():
        yield "report", str(status.run / "report.html")
    for number, note in enumerate(status.notes):
        yield "" if number else "note", note
    if (command := _command(status)) is not None:
        yield "continue", command
        if status.config is not None and (status.last is None or not status.last.words):
            yield "", "CONFIG is the file that the run was started with; say --set and --model again"


def _state(status: Status) -> str:
    last, text = status.last, _MEANING[status.state]
    match status.state:
        case "running" | "starting":
            since = "" if status.holder is None or not status.holder.since else f" (since {_clock_of(status.holder.since)})"
            who = "" if status.holder is None or status.holder.pid is None else f", process {status.holder.pid} on {status.holder.host}"
            return f"{text}{who}{since}"
        case "failed" if last is not None and last.ended is not None:
            return f"{text} {_clock(last.ended.timestamp())}: {last.how}: {last.message}"
        case "complete" | "stopped" if last is not None and last.ended is not None:
            return f"{text} {_clock(last.ended.timestamp())}"
        case "killed" if status.alive is not None:
            return f"{text} (last sign of life {_clock(status.alive.timestamp())})"
        case _:
            return text


def _rows(status: Status) -> str:
    open_rows = max(0, status.rows - status.committed)
    open_text = f"; {open_rows:,} in the journal, not in results/ yet" if open_rows else ""
    return f"{progress_of(status)}{open_text}" + ("; the input has none" if status.of == 0 else "")


def progress_of(status: Status) -> str:
    """Returns rows, of how many, and the share, as text."""
    return f"{status.rows:,} of {status.of:,} ({_percent(status.rows / status.of)})" if status.of else f"{status.rows:,}"


def _percent(share: float) -> str:
    """Formats a share in percent; only a whole one is 100 %."""
    return "100 %" if share == 1 else f"{min(99.9, 100 * share):.1f} %"


def _errors(status: Status) -> Iterator[tuple[str, str]]:
    quarantined = [kind for kind in status.kinds if kind.stage != DROP]
    errors = status.errors - status.dropped
    yield "errors", f"{errors:,} quarantined" if errors or quarantined else "none"
    for kind in quarantined[:_KINDS]:
        yield "", f"{kind.count:,} {kind.stage} ({kind.error}), first {_place(kind)}: {kind.message}"
    if others := sum(kind.count for kind in quarantined[_KINDS:]):
        yield "", f"{others:,} of {len(quarantined) - _KINDS:,} other kinds"
    if status.dropped:
        kinds = ", ".join(f"{kind.count:,} {kind.error}" for kind in status.kinds if kind.stage == DROP)
        yield "dropped", f"{count_text(status.dropped, 'group')}: {kinds}; by the config, so they are no errors"


def _place(kind: ErrorKind) -> str:
    return f"row {kind.row:,}" + (f" (key {shorten(visible(kind.key), 24)})" if kind.key not in (None, str(kind.row)) else "")


def _speed(status: Status) -> Iterator[tuple[str, str]]:
    history = status.history
    if not (mean := history.tokens_per_second):
        return
    now = history.points[-1]
    age = (datetime.now(UTC) - now.time).total_seconds()
    latest = f"{now.tokens_per_second:,.0f} tok/s now, " if status.state == "running" and age < _OLD_SECONDS else ""
    rates = [point.tokens_per_second for point in history.points]
    bars = f"{sparkline(rates, _SPARKS)} " if len(rates) > 1 else ""
    yield "speed", f"{bars}{latest}{mean:,.0f} tok/s on average"
    if status.state == "running" and age >= _OLD_SECONDS:
        yield "", f"no figures for {duration(age)}: it hangs, sleeps, or its disk does not answer"
    counts = token_counts(history.tokens, status.config)
    starts = f", {len(history.sessions):,} starts" if len(history.sessions) > 1 else ""
    yield "tokens", f"{' + '.join(counts) or 'none'}, in {duration(history.seconds)} with the model loaded{starts}"


def _command(status: Status) -> str | None:
    """Returns the command that continues the run: that of its last start, or a pattern where that is unknown. None if nothing can."""
    if status.state in ("running", "starting", "complete"):
        return None
    if status.config is None or status.cwd is None:
        return "the command that started it"
    if (command := start_command(status)) is not None:
        return command
    command = "eval" if status.config["job"] == "eval" else "run"
    return f"{_change_folder(status.cwd)}mlx-bulk {command} CONFIG --output {shlex.quote(status.config['output']['path'])}"


def start_command(status: Status) -> str | None:
    """Returns the command of a run's last start, for a shell in this folder, without options that have had their effect.

    None where the run does not know it. The command of a sweep's cell is the sweep's.
    """
    if status.cwd is None or status.last is None or not status.last.words:
        return None
    return f"{_change_folder(status.cwd)}mlx-bulk {shlex.join(_without_start_options(status.last.words))}"


def _change_folder(folder: str) -> str:
    return "" if Path.cwd() == Path(folder) else f"cd {shlex.quote(folder)} && "


def _without_start_options(words: Sequence[str]) -> Iterator[str]:
    """Yields the words of a start without options that have had their effect: ``--overwrite``, ``--retry-errors``, ``--adopt``."""
    rest = iter(words)
    for word in rest:
        if word == "--adopt":
            next(rest, None)
        elif word not in ("--overwrite", "--retry-errors") and not word.startswith("--adopt="):
            yield word


def _clock_of(time: str) -> str:
    try:
        return _clock(datetime.fromisoformat(time).timestamp())
    except ValueError:
        return time


def _clock(timestamp: float) -> str:
    """Formats local time, with the date where it is not today."""
    then, today = datetime.fromtimestamp(timestamp), datetime.now()
    return f"{then:%H:%M}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"

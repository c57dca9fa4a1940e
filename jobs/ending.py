"""How a run ends, in words and in numbers: the last line on stderr, and what the process returns. Imports nothing heavy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runner.summary import Summary

QUARANTINED = 3  # exit code: complete, some rows are in errors/


def ending(summary: "Summary", stopped: bool) -> str:
    """All that is said at the end of a run: its statistics, why rows were quarantined, and the last line."""
    said = [summary.closing] if summary.closing else []
    return "\n".join([*said, *summary.reasons, last_line(summary, stopped)])


def last_line(summary: "Summary", stopped: bool) -> str:
    """What the run has come to: rows, tokens, speed, and where it lies."""
    errors = f", {summary.errors:,} quarantined in errors/" if summary.errors else ""
    if summary.of and not summary.worked:
        return f"complete already: {summary.rows:,} of {summary.of:,} rows{errors} -> {summary.output}"
    tokens = summary.prompt_tokens + summary.generated_tokens
    counted = f"{summary.prompt_tokens:,} prompt + {summary.generated_tokens:,} generated"
    if summary.job == "score":
        tokens, counted = summary.scored_tokens, f"{summary.scored_tokens:,} scored"
    rate = tokens / summary.seconds if summary.seconds else 0.0
    state = "stopped; the same command continues" if stopped else "complete"
    return (
        f"{state}: {summary.rows:,} of {summary.of:,} rows{errors}; "
        f"{counted} tokens in {summary.seconds:,.1f} s ({rate:,.0f} tok/s, {summary.padding_waste:.1%} padding) -> {summary.output}"
    )

"""Words a run's end: the statistics and the last line on stderr. Imports nothing heavy."""

from typing import TYPE_CHECKING

from .tables import count_text

if TYPE_CHECKING:
    from ...runner.runs.summary import Summary

_SHARED = 0.9  # share of prompt tokens computed: below it, the last line says how many
QUARANTINED = 3  # exit code: complete, some rows are in errors/


def continue_command(overwrite: bool) -> str:
    """Returns the command that continues a run; one that was started with ``--overwrite`` must drop it, as it removes the run."""
    return "the same command without --overwrite" if overwrite else "the same command"


def closing_text(summary: "Summary", command: str) -> str:
    """Returns the text at the end of a run: its statistics, why rows were quarantined, and the last line.

    ``command`` continues the run.
    """
    statistics = [summary.closing] if summary.closing else []
    return "\n".join([*statistics, *summary.reasons, last_line(summary, command)])


def last_line(summary: "Summary", command: str) -> str:
    """Returns one line on the run: rows, tokens, speed, and its folder; ``command`` continues a run that was stopped."""
    errors = f", {summary.errors:,} quarantined in errors/" if summary.errors else ""
    errors += f", {count_text(summary.dropped, 'group')} dropped" if summary.dropped else ""
    errors += f", {count_text(summary.refused, 'policy', 'policies')} refused" if summary.refused else ""
    if summary.of and not summary.worked:
        return f"complete already: {summary.rows:,} of {count_text(summary.of, 'row')}{errors} -> {summary.output}"
    tokens = summary.prompt_tokens + summary.generated_tokens
    shared = summary.prefilled_tokens <= _SHARED * summary.prompt_tokens
    computed = f" ({summary.prefilled_tokens:,} computed)" if shared and summary.prompt_tokens else ""
    work = f"{summary.prompt_tokens:,} prompt{computed} + {summary.generated_tokens:,} generated tokens"
    if summary.job == "score":
        tokens, work = summary.scored_tokens, f"{summary.scored_tokens:,} scored tokens"
    elif summary.job in ("embed", "classify"):
        work = f"{summary.prompt_tokens:,} tokens{computed}"
    rate = tokens / summary.seconds if summary.seconds else 0.0
    state = "complete" if summary.complete else f"stopped; {command} continues"
    return (
        f"{state}: {summary.rows:,} of {count_text(summary.of, 'row')}{errors}; "
        f"{work} in {summary.seconds:,.1f} s ({rate:,.0f} tok/s, {summary.padding_waste:.1%} padding) -> {summary.output}"
    )

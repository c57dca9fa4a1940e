"""Shows the statistics of a scoring job on the terminal, when a run ends.

It needs only the table of score_stats.py, whose columns decide what is shown. Values have their standard errors beside them, with
the ± aligned. Notes below say what the figures leave out. A table too wide for the terminal is split into blocks.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ..terminal.tables import figure, shorten, terminal_width, wrap_table

GROUPS = 20  # shown; stats.arrow has them all
NAME_WIDTH = 22  # at most, and no more than a fifth of a line
Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]

_FIRST_TOKENS = """\
* First tokens with nothing before them, or that begin in the prompt, are
  not scored: their bytes do not count, their words do."""


def score_closing(table: pa.Table) -> str:
    """Returns the statistics as aligned text: all records, up to 20 groups, the reference model's block, and notes."""
    return closing_within(table, terminal_width())


def closing_within(table: pa.Table, width: int) -> str:
    """Returns the same text in lines of at most ``width`` columns; ``width`` is 80 or more."""
    rows = table.slice(0, 1 + GROUPS).to_pylist()
    left = table.num_rows - len(rows)
    more = [f"… and {left:,} more {'group' if left == 1 else 'groups'} in stats.arrow"] if left else []
    names = ["", *(_name(row, min(NAME_WIDTH, width // 5)) for row in rows)]
    blocks = wrap_table(names, _cells(rows, main_columns(rows[0])), width)
    blocks[-1] += more
    if rows[0].get("kl_mean") is not None:
        against = wrap_table(names, _cells(rows, DIVERGENCE), width)
        against[-1] += more
        blocks += _titled("Against the reference model:", against)
        percentiles = wrap_table(["", ""], _cells(rows[:1], PERCENTILES), width + 2)
        blocks += _titled("KL(reference ‖ model) of a token in nats, over all:", [[line[2:] for line in lines] for lines in percentiles])
    blocks.append(notes(rows[0]))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _titled(title: str, blocks: list[list[str]]) -> list[list[str]]:
    return [[title, *blocks[0]], *blocks[1:]]


def _plain(name: str, heading: str) -> Column:
    return heading, lambda row: figure(row[name])


def _with_error(name: str, heading: str) -> Column:
    return heading, lambda row: figure(row[name], row[f"{name}_stderr"])


def _percent(name: str, heading: str) -> Column:
    """Returns the column of a share in percent, with its error where it has one."""
    return heading, lambda row: figure(_hundredfold(row[name]), _hundredfold(row.get(f"{name}_stderr")))


def _hundredfold(share: float | None) -> float | None:
    return None if share is None else 100 * share


GREEDY = _percent("greedy_share", "greedy, %")
CHOICES = [
    _plain("rows", "rows"),
    _plain("labelled", "labelled"),
    *(_with_error(name, name) for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens")),
]
DIVERGENCE = [
    _with_error("kl_mean", "mean KL, nats"),
    _with_error("perplexity_ratio", "perplexity ratio"),
    _plain("reference_perplexity", "reference ppl"),
    _percent("agreement", "same top token, %"),
    _percent("delta_p_rms", "RMS Δp, %"),
]
PERCENTILES = [
    _plain("kl_min", "min"),
    *(_plain(f"kl_p{p}".replace(".", "_"), f"{p} %") for p in ("1", "5", "10", "50", "90", "95", "99", "99.9")),
    _plain("kl_max", "max"),
]


def main_columns(row: Row) -> list[Column]:
    """Returns the columns for a row's kind of scoring. A * marks those that leave out the bytes of first tokens."""
    if "acc" in row:
        return CHOICES
    mark = "" if row["first_token_scored"] else "*"
    counts = [_plain("documents", "documents"), _plain("scored_tokens", "tokens")]
    figures = [
        _with_error("token_perplexity", "token ppl"),
        _with_error("mean_nll", "nats/token"),
        _plain("bits_per_byte", f"bits/byte{mark}"),
    ]
    if "greedy" in row:
        return [*counts, GREEDY, *figures]
    return [*counts, *figures, _plain("byte_perplexity", f"byte ppl{mark}"), _plain("word_perplexity", "word ppl")]


def _name(row: Row, width: int) -> str:
    if row["of"] == "all":
        return "all"
    return "  (no value)" if row["group"] is None else f"  {shorten(row['group'], width)}"


def _cells(rows: list[Row], columns: list[Column]) -> list[list[str]]:
    """Returns each column as a list: its heading, then a cell for each row."""
    return [[heading, *map(of, rows)] for heading, of in columns]


def notes(row: Row) -> list[str]:
    """Returns notes on the meaning of ± and on records outside the figures."""
    noun = "row" if "acc" in row else "document"
    notes = [_error_note(row)]
    if empty := row.get("nothing_to_score", 0):
        notes.append(f"{_some(empty, noun)} {'has' if empty == 1 else 'have'} nothing to score.")
    if truncated := row["truncated"]:
        notes.append(f"{_some(truncated, noun)} {'was' if truncated == 1 else 'were'} cut to the context.")
    if impossible := row["minus_infinity"]:
        so = "" if "acc" in row else ", so perplexity is infinite"
        notes.append(f"{_some(impossible, 'token')} {'has' if impossible == 1 else 'have'} no chance at all (logprob -inf){so}.")
    if row.get("first_token_scored") is False and row["scored_tokens"]:
        notes.append(_FIRST_TOKENS)
    if unlabelled := row.get("rows", 0) - row.get("labelled", 0):
        notes.append(f"{_some(unlabelled, 'row')} {'has' if unlabelled == 1 else 'have'} no label.")
    return [note for note in notes if note]


def _error_note(row: Row) -> str:
    if "acc" in row:
        return "± is the standard error." if row["acc_stderr"] is not None else ""
    if row["mean_nll_stderr"] is not None:
        return "± is the standard error, clustered by document."
    if row["mean_nll_stderr_tokenwise"] is None or row["documents"] - row["nothing_to_score"] > 1:
        return ""
    alone = f"One document alone has no error clustered by document. Token-wise:\n{_tokenwise(row, 'mean_nll')} nats/token"
    if row.get("kl_mean_stderr_tokenwise") is None:
        return f"{alone}."
    return f"{alone}, mean KL {_tokenwise(row, 'kl_mean')}, perplexity ratio {_tokenwise(row, 'perplexity_ratio')}."


def _tokenwise(row: Row, name: str) -> str:
    return figure(row[name], row[f"{name}_stderr_tokenwise"])


def _some(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

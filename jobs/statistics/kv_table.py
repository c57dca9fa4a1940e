"""Words what quantized keys and values changed in a run, from the first row of its statistics."""

from typing import Any

import pyarrow as pa

from ..terminal.tables import count_text


def kv_closing(statistics: pa.Table) -> str:
    """Returns the measured difference as a line; empty for a run that quantized nothing."""
    if "kv_bits" not in statistics.column_names or not statistics.num_rows:
        return ""
    row: dict[str, Any] = statistics.slice(0, 1).to_pylist()[0]
    held = f"keys and values in {row['kv_bits']} bits"
    if row["kv_reason"] is not None:
        return f"{held}: what they change was not measured ({row['kv_reason']}); mlx-bulk verify --rescore compares all records"
    sizes = [f"{name} {'infinite' if row[key] is None else f'{row[key]:.1e}'}" for name, key in _SIZES]
    what = f"{count_text(row['kv_tokens'], 'token')} of {count_text(row['kv_completions'], 'completion')}"
    greedy = ""
    if row["kv_greedy_changed"] is not None:
        greedy = f"; there {row['kv_greedy_changed'] / row['kv_greedy_tokens']:.1%} of the greedy choices are others"
    return f"{held}: the logprobs of {what}, scored again in full precision, differ by {', '.join(sizes)}{greedy}"


def kv_words(statistics: pa.Table) -> str:
    """Returns the measured difference as a plain sentence for a page; empty for a run that quantized nothing."""
    if "kv_bits" not in statistics.column_names or not statistics.num_rows:
        return ""
    row: dict[str, Any] = statistics.slice(0, 1).to_pylist()[0]
    held = f"Keys and values were kept in {row['kv_bits']} bits"
    if row["kv_reason"] is not None:
        return f"{held}: what that changed was not measured ({row['kv_reason']})."
    mean, largest = ("infinite" if row[key] is None else f"{row[key]:.1e}" for key in ("kv_abs_mean", "kv_largest"))
    tokens = count_text(row["kv_tokens"], "token")
    return f"{held}: logprobs differ by {mean} on average, {largest} at most, over {tokens} scored again in full precision."


_SIZES = (("mean |Δ|", "kv_abs_mean"), ("max |Δ|", "kv_largest"), ("mean Δ", "kv_mean"), ("std", "kv_std"))

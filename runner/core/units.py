"""Formats sizes and counts for messages: a few digits and a unit."""


def size_as_text(count: float) -> str:
    """Formats bytes with a unit: "11 MB", "1.3 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if count >= 9.95 or unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB" if count < 99.5 else f"{count:,.0f} TB"


def short_count(count: int) -> str:
    """Formats a count with three digits: "999", "12.3k", "1.23M"."""
    value, units = float(count), ["", "k", "M", "G"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    digits = 0 if not count >= 1000 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}{units[0]}"

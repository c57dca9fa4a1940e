"""Compares the output that a page shows with the output that a command printed.

Words and whole numbers are compared as they are, decimals within a thousandth: another BLAS gives other last digits.
"""

import re

HOME = "/home/you/jobs"  # the folder in which a page's commands are given

_NUMBER = r"\d[\d,.]*"
_MAY_DIFFER: list[tuple[str, str]] = [  # what a page shows, and what may stand there
    (r"…", r".*?"),
    (r"\d{4}-\d\d-\d\d", r"\d{4}-\d\d-\d\d"),
    (r"\b\d\d:\d\d(?::\d\d)?\b", r"\d\d:\d\d(?::\d\d)?"),
    (rf"{_NUMBER} (?:ms|s|min|h)\b", rf"{_NUMBER} (?:ms|s|min|h)"),
    (rf"{_NUMBER}(?= (?:tok/s|rows/s|bytes|kB|MB|GB)\b)", _NUMBER),
    (r"\b[0-9a-f]{16,64}\b", r"[0-9a-f]{16,64}"),
    (r"(?<=speed)\s+(?:[▁▂▃▄▅▆▇█]+ )?", r"\s+(?:[▁▂▃▄▅▆▇█]+ )?"),  # a sparkline needs some lines of metrics
    (r"BLAS: .*", r"BLAS: .*"),
    (r"(?<=float32 on )cpu", r"[^,]+"),
    (r"batches of up to \d+ rows", r"batches of .*"),
    (r"\d+\.\d% padding", r"\d+\.\d% padding"),
    # A difference of last digits: there is none where tiles (AMX) compute. Its width moves the column.
    (r" +-?\d\.\d+e-0[6-9] ± \d\.\d+e-0[6-9]", r" +(?:0 ± 0|-?\d\.\d+e-\d\d ± \d\.\d+e-\d\d)"),
    (r"(?<=same completion) +", r" +"),
]
# Tests draw no reports at the end of runs, and say each time that they would; when one is drawn is tests/jobs/report/test_report_file.py's.
# The first command of a new machine compiles kernels; which command that is, nobody knows.
_ONCE = re.compile(r"^mlx-bulk: (?:report: |compiling kernels ).*\n?", re.MULTILINE)
_DECIMAL = re.compile(r"-?\d[\d,]*\.\d+(?:e-?\d+)?")
_PARTS = re.compile("|".join([*(f"(?P<p{n}>{shown})" for n, (shown, _) in enumerate(_MAY_DIFFER)), f"(?P<decimal>{_DECIMAL.pattern})"]))


def difference(shown: str, printed: str, folder: str) -> str | None:
    """None where ``printed`` in ``folder`` is what the page shows, else both texts. A line `…` stands for any number of lines."""
    shown, printed = (_ONCE.sub("", text).rstrip() for text in (shown, printed.replace(folder, HOME)))
    printed = "\n".join(line.rstrip() for line in printed.splitlines())
    pattern, decimals = _pattern(shown)
    found = re.fullmatch(pattern, printed)
    if found and all(_near(one, other) for one, other in zip(decimals, found.groups(), strict=True)):
        return None
    return f"the page shows\n{shown}\n\nand this was printed\n{printed}"


def _pattern(shown: str) -> tuple[str, list[str]]:
    lines: list[str] = []
    decimals: list[str] = []
    for line in shown.splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        pattern, at = "", 0
        for part in _PARTS.finditer(line.rstrip()):
            pattern += re.escape(line[at : part.start()])
            if part["decimal"]:
                decimals.append(part[0])
                pattern += f"({_DECIMAL.pattern})"
            else:
                pattern += next(may for n, (_, may) in enumerate(_MAY_DIFFER) if part[f"p{n}"])
            at = part.end()
        lines.append(pattern + re.escape(line.rstrip()[at:]) + r"\n")
    # The last line ends the text.
    return "".join(lines).removesuffix(r"\n"), decimals


def _near(one: str, other: str) -> bool:
    a, b = float(one.replace(",", "")), float(other.replace(",", ""))
    return abs(a - b) <= 1e-3 * max(1.0, abs(a))

"""JSON lines that are no rows, of every kind that has been seen in the wild: each kind makes lines of a random stream.

``UNREADABLE`` are no JSON object at all; ``UNUSABLE`` are rows whose columns the template ``{{ q }}`` cannot use.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

Kind = Callable[[Random], bytes]

WORDS = ["a", "naïve café", "東京", "🙂", 'with "quotes"', "a\\b", "tab\there", "line\u2028separator", ""]


def good(random: Random) -> dict[str, Any]:
    """A row that anyone would take, with ``q`` as a prompt."""
    more: dict[str, Any] = {"n": random.randrange(-(10**12), 10**12), "x": random.random(), "deep": {"list": [1, None, True, "s"]}}
    names = random.sample(sorted(more), random.randrange(len(more) + 1))
    return {"q": f"{random.choice(WORDS)} {random.randrange(1000)}", **{name: more[name] for name in names}}


def line_of(row: dict[str, Any], ensure_ascii: bool = False) -> bytes:
    """A row as a line, without its end."""
    return json.dumps(row, ensure_ascii=ensure_ascii).encode()


def _truncated(random: Random) -> bytes:
    line = line_of(good(random), ensure_ascii=True)
    return line[: random.randrange(1, len(line))]


def _inserted(*pieces: bytes) -> Kind:
    def make(random: Random) -> bytes:
        line = line_of(good(random))
        at = random.randrange(1, len(line))
        return line[:at] + random.choice(pieces) + line[at:]

    return make


def _with_value(*values: str) -> Kind:
    """A row of which one value, at the top or deeper, stands as such text."""

    def make(random: Random) -> bytes:
        value = random.choice(values)
        for _ in range(random.randrange(3)):
            value = random.choice(["[{}]", '{{"in": {}}}', '[1, {}, "s"]']).format(value)
        return f'{{"q": "fine", "bad": {value}}}'.encode()

    return make


def _nested(random: Random) -> bytes:
    depth = random.choice([201, 900, 5_000])
    opening, closing = random.choice([("[", "]"), ('{"a":', "}")])
    return f'{{"q": {opening * depth}0{closing * random.choice([0, depth])}}}'.encode()


def _digits(random: Random) -> bytes:
    return b'{"q": "fine", "n": ' + random.choice([b"", b"-"]) + b"9" * random.randrange(4_400, 9_000) + b"}"


def _fixed(*lines: bytes) -> Kind:
    return lambda random: random.choice(lines)


UNREADABLE: dict[str, Kind] = {
    "truncated": _truncated,
    "no object": _fixed(b"[]", b'[{"q": 1}]', b'"q"', b"17", b"-0.5", b"true", b"null"),
    "no JSON": _fixed(
        b"q", b"# a comment", b"{'q': 'python'}", b'{q: "javascript"}', b'{"q": "a",}', b'{"q": undefined}', b'{"q" "a"}', b"<q>a</q>"
    ),
    "several": lambda random: line_of(good(random)) + random.choice([b"", b" ", b",", b"\r", b"\t"]) + line_of(good(random)),
    "NUL": _inserted(b"\0", b"\0\0\0\0"),
    "no UTF-8": _inserted(b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"),
    "UTF-16": lambda random: line_of(good(random)).decode().encode("utf-16-le").replace(b"\n", b""),
    "latin-1": lambda random: '{"q": "Müller"}'.encode("latin-1"),
    "half a surrogate pair": _with_value(r'"\ud800"', r'"a\uDFFFb"', r'"\udc00\ud800"'),
    "infinite": _with_value("1e999", "-2.5E+400", "9" * 400 + ".0"),
    "nested": _nested,
    "endless number": _digits,
    "no JSON number": _with_value("NaN", "Infinity", "-Infinity", "nan", "0x10", "01", "1.", ".5", "+1"),
    "a name twice": _fixed(b'{"q": "a", "q": "b"}', b'{"q": "a", "m": {"x": 1, "x": 1}}', b'{"q": "a", "l": [{"x": null, "\\u0078": 2}]}'),
    "a mark": lambda random: b"\xef\xbb\xbf" + line_of(good(random)),
    "control characters": _with_value('"a\tb"', '"\x1b[31m"', '"a\rb"', '"\x7f\x01"'),
    "long": lambda random: random.choice([b"x", b'{"q": "', b"[[[{"]) * random.randrange(20_000, 60_000),
}
UNUSABLE: dict[str, Kind] = {
    "empty": _fixed(b"{}", b"{ }", b'{"": ""}', b'{"n": 1}'),
    "null": _fixed(b'{"q": null}', b'{"q": null, "n": 3}'),
    "another type": _fixed(b'{"q": ["a"]}', b'{"q": {"a": 1}}', b'{"q": []}', b'{"q": [[[]]]}'),
}
BLANK = [b"", b" ", b"\t", b"\r", b"  \r"]

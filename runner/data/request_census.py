"""Counts what the lines of a Batch file ask for, so that a run knows its columns and its warnings before the first request.

Counts names and a few values; does not say which of them are right.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

COUNTED = ("model", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "include")  # fields whose values are counted too

_MOST = 1_000  # names and values that are told apart
_LONGEST = 200  # characters of one

_Key = TypeVar("_Key", bound=tuple[str, ...])


@dataclass(slots=True)
class RequestCensus:
    """Lines by what their bodies hold. fields: (url, name of a field) -> lines; values: (url, name, value as JSON) -> lines.

    Fields that are null do not count. Of fields that are mappings, the fields within count too, as "text.format".
    """

    fields: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    values: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])

    def add(self, line: dict[str, Any]) -> None:
        """Counts a line's request."""
        url, body = line.get("url"), line.get("body")
        if not isinstance(url, str) or not isinstance(body, dict):
            return
        for name, value in _within(body):
            _count(self.fields, (url, name))
            if name in COUNTED:
                _count(self.values, (url, name, json.dumps(value, ensure_ascii=False)))

    def seen(self, url: str, name: str) -> Iterator[tuple[Any, int]]:
        """Yields the values of a field of COUNTED in the requests to ``url``, with the number of lines that have each."""
        for (where, what, text), lines in self.values.items():
            if (where, what) == (url, name):
                yield json.loads(text), lines

    def as_json(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        return {"fields": [[*key, n] for key, n in self.fields.items()], "values": [[*key, n] for key, n in self.values.items()]}

    @staticmethod
    def from_json(kept: dict[str, Any]) -> "RequestCensus":
        """Returns what ``as_json`` gave. Raises ValueError, KeyError or TypeError for anything else."""
        fields = Counter({(url, name): n for url, name, n in kept["fields"]})
        return RequestCensus(fields, Counter({(url, name, value): n for url, name, value, n in kept["values"]}))


def _within(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in body.items():
        if value is None:
            continue
        yield name, value
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", its) for inner, its in value.items() if its is not None)


def _count(counts: Counter[_Key], key: _Key) -> None:
    if key in counts or (len(counts) < _MOST and sum(map(len, key)) <= _LONGEST):
        counts[key] += 1

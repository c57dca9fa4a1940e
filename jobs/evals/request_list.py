"""All requests of an evaluation in one order: task by task, as lm-eval built them. A request's place is its row in the run.

A task's requests are hashed, so that a continued run knows that each row asks what it asked before.
"""

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT = "requests of lm-eval"


@dataclass(slots=True, frozen=True)
class EvalRequest:
    """One request of a task. kind: lm-eval's request type. repeat: which of the task's repeats of a document it is.

    prompt: what the model is given; "" for a text that is scored as a whole. continuation: the text that is scored after it, None
    where text is generated, by ``generation_kwargs``.
    """

    task: str
    doc_id: int
    idx: int
    repeat: int
    kind: str
    prompt: str
    continuation: str | None
    generation_kwargs: dict[str, Any] | None

    def content(self, repeats: int) -> bytes:
        """What decides the answers to all ``repeats`` of the request, as bytes to hash."""
        values = [repeats, self.kind, self.prompt, self.continuation, self.generation_kwargs]
        return json.dumps(values, sort_keys=True, default=str).encode() + b"\n"


class RequestList:
    """The requests of loaded tasks, each of whose ``instances`` lm-eval has built. tasks: by name, in lm-eval's order."""

    def __init__(self, tasks: Mapping[str, Any]):
        self._instances: list[Any] = []
        self._starts: list[int] = []
        self._place: dict[int, int] = {}
        self.rows = 0
        self.sources = [self._source(name, task.instances) for name, task in tasks.items()]

    def _source(self, name: str, instances: Sequence[Any]) -> dict[str, Any]:
        """Adds a task's requests. Returns what run.json says of them, as of an input's file."""
        first, size, digest = self.rows, 0, hashlib.sha256()
        for instance in instances:
            self._place[id(instance)] = self.rows
            self._instances.append(instance)
            self._starts.append(self.rows)
            self.rows += instance.repeats or 1
            content = _request(instance, 0).content(instance.repeats or 1)
            size += len(content)
            digest.update(content)
        counts = {"bytes": size, "sha256": digest.hexdigest(), "rows": self.rows - first}
        return {"path": name, "format": FORMAT, "codec": None, **counts, "appendable": False}

    @property
    def inputs(self) -> dict[str, Any]:
        """Returns the requests as run.json has inputs."""
        return {"key": "tasks", "limit": None, "sources": self.sources}

    def positions(self, requests: Sequence[Any]) -> list[int]:
        """Returns the row of each request of one call. A request that stands there several times is that of a task's repeats."""
        seen = Counter[int]()
        found: list[int] = []
        for request in requests:
            found.append(self._place[id(request)] + seen[id(request)])
            seen[id(request)] += 1
        return found

    def at(self, position: int) -> EvalRequest:
        """Returns the request of a row."""
        at = bisect_right(self._starts, position) - 1
        return _request(self._instances[at], position - self._starts[at])

    def instance(self, position: int) -> Any:
        """Returns lm-eval's instance of the request of a row."""
        return self._instances[bisect_right(self._starts, position) - 1]

    def __iter__(self) -> Iterator[EvalRequest]:
        return (self.at(position) for position in range(self.rows))


def _request(instance: Any, repeat: int) -> EvalRequest:
    kind, args = str(instance.request_type), instance.args
    prompt, continuation, settings = "", None, None
    if kind == "loglikelihood_rolling":
        continuation = _storable(args[0])
    elif kind == "loglikelihood":
        prompt, continuation = _storable(args[0]), _storable(args[1])
    else:
        prompt, settings = _storable(args[0]), dict(args[1])
    return EvalRequest(str(instance.task_name), int(instance.doc_id or 0), instance.idx, repeat, kind, prompt, continuation, settings)


def _storable(text: object) -> str:
    """Returns the text with lone surrogates as escapes: records are UTF-8, which does not have them."""
    return str(text).encode("utf-8", "backslashreplace").decode()

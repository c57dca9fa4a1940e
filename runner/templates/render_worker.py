"""The process that renders templates whose cost is unknown: it limits its own memory and time, and answers one request at a time.

    in:  length (8 bytes), pickle of (number, kind, arguments)      out: a line of JSON with that number

Run as ``python -m``. Pickles come from the run alone; answers are JSON, as a template has a hand in them.
"""

import json
import os
import pickle
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import RowError
from .chat_rendering import unmetered_chat
from .prompt_templates import compile_template, compile_value
from .render_costs import stop_counting


def answer_requests(memory_bytes: int, seconds: int) -> None:
    """Answers requests from stdin until it is closed."""
    stop_counting()
    unmetered_chat("", [{"role": "user", "content": ""}], {}, False)  # its imports, before the limits
    _limit_memory(memory_bytes)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _send(answers, {"ready": True})
    requests = sys.stdin.buffer
    while len(head := requests.read(8)) == 8:
        number, kind, arguments = pickle.loads(requests.read(int.from_bytes(head, "big")))
        _limit_time(seconds)
        _send(answers, {"number": number, **_answer(kind, arguments)})


def _answer(kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": {"chat": unmetered_chat, "text": _text, "value": _value}[kind](**arguments)}
    except MemoryError:
        return {"too_much": "memory"}
    except RowError as error:
        return {"too_much": "memory"} if isinstance(error.__cause__, MemoryError) else {"refused": str(error)}
    except Exception as error:  # templates raise what they like
        return {"refused": f"{error}"}


def _text(row: dict[str, Any], **source: Any) -> str:
    return _compiled(compile_template, **source)(row)


def _value(row: dict[str, Any], **source: Any) -> Any:
    return _compiled(compile_value, **source)(row)


@cache
def _compiled(compile_: Callable[..., Callable[[dict[str, Any]], Any]], **source: Any) -> Callable[[dict[str, Any]], Any]:
    return compile_(**source)


def _send(answers: Any, answer: dict[str, Any]) -> None:
    try:
        line = json.dumps(answer)
    except MemoryError:
        line = json.dumps({"number": answer["number"], "too_much": "memory"})
    answers.write(line + "\n")
    answers.flush()


def _limit_memory(memory_bytes: int) -> None:
    """Limits the address space to what it is now and ``memory_bytes`` more. On macOS the run looks at the memory instead."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_time(seconds: int) -> None:
    """Ends this process after so many more seconds of CPU, if the run that waits for it is gone by then."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    answer_requests(int(sys.argv[1]), int(sys.argv[2]))

"""Reads values of finished runs for tests."""

import json
from typing import Any

from .bench import Done


def column(done: Done, name: str) -> list[Any]:
    return done.table.column(name).to_pylist()


def prompts(done: Done) -> list[str]:
    return column(done, "prompt")


def session(done: Done) -> dict[str, Any]:
    """Returns the last start's line of sessions.jsonl."""
    lines = [json.loads(line) for line in (done.output / "sessions.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "start"][-1]

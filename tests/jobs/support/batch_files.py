"""Makes lines of a Batch file, runs them with the real command, and reads the answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from mlx_bulk.jobs.cli.main import cli

from .bench import Bench, Done, Record
from .exported_runs import export

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HI = [{"role": "user", "content": "What is 2 + 2?"}]


def chat(name: str, messages: Any = None, **body: Any) -> Record:
    """A line that asks for a chat completion."""
    return request(name, CHAT, messages=HI if messages is None else messages, **body)


def completion(name: str, prompt: Any = "The king is", **body: Any) -> Record:
    """A line that asks for a completion."""
    return request(name, COMPLETIONS, prompt=prompt, **body)


def response(name: str, given: Any = "What is 2 + 2?", **body: Any) -> Record:
    """A line that asks for a response."""
    return request(name, RESPONSES, input=given, **body)


def request(name: str, url: str, **body: Any) -> Record:
    """A line of a Batch file."""
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


@dataclass(slots=True, frozen=True)
class Answered:
    """A run on a Batch file that has ended, and the lines of its export in input order."""

    done: Done
    lines: list[Record]

    def records(self, name: str) -> list[Record]:
        """The records of one line."""
        return [record for record in self.done.records if record["key"] == name]

    def body(self, name: str) -> Any:
        """The body of one line's answer."""
        return next(line["response"]["body"] for line in self.lines if line["custom_id"] == name)


def answered(bench: Bench, lines: Sequence[Record | str], *options: str, **sections: Any) -> Answered:
    """Runs the lines on the bench's model, with ``sections`` over a config that is greedy, and exports the run."""
    path = bench.root / "requests.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    data = {"path": str(path), "format": "openai", "keep": "none", **sections.pop("data", {})}
    settings: dict[str, Any] = {"prompt": {}, "on_error": "quarantine_all", **sections}
    done = bench.run(*options, data=data, **settings)
    to = bench.root / "answers.jsonl"
    if done.code in (0, 3):
        export(done.output, "openai", to, "--overwrite")
    return Answered(done, read_lines(to) if done.code in (0, 3) else [])


def read_lines(path: Path) -> list[Record]:
    """The lines of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def batch(*arguments: str) -> Result:
    """Runs ``mlx-bulk batch``."""
    result = CliRunner().invoke(cli, ["batch", *arguments, "--no-supervised"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result

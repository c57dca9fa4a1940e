"""Runs the real command in a temporary folder, and reads its results."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

Record = dict[str, Any]
ROWS: list[Record] = [
    {"id": "a", "q": "What is 2 + 2?"},
    {"id": "b", "q": "A longer prompt, with café, 東京 and 🙂 in it."},
    {"id": "c", "q": "O"},
    {"id": "d", "q": "The king is dead."},
    {"id": "e", "q": "Enter a messenger, and then another\nmessenger."},
]


@dataclass(slots=True, frozen=True)
class Done:
    """A command that has ended: its exit code, its output, its run directory, and the tables of results and errors."""

    code: int
    stdout: str
    stderr: str
    output: Path
    table: pa.Table
    errors: list[Record]

    @property
    def records(self) -> list[Record]:
        """All records, as Python values, in the order of the parts."""
        return self.table.to_pylist()

    @property
    def last_line(self) -> str:
        """The last line on stderr."""
        return self.stderr.rstrip("\n").rpartition("\n")[2]


@dataclass(slots=True, frozen=True)
class Bench:
    """A folder for a test's files and a model to run. By default its jobs are greedy over ``ROWS``."""

    root: Path
    model: Path

    def write_rows(self, rows: list[Record], name: str = "rows.jsonl") -> Path:
        """Writes rows as JSON lines."""
        path = self.root / name
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    def write_config(self, rows: list[Record] | None = None, **sections: Any) -> Path:
        """Writes a config: the standard job's, updated with ``sections`` (data={"limit": 3}, on_error="fail")."""
        if rows is not None or not (self.root / "rows.jsonl").exists():
            self.write_rows(ROWS if rows is None else rows)
        config: dict[str, Any] = {
            "job": "generate",
            "model": {"path": str(self.model)},
            "data": {"path": str(self.root / "rows.jsonl")},
            "prompt": {"text": "{{ q }}"},
            "sampling": {"max_tokens": 6, "temperature": 0},
            "output": {"path": str(self.root / "run")},
        }
        for name, given in sections.items():
            # A prompt has one source: one that is given stands alone.
            config[name] = {**config.get(name, {}), **given} if isinstance(given, dict) and name != "prompt" else given
        path = self.root / "config.yaml"
        path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        return path

    def score(self, *options: str, rows: list[Record], **sections: Any) -> Done:
        """Runs ``mlx-bulk run`` on a scoring job over ``rows``, with ``sections`` added to model, data and output."""
        config = {
            "job": "score",
            "model": {"path": str(self.model)},
            "data": {"path": str(self.write_rows(rows))},
            "output": {"path": str(self.root / "run")},
            **sections,
        }
        path = self.root / "config.yaml"
        path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        return self.command(path, *options)

    def run(self, *options: str, rows: list[Record] | None = None, stdin: str | None = None, **sections: Any) -> Done:
        """Runs ``mlx-bulk run`` on a config of ``write_config``."""
        path = self.write_config(rows, **sections)
        return self.command(path, *options, stdin=stdin)

    def command(self, config: Path, *options: str, stdin: str | None = None) -> Done:
        """Runs ``mlx-bulk run`` on an existing config."""
        result = CliRunner().invoke(cli, ["run", str(config), "--no-supervised", *options], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        output = Path(options[options.index("--output") + 1]) if "--output" in options else self.root / "run"
        errors = table_of(output / "errors").to_pylist()
        return Done(result.exit_code, result.stdout, result.stderr, output, table_of(output / "results"), errors)


def table_of(folder: Path) -> pa.Table:
    """Reads the rows of all parts in ``results`` or ``errors``."""
    tables: list[pa.Table] = []
    for part in sorted(folder.glob("part-*.arrow")):
        with pa.memory_map(str(part)) as file:
            tables.append(pa.ipc.open_file(file).read_all())
    return pa.concat_tables(tables) if tables else pa.table({})

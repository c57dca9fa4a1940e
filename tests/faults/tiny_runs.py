"""Makes tiny jobs to interrupt: their inputs, and how two runs of one are compared.

Eighteen rows in five shards; a line that is not JSON, a row without its column, and (where texts have a limit) one that is too
long, so that there are errors beside the results. The mode is deterministic: a run's bytes do not depend on how often it broke.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result
from mlx_bulk.jobs.cli.main import cli

from .children import Child, Children, Ended
from .points import Point

ROWS = 18
THOROUGH = os.environ.get("MLX_BULK_FAULTS") == "all"
PART = re.compile(r"part-(\d{8})(\.g\d+)?\.arrow")

JOBS: dict[str, dict[str, Any]] = {
    "generate": {
        "job": "generate",
        "prompt": {"text": "{{ q }}"},
        "sampling": {"max_tokens": 3, "temperature": 1.0, "n": 2},
        "batch": {"rows": 4, "rows_per_shard": 4, "deterministic": True},
    },
    "structured": {
        "job": "generate",
        "prompt": {"text": "{{ q }}"},
        "sampling": {"max_tokens": 6, "temperature": 1.5, "n": 2},
        "structured": {"regex": "[a-z]{1,4} (yes|no)"},
        "batch": {"rows": 4, "rows_per_shard": 4, "deterministic": True},
    },
    "score": {
        "job": "score",
        "score": {"text": "{{ q }}"},
        "batch": {"rows": 4, "rows_per_shard": 4, "deterministic": True},
    },
    "embed": {
        "job": "embed",
        "prompt": {"text": "{{ q }}"},
        "embed": {"pooling": "mean"},
        "batch": {"rows": 4, "rows_per_shard": 4, "deterministic": True},
    },
    "classify": {
        "job": "classify",
        "prompt": {"text": "{{ q }}"},
        "classify": {"true_token": "e", "false_token": "o"},
        "batch": {"rows": 4, "rows_per_shard": 4, "deterministic": True},
    },
    "rollout": {
        "job": "rollout",
        "prompt": {"text": "{{ q }}"},
        "sampling": {"max_tokens": 3, "n": 3},
        "rewards": [{"fn": "regex", "args": {"pattern": "e"}}],
        "drop_degenerate": True,
        "rounds": 2,
        "batch": {"rows": 4, "rows_per_shard": 4, "deterministic": True},
    },
}


def line(row: int) -> str:
    """The input's line for ``row``."""
    text: str | None = "a word " * (1 + 5 * row % 11) + f"and café {row}"
    if row == 5:
        return '{"id": "k5", "q": "cut o\n'
    if row == 9:
        text = None
    if row == 13:
        text = "long " * 200
    return json.dumps({"id": f"k{row}", "q": text}) + "\n"


def lines(rows: int = ROWS) -> str:
    """The input's first ``rows`` lines."""
    return "".join(map(line, range(rows)))


@dataclass(slots=True, frozen=True)
class TinyRun:
    """A folder with a job's config and input; the run directory is ``run`` in it."""

    folder: Path
    children: Children

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.folder / "run"

    def write(self, job: str, rows: int = ROWS, **sections: Any) -> None:
        """Writes config and input; ``sections`` are laid over the job's own."""
        self.folder.mkdir(exist_ok=True)
        config = {
            "model": {"path": str(self.children.model)},
            "data": {"path": "rows.jsonl", "key": "id"},
            "output": {"path": "run", "fsync_seconds": 0},
            **JOBS[job],
        }
        for name, given in sections.items():
            config[name] = {**config.get(name, {}), **given}
        (self.folder / "job.yaml").write_text(yaml.safe_dump(config))
        (self.folder / "rows.jsonl").write_text(lines(rows))

    def begin(self, *options: str, **about: Any) -> Child:
        """Starts the command with ``options``; ``about``: see ``Children.start``."""
        return self.children.start(self.folder, "run", "job.yaml", "--no-supervised", *options, **about)

    def start(self, *options: str, **about: Any) -> Ended:
        """Runs the command to its end."""
        return self.begin(*options, **about).wait()

    def killed_at(self, point: Point, *options: str, **about: Any) -> Ended:
        """Runs the command, which must die of SIGKILL at ``point``."""
        ended = self.start(*options, points=[point], **about)
        assert ended.killed, f"survived {point.name}: exit code {ended.code}\n{ended.stderr}"
        assert ended.points == [point.name]
        return ended

    def verify(self) -> Result:
        """``mlx-bulk verify``, from another folder."""
        result = CliRunner().invoke(cli, ["verify", str(self.path)])
        assert isinstance(result.exception, SystemExit | None), result.output
        return result


def parts(run: Path) -> dict[str, bytes]:
    """The bytes of the run's parts, by folder and shard; of a shard there may be one generation. What was set aside is left out."""
    found: dict[str, bytes] = {}
    for file in (file for folder in ("results", "errors") for file in run.glob(f"{folder}/*") if ".orphan" not in file.name):
        named = PART.fullmatch(file.name)
        assert named, f"left behind: {file}"
        name = f"{file.parent.name}/{named[1]}"
        assert name not in found, f"two generations: {file}"
        found[name] = file.read_bytes()
    return found

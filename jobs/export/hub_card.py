"""Writes the card of a dataset on the hub: how the records were made, from run.json and the run's statistics.

Names no folders of the machine that made the run. All values may come from others, so Markdown must show them literally.
"""

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from ..terminal.tables import figure, shorten

_DIGEST = re.compile("(?:sha256 )?[0-9a-f]{64}")
_GROUPS = 8  # columns of the statistics: all records, then the first groups
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))
_PATHS = (("model", "path"), ("model", "adapter"), ("data", "path"), ("prompt", "chat_template"))


def dataset_card(name: str, stored: dict[str, Any], counts: str, records: int, statistics: pa.Table | None) -> str:
    """Returns the README.md of the dataset ``name``; ``stored`` is run.json, ``counts`` a sentence on rows, records and errors."""
    config = _config(stored)
    metadata = {
        "pretty_name": name.partition("/")[2],
        "tags": ["mlx-bulk", config["job"]],
        "size_categories": [next((label for limit, label in _SIZES if records < limit), "n>10M")],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    blocks = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {name}",
        f"Made with mlx-bulk {version('mlx-bulk')} (`job: {config['job']}`). {counts}",
        f'```python\nfrom datasets import load_dataset\n\nrecords = load_dataset("{name}", split="train")\n```',
        f"## Config\n\n{_fenced(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), 'yaml')}",
        f"## Fingerprints\n\nsha256 of the contents.\n\n{_table(['what', 'sha256'], _fingerprints(stored))}",
        f"## Statistics\n\n{_statistics(statistics)}" if statistics is not None else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _config(stored: dict[str, Any]) -> dict[str, Any]:
    """Returns the job's settings that shape records; a local path is cut to its last name."""
    config = {name: value for name, value in stored["config"].items() if name not in ("output", "batch", "on_error")}
    for section, key in _PATHS:
        values = config[section] = dict(config[section])
        values[key] = _local_name(values[key], stored["cwd"])
    if reference := config.get("score", {}).get("reference"):
        config["score"] = {**config["score"], "reference": {**reference, "path": _local_name(reference["path"], stored["cwd"])}}
    return config


def _local_name(value: Any, cwd: str) -> Any:
    if isinstance(value, list):
        return [_local_name(one, cwd) for one in value]
    if not isinstance(value, str) or "\n" in value:
        return value
    path = Path(cwd, value)
    return path.name if Path(value).is_absolute() or path.exists() else value


def _fingerprints(stored: dict[str, Any]) -> list[list[str]]:
    identity = [[key, str(value)] for key, value in stored["identity"].items() if _DIGEST.fullmatch(str(value))]
    sources = [[Path(source["path"]).name, source["sha256"] or ""] for source in stored["inputs"]["sources"]]
    return [[f"`{shorten(_cell(key), 60)}`", f"`{value.removeprefix('sha256 ')}`"] for key, value in [*identity, *sources]]


def _statistics(table: pa.Table) -> str:
    rows = table.slice(0, _GROUPS).to_pylist()
    heads = [f"`{_cell(str(row['group']))}`" for row in rows]
    names = [name for name in table.column_names if name not in ("of", "group") and any(row[name] is not None for row in rows)]
    lines = [[f"`{name}`", *(_value(row[name]) for row in rows)] for name in names]
    left_out = table.num_rows - len(rows)
    return _table(["", *heads], lines) + (f"\n\n{left_out:,} more groups are left out." if left_out else "")


def _value(value: Any) -> str:
    return figure(value) if isinstance(value, int | float | None) and not isinstance(value, bool) else _cell(str(value))


def _cell(text: str) -> str:
    """Replaces characters that would end a table's cell or its code span."""
    return shorten(text, 60).replace("|", "¦").replace("`", "ˋ")


def _table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def _fenced(text: str, language: str) -> str:
    """Returns a code block, with a fence longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}{fence}"

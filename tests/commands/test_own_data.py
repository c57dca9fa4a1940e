"""A stranger's own rows in ten formats, from the plan to the export: the same tokens, figures and records from each of them."""

import csv
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from ..jobs.report.test_report import Reader
from ..jobs.support.bench import Bench, Record

TEXTS = [
    "The king is dead.",
    "Long live the king; long live, indeed, the queen!",
    'She said "no", and then: "perhaps".',
    "café, 東京 and 🙂 in it",
    "O",
    "A text that is longer than the context of the tiny model, so that it is cut into windows. " * 3 + "End",
    "1;2;3",
]
ROWS: list[Record] = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
TABLE = pa.Table.from_pylist(ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def write_csv(path: Path, delimiter: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "text"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE)


def write_zst(path: Path) -> None:
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(LINES.encode())


WRITERS: dict[str, Callable[[Path], Any]] = {
    "rows.jsonl": lambda path: path.write_text(LINES, encoding="utf-8"),
    "rows.json": lambda path: path.write_text(json.dumps(ROWS, indent=2), encoding="utf-8"),
    "rows.parquet": lambda path: pq.write_table(TABLE, path),
    "rows.arrow": write_arrow,
    "semicolons.csv": lambda path: write_csv(path, ";"),
    "rows.tsv": lambda path: write_csv(path, "\t"),
    "rows.txt": lambda path: path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8"),
    "rows.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "rows.jsonl.zst": write_zst,
    "saved": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(path),
}


def command(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def shown(page: Reader) -> list[Any]:
    """Returns what a report shows of each record, without the row as it was read, which has no id in a text file."""
    return [{name: value for name, value in record.items() if name != "input"} for record in page.samples["records"]]


def story(bench: Bench, name: str) -> dict[str, Any]:
    """Plans, runs, reports and exports the rows in the file ``name``, and returns what each command says of them."""
    data, run, config = bench.root / name, bench.root / f"run-{name}", bench.root / "job.yaml"
    WRITERS[name](data)
    sections = {"model": {"path": str(bench.model)}, "data": {"path": str(data)}, "output": {"path": str(run)}}
    config.write_text(yaml.safe_dump({"job": "score", **sections, "score": {"text": "{{ text }}"}}))
    plan = json.loads(command("plan", str(config), "--json"))
    command("run", str(config), "--no-supervised")
    page = Reader(Path(command("report", str(run)).strip()).read_text(encoding="utf-8"))
    command("export", str(run), "--format", "parquet", "--to", str(bench.root / f"{name}.export.parquet"))
    command("verify", str(run))
    records = pq.read_table(bench.root / f"{name}.export.parquet")
    summary = json.loads((run / "summary.json").read_text())
    return {
        "plan": {key: plan[key] for key in ("rows", "problems", "tokens", "scored_tokens", "fed_tokens", "batches")},
        "statistics": summary["statistics"],
        "report": shown(page),
        "texts": [row["text"] for row in records["input"].to_pylist()],
        "records": records.drop_columns(["input"]).to_pylist(),
    }


@pytest.mark.slow
def test_the_same_rows_in_any_format_come_to_the_same(bench: Bench):
    first, *others = (story(bench, name) for name in WRITERS)
    assert first["texts"] == TEXTS
    assert (first["plan"]["rows"], first["plan"]["problems"]) == (len(TEXTS), [])
    assert first["plan"]["scored_tokens"] == sum(record["scored_tokens"] for record in first["records"])
    logprobs = [x for record in first["records"] for x in record["token_logprobs"] if x is not None]
    perplexity = math.exp(-math.fsum(logprobs) / len(logprobs))
    assert first["statistics"]["token_perplexity"] == pytest.approx(perplexity, rel=1e-12)  # sums of the same float32 values
    for name, other in zip([*WRITERS][1:], others, strict=True):
        assert other == first, name

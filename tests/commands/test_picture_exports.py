"""Runs on pictures exported in each format: digests and paths in the pictures' places, and ids that the tokenizer knows."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from ..jobs.support.bench import Bench
from ..vision_folders import drawn, picture_bytes, write_vision_model

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
IDS = ("prompt_ids", "token_ids", "prompts", "completion_ids")


@pytest.fixture(scope="module", name="model")
def a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2_vl")
    write_vision_model(folder, "qwen2_vl")
    return folder


def exported(run: Path, kind: str, to: Path) -> Path:
    done = CliRunner().invoke(cli, ["export", str(run), "--format", kind, "--to", str(to)])
    assert done.exit_code == 0, done.output
    return to


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_exported_with_digests_and_the_tokenizers_ids(model: Path, tmp_path: Path) -> None:
    data = picture_bytes(drawn(60, 60))
    table = pa.Table.from_pylist([{"q": f"and <|image_pad|> {i}?", "image": {"bytes": data, "path": "a.png"}} for i in range(2)])
    pq.write_table(table, tmp_path / "rows.parquet")
    text = {"text": "<|vision_start|><|image_pad|><|vision_end|> {{ q }}", "images": "image"}
    done = Bench(tmp_path, model).run(data={"path": str(tmp_path / "rows.parquet")}, prompt=text, logprobs={"prompt": True, "top": 2})
    assert done.code == 0, done.stderr
    largest = json.loads((model / "config.json").read_text())["text_config"]["vocab_size"]
    as_json = lines(exported(done.output, "jsonl", tmp_path / "out.jsonl"))
    as_table = pq.read_table(exported(done.output, "parquet", tmp_path / "out.parquet")).to_pylist()
    with exported(done.output, "csv", tmp_path / "out.csv").open() as file:
        as_csv: list[dict[str, Any]] = [
            {**row, "input": json.loads(row["input"]), "prompt_ids": json.loads(row["prompt_ids"])} for row in csv.DictReader(file)
        ]
    for records in (as_json, as_table, as_csv):
        for record in records:
            assert record["input"]["image"]["bytes"].startswith("sha256:")
            assert record["input"]["image"]["path"] == "a.png"
            assert max(record["prompt_ids"]) < largest
    for line in lines(exported(done.output, "openai", tmp_path / "out.openai")):
        [choice] = line["response"]["body"]["choices"]
        said, logprobs = choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]
        assert said.count("<|image_pad|>") == 4
        assert [logprobs[i] for i, token in enumerate(said) if token == "<|image_pad|>"] == [None] * 4
        assert choice["text"].startswith("<|vision_start|><|image_pad|><|vision_end|> and <|image_pad|> ")


def test_trainers_get_the_tokenizers_ids(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture_bytes(drawn(60, 60)))
    done = Bench(tmp_path, model).run(
        rows=[{"q": "What?", "image": "a.png"}],
        job="rollout",
        prompt={"user": "{{ q }}", "images": "image"},
        sampling={"max_tokens": 3, "temperature": 1.0, "n": 2},
        rewards=[{"fn": "regex", "args": {"pattern": "e"}}],
    )
    assert done.code == 0, done.stderr
    for kind in ("trl", "verl", "prime-rl", "verifiers"):
        found = pq.read_table(exported(done.output, kind, tmp_path / f"{kind}.parquet"))
        assert found.num_rows == 2
        assert all(max(ids) < 1 << 24 for name in IDS if name in found.schema.names for ids in found[name].to_pylist())

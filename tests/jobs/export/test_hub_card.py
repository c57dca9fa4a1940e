"""Tests the card of a dataset: its content, the folders that it hides, and text that must not act as Markdown."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from mlx_bulk.jobs.export.hub_card import dataset_card

DIGEST = "ab" * 32


def stored(cwd: Path, **data: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "job": "generate",
        "model": {"path": "org/name", "adapter": None},
        "data": {"path": "rows.jsonl", "limit": None, **data},
        "prompt": {"text": "{{ q }}", "chat_template": None},
        "output": {"path": "/home/somebody/secret"},
        "batch": {"rows": "auto"},
        "on_error": "fail",
    }
    identity = {"model.weights": DIGEST, "prompt.chat_template": f"sha256 {DIGEST}", "sampling.seed": 0}
    inputs = {"limit": None, "sources": [{"path": "/home/somebody/rows|`.jsonl", "sha256": DIGEST}]}
    return {"config": config, "cwd": str(cwd), "identity": identity, "inputs": inputs}


def config_in(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("yaml\n")[1].split("\n```")[0])


def test_it_tells_config_fingerprints_and_statistics(tmp_path: Path):
    statistics = pa.table({"group": ["all"], "records": [12], "completion_perplexity": [3.25], "clipped": pa.array([None], pa.int64())})
    text = dataset_card("someone/answers", stored(tmp_path), "12 records of 3 rows.", 12, statistics)
    assert config_in(text)["model"] == {"path": "org/name", "adapter": None}
    assert f"| `model.weights` | `{DIGEST}` |" in text
    assert f"| `prompt.chat_template` | `{DIGEST}` |" in text
    assert "| `records` | 12 |\n| `completion_perplexity` | 3.250 |" in text
    assert "clipped" not in text
    assert "sampling.seed" not in text
    assert yaml.safe_load(text.split("---\n")[1])["size_categories"] == ["n<1K"]
    assert 'load_dataset("someone/answers", split="train")' in text


def test_it_tells_no_folders_of_the_machine(tmp_path: Path):
    (tmp_path / "models").mkdir()
    run = stored(tmp_path, path=["/home/somebody/secret/a.jsonl", "hf:org/data"])
    run["config"]["model"]["path"] = "models"  # beside where the run was started
    run["config"]["score"] = {"reference": {"path": "/home/somebody/secret/model"}}
    text = dataset_card("a/b", run, "", 1, None)
    assert "secret" not in text
    assert "somebody" not in text
    assert str(tmp_path) not in text
    assert config_in(text)["data"]["path"] == ["a.jsonl", "hf:org/data"]
    assert config_in(text)["score"] == {"reference": {"path": "model"}}


def test_words_of_others_stay_words(tmp_path: Path):
    run = stored(tmp_path)
    run["config"]["prompt"]["text"] = "```\n# A heading\n<script>alert(1)</script>"
    groups = ["all", "a|b`c\n\x1b[2J<b>"]
    text = dataset_card("a/b", run, "", 1, pa.table({"of": ["all", "group"], "group": groups, "documents": [2, 1]}))
    assert "````yaml\n" in text  # a longer fence than the one in the template
    table = text.partition("## Statistics")[2].strip().splitlines()
    assert {line.count("|") for line in table} == {4}
    assert "\x1b" not in text
    assert "`a¦bˋc �[2J<b>`" in table[0]


def test_many_groups_are_cut(tmp_path: Path):
    table = pa.table({"group": ["all", *map(str, range(20))], "records": [1] * 21})
    assert "13 more groups are left out." in dataset_card("a/b", stored(tmp_path), "", 1, table)

"""Runs of embedding jobs over texts, pictures and both, by command, held against sentence-transformers in float32, each row alone there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk import results
from mlx_bulk.jobs.cli.main import cli
from numpy.typing import NDArray

from ..jobs.support.bench import table_of
from ..picture_embedders import FORWARD, ROWS, SYSTEM, sentence_transformer, their_vectors, write_picture_embedder, write_picture_rows
from ..runner.models.test_against_sentence_transformers import qwen3
from ..sentence_folders import write_json, write_modules

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
CLOSE = 1e-5  # of a number of a unit vector: a tenth of what a logprob is allowed


def run(root: Path, model: Path, name: str = "run", code: int = 0, **sections: Any) -> list[dict[str, Any]]:
    """Runs a job over ``root``'s rows; returns its records."""
    config: dict[str, Any] = {
        "job": "embed",
        "model": {"path": str(model)},
        "data": {"path": str(root / "rows.jsonl")},
        "prompt": {"text": "{{ t or '' }}", "images": "image"},
        "output": {"path": str(root / name)},
    }
    (root / f"{name}.yaml").write_text(yaml.safe_dump(config | sections))
    done = CliRunner().invoke(cli, ["run", str(root / f"{name}.yaml"), "--no-supervised"])
    assert done.exit_code == code, done.output
    return results(root / name).to_pylist()


def vectors(records: list[dict[str, Any]]) -> NDArray[np.float32]:
    return np.array([one["embedding"] for one in records], np.float32)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3", "llava"])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, kind: str) -> None:
    model = write_picture_embedder(tmp_path / "model", kind, "mean" if kind == "gemma3" else "lasttoken", prompt=SYSTEM)
    write_picture_rows(tmp_path)
    theirs = their_vectors(sentence_transformer(model))
    together = vectors(run(tmp_path, model))
    assert np.abs(together - theirs).max() <= CLOSE
    alone = vectors(run(tmp_path, model, "alone", batch={"rows": 1}))
    assert np.abs(alone - theirs).max() <= CLOSE
    assert np.abs(theirs[0] - theirs[3]).max() > 0.01


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl", "gemma3"])
def test_a_model_that_was_saved_without_its_language_models_head_is_read(tmp_path: Path, kind: str) -> None:
    model = write_picture_embedder(tmp_path / "model", kind)
    write_picture_rows(tmp_path)
    theirs = sentence_transformer(model)
    expected, config = their_vectors(theirs), (model / "config.json").read_text()
    (model / "model.safetensors").unlink()
    theirs[0].model.save_pretrained(model)
    (model / "config.json").write_text(config)
    assert np.abs(vectors(run(tmp_path, model)) - expected).max() <= CLOSE


def test_chats_and_raw_texts_say_where_pictures_stand(tmp_path: Path) -> None:
    """As fine-tunes without sentence-transformers' files are used: GME-Qwen2-VL reads a chat with a token of its own behind it."""
    model = write_picture_embedder(tmp_path / "model", "qwen2_vl", messages=False)
    parts = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
    rows = [{"t": "what is it?", "image": "wide.png", "chat": [{"role": "user", "content": parts}]}]
    write_picture_rows(tmp_path, rows)
    raw = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{{ t }}<|im_end|>\n<|im_start|>assistant\n<|im_end|>"
    by_hand = vectors(run(tmp_path, model, "raw", prompt={"text": raw, "images": "image"}))
    turns = vectors(run(tmp_path, model, "turns", prompt={"user": "{{ t }}", "prefill": "<|im_end|>", "images": "image"}))
    chats = vectors(run(tmp_path, model, "chats", prompt={"messages": "chat", "prefill": "<|im_end|>", "images": "image"}))
    alone = vectors(run(tmp_path, model, "alone", prompt={"images": "image"}))
    assert np.array_equal(by_hand, turns)
    assert np.array_equal(by_hand, chats)
    assert np.abs(by_hand - alone).max() > 0.01


def test_a_picture_that_cannot_be_used_costs_its_row_alone(tmp_path: Path) -> None:
    model = write_picture_embedder(tmp_path / "model", "qwen3_vl")
    rows = [ROWS[0], {"t": "gone", "image": "gone.png"}, {"t": "cut", "image": "cut.png"}, ROWS[2]]
    write_picture_rows(tmp_path, rows)
    (tmp_path / "cut.png").write_bytes((tmp_path / "wide.png").read_bytes()[:200])
    found = run(tmp_path, model, code=3)
    assert [one["row"] for one in found] == [0, 3]
    errors = table_of(tmp_path / "run" / "errors").to_pylist()
    assert [(one["row"], one["stage"]) for one in errors] == [(1, "image"), (2, "image")]
    assert "gone.png is not there" in errors[0]["message"]


@pytest.mark.draws
def test_a_run_can_be_checked_planned_and_shown(tmp_path: Path) -> None:
    model = write_picture_embedder(tmp_path / "model", "qwen3_vl")
    write_picture_rows(tmp_path)
    run(tmp_path, model)
    command = CliRunner()
    verified = command.invoke(cli, ["verify", "--rescore", str(tmp_path / "run")])
    assert verified.exit_code == 0, verified.output
    assert f"{len(ROWS)} rows" in verified.output, verified.output
    planned = command.invoke(cli, ["plan", str(tmp_path / "run.yaml"), "--output", str(tmp_path / "other")])
    assert planned.exit_code == 0, planned.output
    assert "5 in prompts, 11 of the tokens above: 1 to 3 each, mean 2.2; 3" in planned.output, planned.output
    assert "data:image/jpeg;base64" in (tmp_path / "run" / "report.html").read_text()


def test_texts_alone_are_read_as_beside_pictures_and_no_tower_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_picture_embedder(tmp_path / "model", "qwen3_vl", prompt=SYSTEM)
    write_picture_rows(tmp_path, [row for row in ROWS if row["t"]])
    texts = [{"t": row["t"], "image": None} for row in ROWS if row["t"]]
    monkeypatch.setattr("mlx_bulk.runner.vision.picture_reader.open_tower", lambda *_: pytest.fail("the tower was opened"))
    found = vectors(run(tmp_path, model, prompt={"text": "{{ t }}"}))
    assert np.abs(found - their_vectors(sentence_transformer(model), texts)).max() <= CLOSE


def test_a_language_models_texts_go_through_its_chat_template_where_its_files_say_so(tmp_path: Path) -> None:
    sentence_transformers: Any = pytest.importorskip("sentence_transformers")
    model = qwen3(tmp_path / "model")
    turns = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}it: {% endif %}"
    )
    (model / "chat_template.jinja").write_text(turns)
    write_modules(model, ("Pooling", {"pooling_mode": "lasttoken", "embedding_dimension": 96}), ("Normalize", {}))
    message = {"text": FORWARD, "message": {**FORWARD, "format": "flat"}}
    write_json(model / "sentence_bert_config.json", {"modality_config": message, "module_output_name": "token_embeddings"})
    rows = [{"t": row["t"], "image": None} for row in ROWS if row["t"]]
    write_picture_rows(tmp_path, rows)
    theirs = sentence_transformers.SentenceTransformer(str(model), device="cpu")
    expected = np.stack([theirs.encode([row["t"]], prompt=SYSTEM)[0] for row in rows])
    found = vectors(run(tmp_path, model, prompt={"text": "{{ t }}"}, embed={"prompt": SYSTEM}))
    assert np.abs(found - expected).max() <= CLOSE
    plain = np.stack([theirs.encode([row["t"]])[0] for row in rows])
    assert np.abs(plain - expected).max() > 0.01


def test_bytes_depend_neither_on_memory_for_features_nor_on_where_a_run_stopped(tmp_path: Path) -> None:
    model = write_picture_embedder(tmp_path / "model", "qwen3_vl")
    write_picture_rows(tmp_path, [row for row in ROWS * 2 if isinstance(row["image"], str)])
    batch = {"deterministic": True, "rows": 4, "rows_per_shard": 2}
    whole = vectors(run(tmp_path, model, "whole", batch=batch))
    none = vectors(run(tmp_path, model, "none", batch={**batch, "image_memory": 0}))
    data = str(tmp_path / "rows.jsonl")
    part = run(tmp_path, model, "part", batch=batch, data={"path": data, "limit": 3})
    resumed = vectors(run(tmp_path, model, "part", batch=batch, data={"path": data}))
    assert len(part) == 3
    assert len(whole) == 6
    assert np.array_equal(whole, none)
    assert np.array_equal(whole, resumed)

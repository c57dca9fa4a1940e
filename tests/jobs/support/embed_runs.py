"""Runs embedding jobs on a tiny BERT with sentence-transformers' files, and computes its vectors by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from numpy.typing import NDArray

from ...encoder_checkpoints import tiny_bert
from ...sentence_folders import write_json, write_modules
from .bench import Done, Record, table_of

TEXTS = [
    "How many apples has the cat?",
    "a",
    "two dogs and three cats cost more",
    "",
    "the price of each good day is a total of what you buys",
]
WIDTH = 32  # of the tiny BERT's states
PROMPTS = {"query": "what is ", "passage": "the day: "}


def embedder(folder: Path, pooling: str | None = "mean", normalize: bool = True, **settings: Any) -> Path:
    """Writes the model. settings: ``prompts`` and ``default_prompt_name``, or those of the transformer (max_seq_length, …)."""
    if not (folder / "config.json").exists():
        tiny_bert(folder)
    if pooling is not None:
        modules: list[tuple[str, dict[str, Any]]] = [("Pooling", {"pooling_mode": pooling, "embedding_dimension": WIDTH})]
        modules[0][1].update(include_prompt=settings.pop("include_prompt", True))
        write_modules(folder, *modules, *([("Normalize", {})] if normalize else []))
    prompts = {"prompts": settings.pop("prompts", PROMPTS), "default_prompt_name": settings.pop("default_prompt_name", None)}
    write_json(folder / "config_sentence_transformers.json", {**prompts, "similarity_fn_name": "cosine"})
    write_json(folder / "sentence_bert_config.json", settings)
    return folder


def embed(root: Path, model: Path, *options: str, texts: Sequence[Any] = TEXTS, code: int = 0, **sections: Any) -> Done:
    """Runs ``mlx-bulk run`` on an embedding job over ``texts``, which must end with ``code``."""
    rows: list[Record] = [{"t": text} for text in texts]
    (root / "rows.jsonl").write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    config: dict[str, Any] = {
        "job": "embed",
        "model": {"path": str(model)},
        "data": {"path": str(root / "rows.jsonl")},
        "prompt": {"text": "{{ t }}"},
        "output": {"path": str(root / "run")},
    }
    path = root / "config.yaml"
    path.write_text(yaml.safe_dump(config | sections), encoding="utf-8")
    result = CliRunner().invoke(cli, ["run", str(path), "--no-supervised", *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert result.exit_code == code, result.output
    output = Path(options[options.index("--output") + 1]) if "--output" in options else root / "run"
    return Done(
        result.exit_code, result.stdout, result.stderr, output, table_of(output / "results"), table_of(output / "errors").to_pylist()
    )


def vectors(done: Done) -> NDArray[Any]:
    """The vectors [N, D] of a finished run, by row."""
    column = done.table.sort_by("row").column("embedding").combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)

"""Tiny decoder checkpoints with a classifier's head, and jobs over them without a loaded model."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_bulk.configs.classify import ClassifyConfig
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.jobs.classify.classify import ClassifyJob
from mlx_bulk.runner.core.outcomes import Pooled
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.pipeline.job import Parts
from mlx_bulk.runner.text.tokenizer import load_tokenizer

from ...checkpoints import EOS, LLAMA, write_checkpoint

Json = dict[str, Any]


def write_classifier(folder: Path, labels: int = 1, names: list[str] | None = None, **config: Any) -> Path:
    """Writes a Llama with ``score.weight`` in place of the LM head, as ``LlamaForSequenceClassification`` saves it."""
    settings = LLAMA | config
    write_checkpoint(folder, settings)
    weights: dict[str, mx.array] = mx.load(str(folder / "model.safetensors"))  # pyright: ignore[reportAssignmentType] - a dict here
    body = {name: weight for name, weight in weights.items() if not name.startswith("lm_head")}
    score = np.random.default_rng(3).normal(size=(labels, settings["hidden_size"])).astype(np.float32)
    mx.save_safetensors(str(folder / "model.safetensors"), body | {"score.weight": mx.array(score)}, metadata={"format": "pt"})
    kind: Json = {"architectures": ["LlamaForSequenceClassification"], "pad_token_id": EOS}
    kind["id2label"] = {str(at): name for at, name in enumerate(names or [f"LABEL_{at}" for at in range(labels)])}
    (folder / "config.json").write_text(json.dumps(settings | kind))
    return folder


def job_of(folder: Path | str, rows: list[Json], classify: Json, **sections: Any) -> ClassifyJob:
    """Returns a job over ``rows`` with the checkpoint's tokenizer."""
    least = {"job": "classify", "model": {"path": str(folder)}, "data": {"path": "rows.jsonl"}, "output": {"path": "out"}}
    config = ClassifyConfig.model_validate(least | {"classify": classify} | sections)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    ClassifyJob.check(config, columns)
    checkpoint = find_checkpoint(ModelConfig(path=str(folder)))
    prompt = config.prompt
    tokenizer = load_tokenizer(checkpoint.folder, prompt.chat_template, prompt.chat_template_args, trust_remote_code=False)
    vocabulary = int(checkpoint.config["vocab_size"])
    family = str(checkpoint.config["model_type"])
    return ClassifyJob(Parts(config, columns, None, tokenizer, checkpoint.context, None, vocabulary, family, checkpoint.eos, checkpoint))


def ids_of(job: ClassifyJob, row: Json) -> list[list[int]]:
    """Returns the token ids of a row's inputs."""
    [request] = job.requests(Row(0, "0", row))
    return [each.ids.tolist() for each in request.inputs]


def record_of(job: ClassifyJob, row: Json, logits: Any) -> Json:
    """Returns the record of a row whose n inputs have these logits [n, D]."""
    [request] = job.requests(found := Row(0, "0", row))
    return job.record(found, request, Pooled(0, np.array(logits, np.float32)))

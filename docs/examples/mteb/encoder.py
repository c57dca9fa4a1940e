"""An encoder for MTEB on mlx-bulk, and a command that runs tasks with it:

python docs/examples/mteb/encoder.py MODEL [TASK …]
"""

import sys
from pathlib import Path
from typing import Any

import mlx_bulk  # above anything that imports mlx
import mteb
import numpy as np
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType


class BulkEncoder(AbsEncoder):
    """Embeds what tasks ask for. Prompts are chosen as mteb chooses them for sentence-transformers."""

    def __init__(self, model_name: str, revision: str | None = None, device: str | None = None, **kwargs: Any):
        self.embedder = mlx_bulk.load_embedder(model_name, revision=revision, **kwargs)
        self.model_prompts = {"query": "", "document": "", **self.embedder.prompts}
        about = {"name": f"mlx-bulk/{Path(model_name).name}", "revision": revision}
        self.mteb_model_meta = ModelMeta.create_empty({**about, "similarity_fn_name": ScoringFunction(self.embedder.similarity)})

    def encode(self, inputs: Any, *, task_metadata: Any, prompt_type: PromptType | None = None, **kwargs: Any) -> np.ndarray:
        """Returns vectors [n, D] of all texts of all batches."""
        prompt = self.model_prompts.get(self.get_prompt_name(task_metadata, prompt_type) or "")  # None: the model's default one
        return self.embedder.embed([text for batch in inputs for text in batch["text"]], prompt=prompt)


if __name__ == "__main__":
    model, *tasks = sys.argv[1:]
    results = mteb.evaluate(BulkEncoder(model), mteb.get_tasks(tasks=tasks), cache=None)
    for result in results.task_results:
        print(f"{result.task_name:30} {result.get_score():.4f}")

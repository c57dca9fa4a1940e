"""Tiny random embedders of texts and pictures with sentence-transformers' files, and its own vectors of them, without torchvision."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from mlx_bulk.runner.images import processors
from numpy.typing import NDArray
from PIL import Image

from .sentence_folders import write_json, write_modules
from .vision_checkpoints import write_vision_model
from .vision_folders import drawn, picture_bytes, write_vision_folder

FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
SYSTEM = "Represent the user's input."
PICTURES = {"wide.png": drawn(90, 40, 1), "tall.png": drawn(40, 100, 2), "small.png": drawn(30, 30, 3)}
# Rows with a picture, a text, both, two pictures, and a picture that another row has too.
ROWS: list[dict[str, Any]] = [
    {"t": "what do you see here?", "image": "wide.png"},
    {"t": None, "image": "tall.png"},
    {"t": "two dogs and three cats cost more than a good day", "image": None},
    {"t": "which of them is larger?", "image": ["small.png", "wide.png"]},
    {"t": None, "image": "small.png"},
    {"t": "a", "image": []},
]


def write_picture_embedder(
    folder: Path, kind: str, pooling: str = "lasttoken", *, messages: bool = True, prompt: str | None = None
) -> Path:
    """Writes the model with its files. messages: its files say that inputs go through the chat template. prompt: its default one."""
    settings = json.loads((write_vision_folder(folder, kind) / "config.json").read_text())
    placeholder = settings.get("image_token_id", settings.get("image_token_index"))
    made = write_vision_model(kind, folder, settings["vocab_size"], placeholder, image_size=28)
    width = made.model.config.text_config.hidden_size
    write_modules(folder, ("Pooling", {"pooling_mode": pooling, "embedding_dimension": width}), ("Normalize", {}))
    said: dict[str, Any] = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    said["modality_config"] = {"text": FORWARD, "image": FORWARD}
    if messages:
        said["modality_config"]["message"] = {**FORWARD, "format": "structured"}
        said["processing_kwargs"] = {"chat_template": {"add_generation_prompt": True}}
    write_json(folder / "sentence_bert_config.json", said)
    if prompt is not None:
        write_json(folder / "config_sentence_transformers.json", {"prompts": {"document": prompt}, "default_prompt_name": "document"})
    return folder


def write_picture_rows(folder: Path, rows: Sequence[Mapping[str, Any]] = ROWS) -> Path:
    """Writes rows.jsonl, and the pictures that it names beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in PICTURES.items():
        (folder / name).write_bytes(picture_bytes(image))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


def sentence_transformer(folder: Path) -> Any:
    """sentence-transformers' model of a folder, with our way to the processor: its own asks for torchvision."""
    import sentence_transformers  # pyright: ignore[reportMissingImports]

    module: Any = import_module("sentence_transformers.base.modules.transformer")
    from transformers import AutoTokenizer

    made = vars(processors)["_processor"]

    def processor(path: str, **_: Any) -> Any:
        config = json.loads((Path(path) / "config.json").read_text())
        return made(Path(path), config, AutoTokenizer.from_pretrained(path))

    theirs = module.AutoProcessor
    module.AutoProcessor = type("PilProcessor", (), {"from_pretrained": staticmethod(processor)})
    try:
        return sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    finally:
        module.AutoProcessor = theirs


def their_vectors(model: Any, rows: Sequence[Mapping[str, Any]] = ROWS) -> NDArray[np.float32]:
    """Its vectors [N, D] of rows, each alone: pictures first, as a row's are."""
    return np.stack([model.encode([_messages(row)], show_progress_bar=False)[0] for row in rows])


def _messages(row: Mapping[str, Any]) -> Any:
    named = [row["image"]] if isinstance(row["image"], str) else row["image"] or []
    images: list[Image.Image] = [PICTURES[name] for name in named]
    if len(images) > 1:
        texts = [] if row["t"] is None else [{"type": "text", "text": row["t"]}]
        return [{"role": "user", "content": [*({"type": "image", "image": image} for image in images), *texts]}]
    if not images:
        return row["t"]
    return {"image": images[0]} if row["t"] is None else {"image": images[0], "text": row["t"]}

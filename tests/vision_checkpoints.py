"""Tiny random vision models as transformers saves them, in the names of transformers 4 too, and their float32 logprobs of a row alone.

Weights are spread, so that a wrong mask, position or feature moves logprobs by more than 1.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from numpy.typing import NDArray

from .vision_configs import MAKERS, PLACEHOLDER, VOCABULARY, in_grids, made_pixels


@dataclass
class VisionModel:
    """A model of transformers', saved in ``folder``."""

    family: str
    folder: Path
    model: Any
    truths: dict[bytes, NDArray[np.float64]] = field(default_factory=dict[bytes, NDArray[np.float64]])

    @property
    def in_grids(self) -> bool:
        """Whether pictures have positions in rows and columns."""
        return in_grids(self.family)

    def picture(self, table: ImageTable, height: int, width: int, seed: int) -> PromptImage:
        """A picture of noise of so many tokens in height and width, where the family knows sizes."""
        inputs, tokens = made_pixels(self.family, self.model.config, height, width, seed)
        grid = (1, height, width) if self.in_grids else (1, 1, tokens)
        return table.register(f"{self.family} {height} {width} {seed}", tokens, grid, lambda: dict(inputs))

    def logprobs(self, ids: NDArray[np.int32], table: ImageTable) -> NDArray[np.float64]:
        """transformers' float32 log-softmax [T, V] of a row by itself, in one call. Remembered, by what the row's pictures are."""
        pictures = [f"{part.image.digest} {part.indices.tolist()}" for part in table.images_in(ids[None])]
        key = table.plain(ids).tobytes() + "".join(pictures).encode()
        if key not in self.truths:
            self.truths[key] = self._logprobs(ids, table)
        return self.truths[key]

    def _logprobs(self, ids: NDArray[np.int32], table: ImageTable) -> NDArray[np.float64]:
        import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)

        plain = torch.tensor(table.plain(ids)[None].astype(np.int64))
        feed: dict[str, Any] = {"input_ids": plain, "attention_mask": torch.ones_like(plain)}
        types = (plain == PLACEHOLDER).long()
        if self.family in ("gemma3", "paligemma"):
            feed["token_type_ids"] = types
        if self.in_grids:
            feed["mm_token_type_ids"] = types
        begins = [int(i) for i in ids if i >= 1 << 24 and table.image_of(int(i)).first == i]
        made = [table.image_of(i).inputs() for i in begins]
        if made:
            along = 1 if self.family in ("idefics3", "smolvlm") else 0
            feed |= {name: torch.tensor(together([one[name] for one in made], along)) for name in made[0]}
        with torch.no_grad():
            logits = self.model(**feed).logits[0].double().numpy()
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def embedding_scale(family: str, config: Any) -> float:
    """The spread of a token's embedding. Gemma's body multiplies by the root of the width, and its head is the embedding.

    With 1 there, a token's logit for itself is over 100: its model repeats the last token for sure, whatever stands before.
    """
    if family == "aya_vision":  # its head is its embedding, too
        return 0.25
    return config.text_config.hidden_size**-0.5 if family == "gemma3" else 1.0


def together(arrays: list[NDArray[Any]], along: int) -> NDArray[Any]:
    """Puts pictures' arrays behind each other; smaller ones are padded at their ends, as processors do."""
    most = np.max([array.shape for array in arrays], axis=0)
    padded = [np.pad(a, [(0, 0 if axis == along else most[axis] - a.shape[axis]) for axis in range(a.ndim)]) for a in arrays]
    return np.concatenate(padded, axis=along)


def write_vision_model(
    family: str, folder: Path, vocabulary: int = VOCABULARY, placeholder: int = PLACEHOLDER, image_size: int = 56, seed: int = 1
) -> VisionModel:
    """Makes a random model and saves it as transformers 5 does, for a tokenizer and an image processor of these sizes. seed: of weights."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers

    made, config = MAKERS[family](transformers)
    config.text_config.vocab_size, config.image_token_id = vocabulary, placeholder
    if isinstance(getattr(config.vision_config, "image_size", None), int) and config.vision_config.model_type != "pixtral":
        config.vision_config.image_size = image_size
    torch.manual_seed(0)
    model = made._from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim < 2:
                weight.add_(0.1 * noise)
            else:
                weight.copy_(noise * (embedding_scale(family, config) if "embed_tokens" in name else 1.2 / weight[0].numel() ** 0.5))
    model.float().eval().save_pretrained(folder)
    return VisionModel(family, folder, model)


def write_old_names(made: VisionModel, folder: Path) -> Path:
    """Writes the same checkpoint under the names that hub folders of transformers 4 have."""
    import mlx.core as mx

    folder.mkdir(parents=True)
    config: dict[str, Any] = json.loads((made.folder / "config.json").read_text())
    weights: Any = mx.load(str(made.folder / "model.safetensors"))
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    if made.family == "gemma3":
        text["rope_local_base_freq"], text["rope_theta"] = (rope[f"{kind}_attention"]["rope_theta"] for kind in ("sliding", "full"))
    else:
        text["rope_theta"] = rope["rope_theta"]
    if made.in_grids:
        config["vision_config"] = {k: v for k, v in config["vision_config"].items() if k != "rope_parameters"} | {"model_type": made.family}
        text["rope_scaling"] = {"type": "mrope", **{k: v for k, v in rope.items() if k.startswith("mrope")}}
    if made.family in ("qwen2_vl", "qwen2_5_vl"):  # the text's settings stood beside those of the whole
        config = {k: v for k, v in text.items() if k != "model_type"} | {k: v for k, v in config.items() if k != "text_config"}
    if made.family in ("gemma3", "llava", "llava_next", "llava_onevision"):
        weights = {k.replace("vision_tower.", "vision_tower.vision_model."): v for k, v in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder

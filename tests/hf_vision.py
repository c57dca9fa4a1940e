"""Tiny random models of transformers that read pictures, rows for them, and the same text model on our side, with features of theirs.

Weights are spread so that a wrong position, mask or feature moves logprobs by more than 1. Windows are shorter than rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import sqrt
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_bulk.runner.caches.image_blocks import attend_in_blocks
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_bulk.runner.models.config_compat import mlx_lm_settings
from mlx_bulk.runner.patched_layers.deepstack import add_deepstack
from mlx_bulk.runner.patched_layers.mended_layers import mend_layers
from mlx_bulk.runner.patched_layers.rope_layers import sections_of, turn_by_sections
from mlx_bulk.runner.vision.features import FeatureCache, ImageFeatures
from mlx_bulk.runner.vision.image_embedding import read_pictures_with
from mlx_bulk.runner.vision.picture_reader import sees_pictures_both_ways
from numpy.typing import NDArray

from . import vision_configs
from .vision_configs import END, START, VOCABULARY
from .vision_configs import PLACEHOLDER as IMAGE

GEMMA_TOKENS, GEMMA_SIZE = 4, 56
WINDOW = 12
TEXT = vision_configs.TEXT | {"tie_word_embeddings": False}
PATCHES: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "in_channels": 3,
}
EXPERTS: dict[str, Any] = {
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
OUTSIDE = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")  # of layers, of a text model's weights
MARKS = {"image_token_id": IMAGE, "video_token_id": 291, "vision_start_token_id": START, "vision_end_token_id": END}


def rope(sections: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections), **more}}


# The class in transformers without its ending, and its config's arguments.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": (
        "Qwen2VL",
        {
            "text_config": TEXT | rope([2, 3, 3]),
            "vision_config": {**PATCHES, "depth": 3, "embed_dim": 64, "patch_size": 14, "mlp_ratio": 2},
            **MARKS,
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {
            "text_config": TEXT | rope([2, 3, 3]),
            "vision_config": {**PATCHES, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1, 3]},
            **MARKS,
        },
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {
            "text_config": TEXT | {"head_dim": 16} | rope([3, 3, 2], mrope_interleaved=True),
            "vision_config": {**PATCHES, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2]},
            **MARKS,
        },
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoe",
        {
            "text_config": TEXT | EXPERTS | rope([3, 3, 2], mrope_interleaved=True),
            "vision_config": {**PATCHES, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2]},
            **MARKS,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "text_config": {**TEXT, "head_dim": 16, "num_hidden_layers": 7, "sliding_window": WINDOW, "query_pre_attn_scalar": 16},
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": GEMMA_SIZE,
                "patch_size": 14,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": GEMMA_TOKENS,
            "image_token_index": IMAGE,
            "boi_token_index": START,
            "eoi_token_index": END,
        },
    ),
}
# Tokens before, the pictures' sizes in tokens (height, width), tokens after. A second token of text stands between pictures.
ROWS: list[tuple[int, list[tuple[int, int]], int]] = [
    (5, [(2, 3)], 7),
    (3, [(4, 2)], 20),
    (9, [], 11),
    (2, [(1, 1), (3, 2)], 4),
    (0, [(2, 2)], 3),
    (1, [], 2),
    (5, [(2, 3)], 9),
]


def torch_model(architecture: str) -> Any:
    """A model of transformers in float32 with random weights, the same each time."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers

    name, arguments = ARCHITECTURES[architecture]
    config = getattr(transformers, f"{name}Config")(**arguments)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")._from_config(config, attn_implementation="eager").float().eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, weight in model.named_parameters():
            if weight.ndim < 2:
                weight.add_(0.1 * torch.randn(weight.shape, generator=draw))
            else:
                fan = float(weight[0].numel()) ** 0.5 / 1.2
                if "embed_tokens" in parameter_name:
                    fan = sqrt(TEXT["hidden_size"]) if architecture == "gemma3" else 1.0  # the body multiplies by the root
                weight.copy_(torch.randn(weight.shape, generator=draw) / fan)
        model.tie_weights()
    return model


def text_network(model: Any) -> Any:
    """mlx-lm's network with the text model's weights, which attends to pictures."""
    config: dict[str, Any] = model.config.to_dict()
    config |= mlx_lm_settings(config)
    kind = config["model_type"]
    module = import_module(f"mlx_lm.models.{'qwen2_vl' if kind == 'qwen2_5_vl' else kind}")
    network = module.Model(module.ModelArgs.from_dict(config | {"vocab_size": VOCABULARY}))
    weights = {name: mx.array(array.detach().numpy()) for name, array in model.state_dict().items()}
    if kind == "qwen3_vl_moe":  # experts lie the other way round on the hub
        weights = {name: array.swapaxes(1, 2) if ".experts." in name else array for name, array in weights.items()}
        network.load_weights(list(network.sanitize(weights).items()))
    else:
        own = {name.replace("model.language_model.", "model."): array for name, array in weights.items() if ".visual." not in name}
        own = {name: array for name, array in own.items() if name.startswith("model.layers.") or name in OUTSIDE}
        if kind == "gemma3":  # its head is its embedding
            del own["lm_head.weight"]
        network.language_model.load_weights(list(network.language_model.sanitize(own).items()))
    mend_layers(network)
    if (sections := sections_of(config)) is not None:
        turn_by_sections(network, sections)
    add_deepstack(network, len(config["vision_config"].get("deepstack_visual_indexes") or ()))
    if sees_pictures_both_ways(config):
        attend_in_blocks(network)
    mx.eval(network.parameters())
    return network.eval()


@dataclass
class TorchTower:
    """Features of pictures by transformers' own tower. seen: digests, in order."""

    model: Any
    seen: list[str] = field(default_factory=list[str])

    @property
    def nbytes(self) -> int:
        """Its weights are nobody's."""
        return 0

    @property
    def width(self) -> int:
        """Numbers of a feature."""
        return TEXT["hidden_size"]

    @property
    def levels(self) -> int:
        """Blocks that add features of their own."""
        return len(getattr(self.model.config.vision_config, "deepstack_visual_indexes", ()))

    def make_ready(self) -> None:
        """There is nothing to read."""

    def features(self, image: PromptImage) -> ImageFeatures:
        import torch  # pyright: ignore[reportMissingImports]

        self.seen.append(image.digest)
        with torch.no_grad():
            out = self.model.get_image_features(**{name: torch.tensor(array) for name, array in image.inputs().items()})
        own = mx.array(torch.cat(list(out.pooler_output)).numpy())
        if self.model.config.model_type == "gemma3":  # the body multiplies by the root
            return ImageFeatures(own / sqrt(TEXT["hidden_size"]))
        stacked = getattr(out, "deepstack_features", None) or []
        return ImageFeatures(own, tuple(mx.array(torch.cat(list(each)).numpy()) for each in stacked))


class VisionPair:
    """A model of transformers, the same as we run it, and made-up pictures for both."""

    def __init__(self, architecture: str):
        self.architecture, self.model = architecture, torch_model(architecture)
        self.network, self.table = text_network(self.model), ImageTable(IMAGE)
        self.tower = TorchTower(self.model)
        self.cache = FeatureCache(self.tower)
        read_pictures_with(self.network, self.cache)
        self._alive: list[PromptImage] = []
        self._truths: dict[bytes, NDArray[np.float64]] = {}

    def picture(self, height: int, width: int, seed: int = 0) -> PromptImage:
        """A picture of noise, of so many rows and columns of tokens; Gemma's are all alike in size."""
        noise = np.random.default_rng([height, width, seed])
        if self.architecture == "gemma3":
            pixels = noise.standard_normal((1, 3, GEMMA_SIZE, GEMMA_SIZE)).astype(np.float32)
            made: dict[str, Any] = {"pixel_values": pixels}
            image = self.table.register(f"{height} {width} {seed}", GEMMA_TOKENS, (1, 1, GEMMA_TOKENS), lambda: made)
        else:
            size = self.model.config.vision_config.patch_size
            patches = noise.standard_normal((4 * height * width, 3 * 2 * size * size)).astype(np.float32)
            made = {"pixel_values": patches, "image_grid_thw": np.array([[1, 2 * height, 2 * width]], np.int64)}
            image = self.table.register(f"{height} {width} {seed}", height * width, (1, height, width), lambda: made)
        self._alive.append(image)
        return image

    def rows(self) -> list[tuple[list[int | PromptImage], NDArray[np.int32]]]:
        """Rows with none, one and two pictures: their parts, and their ids."""
        draw, rows = np.random.default_rng(0), list[tuple[list[int | PromptImage], NDArray[np.int32]]]()
        for before, sizes, after in ROWS:
            parts: list[int | PromptImage] = list(draw.integers(5, 280, before).tolist())
            for height, width in sizes:
                parts += [START, self.picture(height, width), END, *draw.integers(5, 280, 2).tolist()]
            parts += draw.integers(5, 280, after).tolist()
            rows.append((parts, ids_of(parts)))
        return rows

    def truth(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        """Logprobs [T, V] of a row by itself in one call, by transformers. Remembered."""
        key = ids.astype(np.int32).tobytes()
        if key not in self._truths:
            self._truths[key] = self._truth(ids)
        return self._truths[key]

    def _truth(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        import torch  # pyright: ignore[reportMissingImports]

        plain = torch.tensor(self.table.plain(ids.astype(np.int32)).astype(np.int64))[None]
        inputs: dict[str, list[Any]] = {}
        for image in self.in_order(ids):
            for name, array in image.inputs().items():
                inputs.setdefault(name, []).append(array)
        feed: dict[str, Any] = {name: torch.tensor(np.concatenate(arrays)) for name, arrays in inputs.items()}
        types = "token_type_ids" if self.architecture == "gemma3" else "mm_token_type_ids"
        feed |= {"input_ids": plain, "attention_mask": torch.ones_like(plain), types: (plain == IMAGE).long()}
        with torch.no_grad():
            logits = self.model(**feed).logits[0].double().numpy()
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def in_order(self, ids: NDArray[np.integer]) -> list[PromptImage]:
        """The pictures of a row, as often as they stand there."""
        found: list[PromptImage] = []
        for at in np.flatnonzero(ids >= 1 << 24).tolist():
            image = self.table.image_of(int(ids[at]))
            if image.first == ids[at]:
                found.append(image)
        return found


def ids_of(parts: Sequence[int | PromptImage]) -> NDArray[np.int32]:
    """A row's ids [T]."""
    return np.concatenate([part.ids if isinstance(part, PromptImage) else np.array([part], np.int32) for part in parts])

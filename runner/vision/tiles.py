"""Puts the features of a picture's tiles together, as LLaVA-NeXT and LLaVA-OneVision do: the whole picture, then its tiles as one picture.

The processor makes a small picture of the whole, and one that is cut into tiles; what it pads that with is left out here. A newline's
feature ends each row:

    W W        the whole
    A A B B n  tiles A and B beside each other
    A A B B n
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import mlx.core as mx
import numpy as np

Config = dict[str, Any]

TILED = ("llava_next", "llava_onevision")  # model types whose features are put together here
_SHRUNK = 1.1  # from how many times too long a side is on, a picture's tiles are made smaller


@dataclass(frozen=True, slots=True)
class TileRule:
    """How a checkpoint's tiles are cut and put together.

    resolutions: (height, width) in pixels to which pictures are padded. tile: pixels of a tile's side. side: features of it.
    layers: of the tower, whose states become features. without_first: their first feature is no patch's. most_tiles: as many features
    as so many tiles have are kept at most; None for all.
    """

    resolutions: tuple[tuple[int, int], ...]
    tile: int
    side: int
    layers: tuple[int, ...]
    without_first: bool
    most_tiles: int | None


def tile_rule(config: Config) -> TileRule | None:
    """Returns the rule of a vision model's config; None for a model without tiles of this kind."""
    kind = config.get("model_type")
    if kind not in TILED:
        return None
    from transformers import CONFIG_MAPPING

    told: Config = CONFIG_MAPPING[kind]().to_dict() | {name: value for name, value in config.items() if value is not None}
    vision, layers = told["vision_config"], told["vision_feature_layer"]
    tile = int(vision.get("image_size", 336 if kind == "llava_next" else 384))
    return TileRule(
        tuple((int(height), int(width)) for height, width in told["image_grid_pinpoints"]),
        tile,
        tile // int(vision.get("patch_size", 14)),
        (layers,) if isinstance(layers, int) else tuple(layers),
        told["vision_feature_select_strategy"] == "default",
        int(told["vision_aspect_ratio"].removeprefix("anyres_max_")) if kind == "llava_onevision" else None,
    )


def tile_features(model: Any, rule: TileRule, inputs: dict[str, mx.array]) -> mx.array:
    """Returns the features [tokens, H] of one picture. model: mlx-vlm's; inputs: what the processor made of the picture."""
    pixels = inputs["pixel_values"].reshape(-1, *inputs["pixel_values"].shape[-3:])
    states = model.vision_tower(pixels.transpose(0, 2, 3, 1), output_hidden_states=True)[-1]
    chosen = mx.concatenate([states[layer] for layer in rule.layers], axis=-1)
    features = model.multi_modal_projector(chosen[:, 1:] if rule.without_first else chosen)
    height, width = (int(each) for each in np.array(inputs["image_sizes"]).ravel())
    return packed_tiles(features, model.image_newline, rule, (height, width))


def packed_tiles(features: mx.array, newline: mx.array, rule: TileRule, size: tuple[int, int]) -> mx.array:
    """Puts features [tiles, side², H] of a picture together. The first are the whole's. size: the picture's height and width in pixels."""
    newline = newline.astype(features.dtype)
    if len(features) == 1:
        return mx.concatenate([features[0], newline[None]])
    from transformers.image_processing_utils import select_best_resolution

    height, width = select_best_resolution(size, [list(each) for each in rule.resolutions])
    rows, columns, side = height // rule.tile, width // rule.tile, rule.side
    tiles = features[1:].reshape(rows, columns, side, side, -1).transpose(0, 2, 1, 3, 4).reshape(rows * side, columns * side, -1)
    tiles = _without_padding(tiles, size)
    if rule.most_tiles is not None:
        times = sqrt(tiles.shape[0] * tiles.shape[1] / (rule.most_tiles * side**2))
        if times > _SHRUNK:
            tiles = _shrunk(_shrunk(tiles, int(tiles.shape[0] // times), 0), int(tiles.shape[1] // times), 1)
    ends = mx.broadcast_to(newline, (tiles.shape[0], 1, len(newline)))
    return mx.concatenate([features[0], mx.concatenate([tiles, ends], axis=1).reshape(-1, len(newline))])


def _without_padding(tiles: mx.array, size: tuple[int, int]) -> mx.array:
    """Cuts off what pads a picture of this size above and below, or left and right. tiles [rows, columns, H]."""
    (height, width), (rows, columns) = size, tiles.shape[:2]
    if width / height > columns / rows:
        cut = (rows - int(round(height * (columns / width), 7))) // 2
        return tiles[cut : rows - cut]
    cut = (columns - int(round(width * (rows / height), 7))) // 2
    return tiles[:, cut : columns - cut]


def _shrunk(tiles: mx.array, length: int, axis: int) -> mx.array:
    """Returns ``length`` features along an axis: each lies between the two nearest of the old ones."""
    old = tiles.shape[axis]
    at = np.clip((np.arange(length) + 0.5) * (old / length) - 0.5, 0, old - 1)
    before = np.floor(at).astype(np.int32)
    shares = mx.array((at - before).astype(np.float32)).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1)).astype(tiles.dtype)
    after = np.minimum(before + 1, old - 1)
    return mx.take(tiles, mx.array(before), axis) * (1 - shares) + mx.take(tiles, mx.array(after), axis) * shares

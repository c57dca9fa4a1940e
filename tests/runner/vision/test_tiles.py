"""How features of tiles are put together: place by place here, and against transformers' own function of the same name and arguments."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.vision.tiles import TileRule, packed_tiles, tile_rule

PINPOINTS = ((56, 112), (112, 56), (112, 112), (56, 168))
SIDE, WIDTH = 4, 3
SIZES = [
    (1, 1),
    (30, 60),
    (60, 30),
    (17, 91),
    (91, 17),
    (56, 56),
    (200, 199),
    (199, 200),
    (3, 500),
    (500, 3),
    (49, 147),
    (23, 46),
    (7, 3),
    (147, 392),
]


def rule(most: int | None = None) -> TileRule:
    return TileRule(PINPOINTS, 56, SIDE, (-1,), without_first=False, most_tiles=most)


def features(rows: int, columns: int) -> mx.array:
    noise = np.random.default_rng([rows, columns]).standard_normal((1 + rows * columns, SIDE * SIDE, WIDTH))
    return mx.array(noise.astype(np.float32))


NEWLINE = mx.array([7.0, 8.0, 9.0])


@pytest.mark.parametrize(("size", "rows", "columns", "cut"), [((56, 112), 1, 2, 0), ((28, 112), 1, 2, 1), ((112, 112), 2, 2, 0)])
def test_each_feature_is_at_its_place(size: tuple[int, int], rows: int, columns: int, cut: int) -> None:
    """cut: rows of padding above and below."""
    made = features(rows, columns)
    every = np.array(made)
    expected = [every[0, at] for at in range(SIDE * SIDE)]
    for y in range(cut, rows * SIDE - cut):
        for x in range(columns * SIDE):
            tile = 1 + (y // SIDE) * columns + x // SIDE
            expected.append(every[tile, (y % SIDE) * SIDE + x % SIDE])
        expected.append(np.array(NEWLINE))
    np.testing.assert_array_equal(np.array(packed_tiles(made, NEWLINE, rule(), size)), np.stack(expected))


def test_one_of_several_pictures_has_no_tiles() -> None:
    made = features(1, 2)[:1]
    np.testing.assert_array_equal(np.array(packed_tiles(made, NEWLINE, rule(), (9, 9))), np.concatenate([made[0], NEWLINE[None]]))


def test_only_two_model_types_have_such_a_rule() -> None:
    assert tile_rule({"model_type": "llava"}) is None
    found = tile_rule({"model_type": "llava_next", "vision_config": {}})
    assert found is not None
    assert (found.resolutions[0], found.tile, found.side, found.layers, found.without_first) == ((336, 672), 336, 24, (-2,), True)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["LlavaNext", "LlavaOnevision"])
@pytest.mark.parametrize("most", [1, 2, 9])
def test_all_sizes_are_put_together_as_in_transformers(kind: str, most: int) -> None:
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers
    from transformers.image_processing_utils import select_best_resolution

    vision = SimpleNamespace(image_size=56, patch_size=14)
    theirs = SimpleNamespace(config=SimpleNamespace(vision_config=vision, image_grid_pinpoints=[list(each) for each in PINPOINTS]))
    more: dict[str, Any] = {"vision_feature_select_strategy": "full"}
    if kind == "LlavaOnevision":
        more = {"vision_aspect_ratio": f"anyres_max_{most}"}
    pack = getattr(transformers, f"{kind}Model").pack_image_features
    for size in SIZES:
        height, width = select_best_resolution(size, [list(each) for each in PINPOINTS])
        made = features(height // 56, width // 56)
        for own in (made, made[:1]):
            [expected], _ = pack(
                theirs, [torch.tensor(np.array(own))], torch.tensor([size]), image_newline=torch.tensor([7.0, 8.0, 9.0]), **more
            )
            ours = np.array(packed_tiles(own, NEWLINE, rule(most if kind == "LlavaOnevision" else None), size))
            assert ours.shape == tuple(expected.shape)
            np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=5e-6)  # torch finds places between features in float32

"""Which models read pictures."""

from pathlib import Path

import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.vision.picture_reader import read_pictures, sees_pictures_both_ways
from mlx_bulk.runner.vision.towers import placeholder_of

from ..support.tiny import as_it_came


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("of_next_year", "how its text model takes pictures is not known"),
        ("paligemma", "its prompts see themselves both ways, text too"),
        ("lfm2_vl", "its image processor needs torch"),
    ],
)
def test_other_models_are_refused_with_the_reason(kind: str, why: str) -> None:
    config = {"model_type": kind, "vision_config": {}, "image_token_id": 7, "text_config": {"hidden_size": 64}}
    with pytest.raises(ModelError, match=rf"model \({kind}\) cannot read pictures here: {why}; expected one of qwen2_vl"):
        read_pictures(as_it_came("llama"), Path("model"), config, None)


def test_gemma_3_and_models_that_say_so_see_pictures_both_ways() -> None:
    assert sees_pictures_both_ways({"model_type": "gemma3"})
    assert sees_pictures_both_ways({"model_type": "gemma4", "text_config": {"use_bidirectional_attention": "vision"}})
    assert not sees_pictures_both_ways({"model_type": "qwen2_vl", "text_config": {}})


def test_the_placeholder_is_that_of_a_model_with_a_tower() -> None:
    assert placeholder_of({"image_token_id": 7, "vision_config": {}}) == 7
    assert placeholder_of({"image_token_index": 8, "vision_config": {}}) == 8
    assert placeholder_of({"image_token_id": 7}) is None

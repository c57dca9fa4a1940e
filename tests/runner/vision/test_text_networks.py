"""Text models inside of vision models: their weights' names in each dialect, and their networks."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_bulk.runner.vision.text_networks import VisionText, VisionTextArguments, text_weights, vision_text_classes

from ..support.tiny import CONFIGS, as_it_came

TEXT = CONFIGS["llama"] | {"model_type": "llama"}


def whole(names: dict[str, mx.array], body: str, head: str) -> dict[str, mx.array]:
    """A plain language model's weights under the names of a vision model's checkpoint, and one of the tower's beside them."""
    moved = {f"{head}{name}" if name.startswith("lm_head.") else f"{body}{name.removeprefix('model.')}": w for name, w in names.items()}
    return moved | {"vision_tower.vision_model.embeddings.weight": mx.zeros(1), "multi_modal_projector.linear_1.weight": mx.zeros(1)}


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("language_model.model.", "language_model."),  # LLaVA on the hub
        ("model.language_model.", ""),  # transformers 5
        ("model.text_model.", ""),  # Idefics 3
        ("language_model.", "language_model."),  # mlx-vlm's Idefics 3
        ("text_model.", ""),
    ],
)
def test_weights_of_each_dialect_make_the_same_network(body: str, head: str) -> None:
    plain = as_it_came("llama")
    weights: dict[str, Any] = dict(tree_flatten(plain.parameters()))
    assert text_weights(whole(weights, body, head)).keys() == weights.keys()
    network = VisionText(VisionTextArguments("llava", dict(TEXT)))
    network.load_weights(list(network.sanitize(whole(weights, body, head)).items()))
    tokens = mx.array([[1, 2, 3]])
    assert mx.array_equal(network(tokens), plain(tokens))


def test_a_checkpoint_without_a_head_ties_it() -> None:
    weights: dict[str, Any] = dict(tree_flatten(as_it_came("llama").parameters()))
    del weights["lm_head.weight"]
    network = VisionText(VisionTextArguments("llava", dict(TEXT)))
    network.load_weights(list(network.sanitize(whole(weights, "model.language_model.", "")).items()))
    states = network.language_model.model(mx.array([[1, 2]]))
    tied = np.array(states @ weights["model.embed_tokens.weight"].T)
    np.testing.assert_allclose(np.array(network(mx.array([[1, 2]]))), tied, rtol=0, atol=1e-4)


def test_a_vision_model_without_a_file_of_mlx_lms_is_its_text_model() -> None:
    vision = {"vision_config": {}, "text_config": TEXT}
    assert vision_text_classes(vision | {"model_type": "pixtral"}) == (VisionText, VisionTextArguments)
    assert vision_text_classes(vision | {"model_type": "llava"}) == (VisionText, VisionTextArguments)
    assert vision_text_classes(vision | {"model_type": "of next year"}) == (VisionText, VisionTextArguments)
    assert vision_text_classes(vision | {"model_type": "qwen2_vl"}) is None
    assert vision_text_classes(TEXT) is None

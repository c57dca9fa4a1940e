"""A tower's features: our kernels are tried on its first picture, and what does not fit is refused. mlx-vlm's place has a made-up model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_bulk.runner.patched_layers import cpu_layers
from mlx_bulk.runner.patched_layers.layer_patching import is_patched
from mlx_bulk.runner.vision import towers
from mlx_bulk.runner.vision.towers import TextStandIn, Tower

WIDTH, TOKENS, PLACEHOLDER = 16, 6, 7
PIXELS = np.random.default_rng(0).standard_normal((TOKENS, 32)).astype(np.float32)


class MadeUp(nn.Module):
    """A projection in the place of mlx-vlm's model."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.language_model = nn.Linear(32, WIDTH), TextStandIn(WIDTH, mx.float32)
        self.seen: list[Any] = []

    def get_input_embeddings(self, ids: mx.array, pixels: mx.array, **inputs: mx.array) -> Any:
        assert self.language_model.embed_tokens(ids).shape == (1, TOKENS, WIDTH)
        assert inputs["sizes"].dtype == mx.int32
        return SimpleNamespace(inputs_embeds=self.project(pixels)[None], deepstack_visual_embeds=None)


def picture(tokens: int = TOKENS) -> PromptImage:
    inputs = {"pixel_values": PIXELS, "sizes": np.array([[2, 3]], np.int64)}
    return ImageTable(PLACEHOLDER).register("p", tokens, (1, 1, tokens), lambda: dict(inputs))


def tower() -> Tower:
    made = Tower(MadeUp().eval(), PLACEHOLDER)
    made.make_ready()
    return made


@pytest.mark.cpu_path("it tries the CPU's own kernels")
def test_kernels_come_in_with_the_first_picture() -> None:
    mx.random.seed(0)
    fast = tower()
    expected = PIXELS @ np.array(fast.model.project.weight).T + np.array(fast.model.project.bias)
    assert not is_patched(fast.model)
    np.testing.assert_allclose(np.array(fast.features(picture()).embeddings), expected, rtol=0, atol=1e-5)
    assert is_patched(fast.model)


@pytest.mark.cpu_path("a GPU's buffers stay with mlx")
def test_buffers_of_one_picture_are_not_kept_beside_the_next() -> None:
    made = tower()
    features = made.features(picture())
    assert features.embeddings.shape == (TOKENS, WIDTH)
    assert mx.get_cache_memory() == 0


@pytest.mark.cpu_path("it tries the CPU's own kernels")
def test_kernels_that_change_features_go_out_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cpu_layers.FastLinear, "__call__", lambda self, x: mx.zeros((*x.shape[:-1], WIDTH)))
    made = tower()
    expected = PIXELS @ np.array(made.model.project.weight).T + np.array(made.model.project.bias)
    np.testing.assert_allclose(np.array(made.features(picture()).embeddings), expected, rtol=0, atol=1e-5)
    assert not is_patched(made.model)
    assert "mlx's own layers stay in the vision tower" in caplog.text


def test_features_of_another_shape_are_refused() -> None:
    made = tower()
    made.model.get_input_embeddings = lambda *_, **__: SimpleNamespace(inputs_embeds=mx.zeros((1, 5, WIDTH)), deepstack_visual_embeds=None)
    with pytest.raises(ModelError, match=r"features of shape \(5, 16\) for a picture of 6 tokens"):
        made.features(picture())


@pytest.mark.parametrize(("made", "message"), [(np.nan, "of 6 tokens are NaN or infinite"), (np.inf, "of 6 tokens are NaN or infinite")])
def test_features_that_are_no_numbers_are_refused(made: float, message: str) -> None:
    found = tower()
    found.model.get_input_embeddings = lambda *_, **__: SimpleNamespace(
        inputs_embeds=mx.zeros((1, TOKENS, WIDTH)).at[0, 3, 2].add(made), deepstack_visual_embeds=None
    )
    with pytest.raises(ModelError, match=message):
        found.features(picture())


def test_any_error_of_a_tower_is_the_pictures_and_a_shortage_is_not() -> None:
    found = tower()

    def fail(error: Exception) -> Any:
        def embeddings(*_: Any, **__: Any) -> Any:
            raise error

        return embeddings

    found.model.get_input_embeddings = fail(KeyError("layers.7"))
    with pytest.raises(ModelError, match=r"the vision tower fails on a picture of 6 tokens: 'layers\.7'"):
        found.features(picture())
    found.model.get_input_embeddings = fail(RuntimeError("[malloc] Unable to allocate 9 bytes."))
    with pytest.raises(RuntimeError, match="malloc"):
        found.features(picture())


@pytest.mark.oracle
@pytest.mark.parametrize("more", [{}, {"hidden_act": "gelu"}])
def test_a_pixtral_tower_with_another_activation_is_refused(tmp_path: Path, more: dict[str, str]) -> None:
    config = {"model_type": "mistral3", "image_token_index": PLACEHOLDER, "vision_config": {"model_type": "pixtral", **more}}
    with pytest.raises(ModelError, match=r"has the activation gelu .* mlx-vlm computes silu alone"):
        towers.open_tower(tmp_path, config, None)

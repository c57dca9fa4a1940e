"""Tests which weights are held packed too: their bytes, the room that they need, and that a loaded model's are counted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.kernels import linear, native
from mlx_bulk.runner.layers.kernel_injection import SHARE, packing_bytes
from mlx_bulk.runner.models.checkpoint import Checkpoint, find_checkpoint, mostly_bfloat16
from mlx_bulk.runner.models.loader import LanguageModel, load_model, outline, size
from mlx_bulk.runner.patched_layers.call_context import BUILT, context_of

from ...checkpoints import PLENTY, write_checkpoint
from ...rounded_numbers import round_checkpoint, rounded
from ..support import kernel_pairs, tiny
from ..support.kernel_models import needed, originals

pytestmark = needed


@pytest.fixture(autouse=True)
def as_it_came() -> Iterator[None]:
    """Each test starts and ends with mlx-lm's own layers."""
    with originals():
        yield


def held_by(network: Any) -> int:
    arrays: Any = tree_flatten(network.parameters())
    return sum(array.nbytes for _, array in arrays)


def packed_of(network: Any) -> int:
    """The bytes that layers hold packed."""
    built = [layer.__dict__[BUILT] for layer in network.modules() if BUILT in layer.__dict__]
    packed = [each.packed for each in built if isinstance(each, linear.PackedWeight) and each.packed is not None]
    places = {array.ctypes.data for array in packed}
    assert all(each is None or each.ctypes.data in places for one in built if hasattr(one, "block") for each in one.block._packed[0])
    return sum(array.nbytes for array in packed)


def test_projections_and_the_head_are_counted_where_there_is_room():
    network = of_rounded()
    held = held_by(network)
    weights = [network.lm_head.weight, *(part.weight for layer in network.model.layers for part in _projections(layer))]
    whole = packing_bytes(network, PLENTY, tiny.VOCABULARY)
    assert whole == sum(bytes_of(*weight.shape) for weight in weights)
    least = int((held + whole) / SHARE) + 1
    assert packing_bytes(network, least, tiny.VOCABULARY) == whole
    assert packing_bytes(network, least - 8, tiny.VOCABULARY) == 0


def bytes_of(n: int, depth: int) -> int:
    """In vectors one number more, the bias; in tiles 16 bits a number, and whole tiles."""
    return 2 * 32 * 32 * -(-n // 32) * -(-depth // 32) if native.tiles() else 4 * n * (depth + 1)


def of_rounded() -> Any:
    """A network whose weights tiles take packed too."""
    network = kernel_pairs.network()
    network.update(tree_map(rounded, network.parameters()))
    return network


@pytest.mark.skipif(native.library() is None or not native.tiles(), reason="vectors take them all")
def test_tiles_take_weights_packed_that_bfloat16_holds():
    network = of_rounded()
    whole, layer = packing_bytes(network, PLENTY, tiny.VOCABULARY), network.model.layers[0].mlp.up_proj
    layer.weight = layer.weight * 1.001
    assert packing_bytes(network, PLENTY, tiny.VOCABULARY) == whole - bytes_of(*layer.weight.shape)


def test_quantized_weights_are_not_packed():
    network = of_rounded()
    network.set_dtype(mx.float16)
    assert packing_bytes(network, PLENTY, tiny.VOCABULARY) == 0


@pytest.mark.parametrize("kind", ["llama", "gemma2", "phi3", "qwen3_moe", "gpt_oss", "mamba2", "lfm2", "qwen3_next"])
def test_a_loaded_model_counts_them_as_its_plan_does(tmp_path: Path, kind: str):
    folder = round_checkpoint(write_checkpoint(tmp_path / "tiny", tiny.CONFIGS.get(kind, tiny.CONFIGS["llama"]) | {"model_type": kind}))
    model, planned, smaller = loaded(folder, PLENTY), outline(*of(folder), PLENTY), loaded(folder, 1 << 20)
    held = held_by(model.network)
    assert model.weight_bytes == planned.weight_bytes > held == smaller.weight_bytes == size(*of(folder), PLENTY)[0]
    assert context_of(model.network).packs
    assert not context_of(smaller.network).packs
    tokens = mx.array(np.arange(12)[None])
    with context_of(model.network).reading_logits():
        found = model.network(tokens)
    assert packed_of(model.network) == model.weight_bytes - held
    with context_of(smaller.network).reading_logits():
        assert np.array_equal(found, smaller.network(tokens))
    assert packed_of(smaller.network) == 0


@pytest.mark.skipif(native.library() is None or not native.tiles(), reason="vectors take them all")
@pytest.mark.parametrize("stored", ["bfloat16", "float32 of such numbers", "float32", "float16"])
def test_a_plan_knows_by_a_checkpoints_files_which_weights_tiles_take_packed(tmp_path: Path, stored: str):
    folder = write_checkpoint(tmp_path / "tiny")
    file, held = str(folder / "model.safetensors"), stored in ("bfloat16", "float32 of such numbers")
    weights = cast("dict[str, mx.array]", mx.load(file))
    change = {"float32 of such numbers": rounded, "float32": mx.array}.get(stored, lambda array: array.astype(getattr(mx, stored)))
    mx.save_safetensors(file, {name: change(array) for name, array in weights.items()}, metadata={"format": "mlx"})
    model, planned = loaded(folder, PLENTY), outline(*of(folder), PLENTY)
    assert mostly_bfloat16(folder) == held
    assert (planned.weight_bytes > held_by(model.network)) == held
    assert model.weight_bytes == planned.weight_bytes


def test_models_that_are_loaded_later_keep_their_room(tmp_path: Path):
    folder = round_checkpoint(write_checkpoint(tmp_path / "tiny"))
    packed = loaded(folder, PLENTY).weight_bytes
    memory = int(packed / SHARE) + 1
    for beside in (0, 8):
        found, planned = load_model(*of(folder), memory, beside=beside), outline(*of(folder), memory, beside=beside)
        assert context_of(found.network).packs == (beside == 0)
        assert found.weight_bytes == planned.weight_bytes == (packed if beside == 0 else held_by(found.network))


def loaded(folder: Path, memory: int) -> LanguageModel:
    return load_model(*of(folder), memory)


def of(folder: Path) -> tuple[ModelConfig, Checkpoint]:
    config = ModelConfig(path=str(folder))
    return config, find_checkpoint(config)


def _projections(layer: Any) -> list[Any]:
    attn, mlp = layer.self_attn, layer.mlp
    return [attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]

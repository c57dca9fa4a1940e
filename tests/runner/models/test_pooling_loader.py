"""Pooling models as they are loaded: every form of a checkpoint gives the states of mlx-lm's own layers, one row at a time."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.encoders.registry import ENCODERS
from mlx_bulk.runner.layers.kernel_injection import restore
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import LanguageModel
from mlx_bulk.runner.models.pooling_loader import load_pooling_model, outline_pooling_model, pooling_size
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.pooling.spec import EmbeddingHead, PoolingMode, embedding_spec
from mlx_lm.utils import load as mlx_lm_load

from ...checkpoints import LLAMA, PLENTY, write_adapter, write_checkpoint, write_quantized
from ...encoder_checkpoints import tiny_bert
from ..support.encoder_calls import batch_states, opened
from ..support.kernel_models import needed, originals

ROWS = [list(range(5, 20)), [7], list(range(40, 63)), list(range(100, 130, 3))]
NEAR = 2e-5  # float32 products of 64 to 128 numbers, in two layers and more
GEMMA = LLAMA | {
    "model_type": "gemma3_text",
    "hidden_size": 96,  # no square: its root is not a bfloat16
    "num_hidden_layers": 6,
    "query_pre_attn_scalar": 16,
    "rms_norm_eps": 1e-6,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "use_bidirectional_attention": True,
}


def opened_model(folder: Path, *modes: PoolingMode, **settings: Any) -> LanguageModel:
    config = ModelConfig(path=str(folder), **settings)
    checkpoint = find_checkpoint(config)
    spec = embedding_spec(EmbeddingHead(modes or ("lasttoken",)), checkpoint.config["hidden_size"])
    return load_pooling_model(config, checkpoint, spec, PLENTY)


def vectors(model: LanguageModel, rows: list[list[int]] = ROWS) -> Any:
    tokens = np.full((len(rows), max(map(len, rows)) + 2), 9, np.int32)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row)] = row
    return np.array(model.network(mx.array(tokens), [len(row) for row in rows]))


def states(network: Any, row: list[int]) -> Any:
    """The states [T, H] of a row alone by mlx-lm's own causal body."""
    return np.array(network.model(mx.array([row]))[0].astype(mx.float32))


def near(found: Any, expected: Any, bound: float = NEAR) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


def rewritten(folder: Path, names: Any) -> Path:
    """The checkpoint with its weights under other names; names that become None are left out."""
    path = folder / "model.safetensors"
    held: Any = mx.load(str(path))
    held = {name: mx.array(np.array(array)) for name, array in held.items()}
    mx.save_safetensors(str(path), {new: array for name, array in held.items() if (new := names(name)) is not None}, {"format": "pt"})
    return folder


def changed(folder: Path, **settings: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def test_a_language_models_body_gives_its_states(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    truth = [states(mlx_lm_load(str(folder))[0], row)[-1] for row in ROWS]
    model = opened_model(folder)
    near(vectors(model), truth)
    assert not [name for name, _ in named(model) if "lm_head" in name]


def named(model: LanguageModel) -> list[Any]:
    from mlx.utils import tree_flatten

    return list(tree_flatten(model.network.parameters()))


@pytest.mark.parametrize("tied", [False, True])
def test_a_bare_model_is_the_same(tmp_path: Path, tied: bool) -> None:
    """``AutoModel`` saves a body without its prefix and without an LM head."""
    folder = write_checkpoint(tmp_path / "model")
    truth = vectors(opened_model(folder))
    rewritten(folder, lambda name: None if name.startswith("lm_head") else name.removeprefix("model."))
    near(vectors(opened_model(changed(folder, tie_word_embeddings=tied))), truth, 0)


def test_a_classifiers_weights_do_not_disturb(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    truth = vectors(opened_model(folder))
    rewritten(folder, lambda name: name.replace("lm_head", "score"))
    near(vectors(opened_model(folder)), truth, 0)


def test_dense_layers_that_a_conversion_has_moved_are_refused(tmp_path: Path) -> None:
    folder = rewritten(write_checkpoint(tmp_path / "model"), lambda name: name.replace("lm_head", "dense.0"))
    with pytest.raises(ModelError, match=r"its weights hold dense\.0\.weight, a layer that sentence-transformers keeps in a folder"):
        opened_model(folder)


def test_settings_of_transformers_5_are_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", LLAMA | {"rope_theta": 500.0})
    truth = vectors(opened_model(folder))
    config = json.loads((folder / "config.json").read_text())
    del config["rope_theta"]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0}
    (folder / "config.json").write_text(json.dumps(config))
    near(vectors(opened_model(folder)), truth, 0)


def test_quantized_weights_are_dequantized_where_they_fit(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path / "model")
    config = ModelConfig(path=str(folder))
    checkpoint = find_checkpoint(config)
    spec = embedding_spec(EmbeddingHead(("mean",)), 64)
    whole, packed = (load_pooling_model(config, checkpoint, spec, memory) for memory in (PLENTY, 100_000))
    assert (whole.quantized, packed.quantized) == (False, True)
    near(vectors(whole), vectors(packed), 1e-3)  # half-precision scales are rounded in the products
    assert [pooling_size(config, checkpoint, spec, memory)[1] for memory in (PLENTY, 100_000)] == [True, False]


def test_the_size_is_known_without_reading(tmp_path: Path) -> None:
    little = 1 << 21  # bytes: no room for packed copies, which a size does not count
    for folder, memory in ((write_checkpoint(tmp_path / "llama"), little), (tiny_bert(tmp_path / "bert"), PLENTY)):
        config = ModelConfig(path=str(folder))
        checkpoint = find_checkpoint(config)
        spec = embedding_spec(EmbeddingHead(("mean",)), checkpoint.config["hidden_size"])
        model = load_pooling_model(config, checkpoint, spec, memory)
        outline = outline_pooling_model(config, checkpoint, spec, memory)
        assert pooling_size(config, checkpoint, spec, memory) == (model.weight_bytes, None)
        assert (outline.weight_bytes, outline.pooling, outline.vocabulary) == (model.weight_bytes, spec, model.vocabulary)
        assert model.vocabulary == checkpoint.config["vocab_size"]


def test_an_encoders_states_are_pooled(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    truth = [batch_states(opened(folder), [row])[0].mean(axis=0) for row in ROWS]
    near(vectors(opened_model(folder, "mean")), truth, 5e-6)


def test_an_adapter_changes_a_decoders_states(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    adapter = write_adapter(folder, tmp_path / "adapter", "lora")
    adapted = mlx_lm_load(str(folder), adapter_path=str(adapter))[0]
    found = vectors(opened_model(folder, adapter=str(adapter)))
    near(found, [states(adapted, row)[-1] for row in ROWS])
    assert np.abs(found - vectors(opened_model(folder))).max() > 0.01


def test_an_adapter_on_an_encoder_is_refused(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    adapter = write_adapter(write_checkpoint(tmp_path / "llama"), tmp_path / "adapter", "lora")
    with pytest.raises(ModelError, match=r"model\.adapter: bert is an encoder, and adapters are for decoders; remove it"):
        opened_model(folder, adapter=str(adapter))


# ------------------------------------------------------------------------------------------------------------ both ways


def by_hand(network: Any, row: list[int], windows: list[int | None], root: float = 1.0) -> Any:
    """The states [T, H] of a row alone: each layer is given its mask. windows: of each layer, the first distance that is hidden."""
    x = network.model.embed_tokens(mx.array([row])) * root
    at = np.arange(len(row))
    for layer, window in zip(network.layers, windows, strict=True):
        seen = np.abs(at[:, None] - at[None]) < (window or len(row))
        x = layer(x, mx.array(seen.astype(np.bool_).tolist())[None, None], None)
    return np.array(network.model.norm(x)[0])


@pytest.mark.parametrize("says", [{"is_causal": False}, {"use_bidirectional_attention": True}, {"model_type": "llama_bidirec"}])
def test_attention_both_ways_sees_a_whole_row(tmp_path: Path, says: dict[str, Any]) -> None:
    folder = write_checkpoint(tmp_path / "model")
    network = mlx_lm_load(str(folder))[0]
    truth = [by_hand(network, row, [None, None]).mean(axis=0) for row in ROWS]
    model = opened_model(changed(folder, **says), "mean")
    near(vectors(model), truth)
    near(np.concatenate([vectors(model, [row]) for row in ROWS]), truth)


@needed
@pytest.mark.parametrize("says", [{}, {"is_causal": False}])
def test_the_cpus_kernels_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: dict[str, Any]) -> None:
    with originals():
        folder = write_checkpoint(tmp_path / "model")
        network = mlx_lm_load(str(folder))[0]
        truth = [(by_hand(network, row, [None, None]) if says else states(network, row)).mean(axis=0) for row in ROWS]
        model = opened_model(changed(folder, **says), "mean")
        assert "block" in model.substitutes
        used = context_of(model.network.body.network).used
        used.clear()
        near(vectors(model), truth)
        near(np.concatenate([vectors(model, [row]) for row in ROWS]), truth)
        assert "block" in used
        restore(model.network)


def test_a_window_of_both_ways_hides_the_same_on_both_sides(tmp_path: Path) -> None:
    """``is_causal: false`` with a window of 4: a token sees four before it and four behind."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    folder = write_checkpoint(tmp_path / "model", LLAMA | kinds)
    truth = [by_hand(mlx_lm_load(str(folder))[0], row, [5, None]).mean(axis=0) for row in ROWS]
    near(vectors(opened_model(changed(folder, is_causal=False), "mean")), truth)


def test_gemma_reads_half_its_window_each_way_and_scales_exactly(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", GEMMA)
    network = mlx_lm_load(str(folder))[0]
    windows = [5, 5, None] * 2  # 8 // 2 + 1
    truth = [by_hand(network, row, windows, 96**0.5).mean(axis=0) for row in ROWS]
    near(vectors(opened_model(folder, "mean")), truth)
    rounded = [by_hand(network, row, windows, float(mx.array(96**0.5, mx.bfloat16).astype(mx.float32))).mean(axis=0) for row in ROWS]
    assert np.abs(np.array(rounded) - np.array(truth)).max() > 10 * NEAR


def test_a_recurrent_layer_cannot_look_ahead(tmp_path: Path) -> None:
    config = {"model_type": "mamba", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "state_size": 8, "num_hidden_layers": 2}
    more = {"conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4, "is_causal": False}
    folder = write_checkpoint(tmp_path / "model", config | more)
    with pytest.raises(
        ModelError, match=r"asks for attention both ways, and a layer keeps a state \(ArraysCache\) that reads forwards alone"
    ):
        opened_model(folder)


def test_a_model_type_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    folder = changed(write_checkpoint(tmp_path / "model"), model_type="deberta-v2")
    with pytest.raises(ModelError) as refused:
        opened_model(folder)
    assert str(refused.value) == (
        f"model.path: {folder} cannot be loaded: deberta-v2 is neither a model type of mlx-lm's nor one of the encoders "
        f"{', '.join(sorted(ENCODERS))}; a newer mlx-lm may have it (pip install -U mlx-lm)"
    )

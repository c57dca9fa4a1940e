"""Tests checkpoints as transformers 5 saves them: position settings under new names that mlx-lm does not read."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_bulk.runner.models.config_compat import mlx_lm_settings

from ...checkpoints import loaded

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1, "norm_topk_prob": True}
GEMMA = {
    "hidden_size": 96,  # its root is not exact in bfloat16, in which mlx-lm scales Gemma's embeddings
    "sliding_window": 16,
    "num_hidden_layers": 6,  # of which the last is full, as in every Gemma 3
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 54321.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 777.0},
    },
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}),
    "Llama": ("llama", {"rope_parameters": {"rope_theta": 12345.0, **LLAMA3}}),
    "Qwen3Moe": ("qwen3_moe", {**MOE, "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}}),
    "Gemma3": ("gemma3_text", GEMMA),
}


def transformers_config(name: str) -> Any:
    """A config of the family ``name`` as an object of transformers."""
    import transformers

    module = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    return getattr(transformers, module)(**{**SIZES, **FAMILIES[name][1]})


def written_by_transformers(name: str, folder: Path) -> dict[str, Any]:
    """The config.json that transformers saves for it."""
    transformers_config(name).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def test_every_family_of_the_tests_is_saved_without_the_old_names(tmp_path: Path):
    for name in FAMILIES:
        config = written_by_transformers(name, tmp_path / name)
        assert "rope_parameters" in config
        assert not {"rope_theta", "rope_scaling", "rope_local_base_freq"} & config.keys()


def test_old_names_are_added_and_kept():
    flat = {"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}
    assert mlx_lm_settings(flat)["rope_theta"] == 5.0
    assert mlx_lm_settings(flat)["rope_scaling"] is None  # which some model files ask for
    assert mlx_lm_settings(flat | {"rope_theta": 7.0}).get("rope_theta", 7.0) == 7.0
    assert mlx_lm_settings({"rope_theta": 7.0}) == {}
    scaled = {"rope_parameters": {"rope_theta": 5.0, **LLAMA3}}
    assert mlx_lm_settings(scaled)["rope_scaling"] == LLAMA3
    partial = {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 0.25, "rope_type": "default"}}
    assert mlx_lm_settings(partial)["partial_rotary_factor"] == mlx_lm_settings(partial)["rotary_pct"] == 0.25
    inner = {"text_config": {"hidden_size": 8, **flat}}
    assert mlx_lm_settings(inner)["text_config"]["hidden_size"] == 8
    assert mlx_lm_settings(inner)["text_config"]["rope_theta"] == 5.0
    assert mlx_lm_settings({"num_local_experts": 4}) == {"num_experts": 4}
    assert mlx_lm_settings({"num_local_experts": 4, "num_experts": 4}) == {}
    assert mlx_lm_settings({"conv_L_cache": 3, "hidden_size": 64}) == {"block_dim": 64}
    layered = mlx_lm_settings(GEMMA)
    assert (layered["rope_theta"], layered["rope_local_base_freq"]) == (54321.0, 777.0)


def write_random(name: str, folder: Path) -> Path:
    """A checkpoint of the family with random weights under the config that transformers saves."""
    config = written_by_transformers(name, folder)
    module = import_module(f"mlx_lm.models.{FAMILIES[name][0]}")
    mx.random.seed(0)
    network = module.Model(module.ModelArgs.from_dict({**config, **mlx_lm_settings(config)}))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), {"format": "mlx"})
    return folder


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3Moe"])
def test_theta_of_a_loaded_model_is_that_of_the_config(tmp_path: Path, name: str):
    network = loaded(write_random(name, tmp_path / name)).network
    assert [layer.self_attn.rope.base for layer in network.layers] == [12345.0, 12345.0]


def test_theta_by_layer_type(tmp_path: Path):
    network = loaded(write_random("Gemma3", tmp_path / "gemma")).network
    assert [layer.self_attn.rope.base for layer in network.layers] == [*[777.0] * 5, 54321.0]


def test_scaled_rope_of_a_loaded_model(tmp_path: Path):
    network = loaded(write_random("Llama", tmp_path / "llama")).network
    plain = 12345.0 ** (np.arange(0, 8, 2) / 8)
    frequencies = np.array(network.layers[0].self_attn.rope._freqs)
    # The shortest wave keeps its length, the longest is stretched by the factor.
    np.testing.assert_allclose(frequencies[[0, -1]] / plain[[0, -1]], [1.0, 8.0], rtol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_of_transformers_gives_its_logits(tmp_path: Path, name: str):
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    theirs: Any = AutoModelForCausalLM.from_config(transformers_config(name), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)  # logits that spread: a wrong theta then shows
    theirs.save_pretrained(tmp_path / name)
    ids = np.random.default_rng(0).integers(0, 128, 60).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    network = loaded(tmp_path / name, dtype="float32").network
    assert expected.std() > 0.1
    # float32 on both sides: only the order of sums differs
    np.testing.assert_allclose(np.array(network(mx.array([ids]))[0]), expected, rtol=0, atol=1e-4)


def test_a_vision_models_text_config_is_filled_up_and_told_what_stands_outside():
    hub = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}, "tie_word_embeddings": False}
    text = mlx_lm_settings(hub)["text_config"]
    assert (text["hidden_size"], text["vocab_size"], text["rope_theta"], text["tie_word_embeddings"]) == (4096, 32064, 10000.0, False)
    assert all(isinstance(name, str) for value in text.values() if isinstance(value, dict) for name in value)
    gemma = {"model_type": "gemma3", "text_config": {"vocab_size": 300, "_sliding_window_pattern": 4}}
    assert mlx_lm_settings(gemma) == {
        "vocab_size": 300,
        "text_config": {"vocab_size": 300, "_sliding_window_pattern": 4, "sliding_window_pattern": 4},
    }

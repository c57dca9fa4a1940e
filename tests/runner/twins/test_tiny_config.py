"""Tests that a config made small keeps the relations between its settings."""

import copy
from typing import Any

import pytest
from mlx_bulk.runner.twins.tiny_config import LONGEST, VOCABULARY, WINDOW, shrink_config, shrinks, window_lengths

from ..support.released_configs import CONFIGS


def text(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config", config)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_released_becomes_small_and_keeps_its_ratios(name: str):
    before = copy.deepcopy(CONFIGS[name])
    now, was = text(shrink_config(CONFIGS[name], 4, 48)), text(CONFIGS[name])
    assert CONFIGS[name] == before
    assert now["hidden_size"] <= 512
    assert now.get("vocab_size", VOCABULARY) == VOCABULARY
    for queries, keys in (("num_attention_heads", "num_key_value_heads"), ("linear_num_value_heads", "linear_num_key_heads")):
        if was.get(keys, 1) > 1:
            assert now[queries] / now[keys] == was[queries] / was[keys]
    if "head_dim" not in was and "num_attention_heads" in was and "q_lora_rank" not in was:
        assert now["hidden_size"] % now["num_attention_heads"] == 0
        assert (now["hidden_size"] // now["num_attention_heads"]) % 2 == 0
    if "mamba_d_ssm" in was:
        assert now["mamba_d_ssm"] == now["mamba_n_heads"] * now["mamba_d_head"]
    assert now.keys() == was.keys()


def test_layers_are_the_first_ones():
    config: dict[str, Any] = {
        "num_hidden_layers": 6,
        "layer_types": ["a", "a", "b", "a", "a", "b"],
        "hybrid_override_pattern": "M-M*M-",
        "block_configs": [{"ffn": {"ffn_mult": i}} for i in range(6)],
        "mlp_only_layers": [0, 5],
        "num_kv_shared_layers": 3,
        "sliding_window_pattern": "LLG",
    }
    assert shrink_config(config, 4, 6) == config | {
        "num_hidden_layers": 4,
        "layer_types": ["a", "a", "b", "a"],
        "hybrid_override_pattern": "M-M*",
        "block_configs": config["block_configs"][:4],
        "num_kv_shared_layers": 2,  # of the last ones, as many in proportion
    }


def test_rows_need_not_be_long_to_pass_what_acts_on_long_ones():
    config = {"sliding_window": 4096, "attention_chunk_size": 8192, "index_topk": 2048, "conv_window": 2, "swa_rope_theta": 1e4}
    small = shrink_config(config, 2, 32)
    assert small == config | {"sliding_window": WINDOW, "attention_chunk_size": WINDOW, "index_topk": WINDOW}
    assert window_lengths(config) == [4096, 8192, 2048]
    assert window_lengths({"sliding_window": None, "text_config": {"window_size": 12}, "vision_config": {"window_size": 14}}) == [12]


@pytest.mark.parametrize(("trained", "original", "expected"), [(131072, 4096, (512, 16)), (8192, 8192, (LONGEST, 16))])
def test_a_shrunk_rope_scaling_begins_within_a_row(trained: int, original: int, expected: tuple[int, int]):
    config = {"max_position_embeddings": trained, "rope_scaling": {"original_max_position_embeddings": original, "factor": 32.0}}
    small = shrink_config(config, 2, 32)
    assert (small["max_position_embeddings"], small["rope_scaling"]["original_max_position_embeddings"]) == expected
    assert small["rope_scaling"]["factor"] == 32.0


def test_factors_of_rotated_dimensions_become_as_few_as_these():
    config = {"hidden_size": 3072, "num_attention_heads": 32, "rope_scaling": {"long_factor": [float(i) for i in range(48)]}}
    small = shrink_config(config, 2, 32)
    assert 2 * len(small["rope_scaling"]["long_factor"]) == small["hidden_size"] // small["num_attention_heads"]


def test_unknown_values_and_those_that_are_no_sizes_stay():
    config = {"frobnicate_size": 4096, "norm_topk_prob": True, "rms_norm_eps": 1e-6, "model_type": "new", "num_experts": None}
    assert shrink_config(config, 2, 32) == config
    assert not shrinks("frobnicate_size")
    assert shrinks("hidden_size")


def test_pictures_and_sound_stay():
    config = {"hidden_size": 2048, "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}}
    assert shrink_config(config, 2, 32)["vision_config"] == config["vision_config"]

"""Which models a group takes, and why not others. What a split model computes: tests/commands/test_group_run.py."""

from importlib import import_module
from typing import Any

import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.ranks.model_split import split_network

from ...checkpoints import LLAMA


class Group:
    """mlx's group, as far as a model asks for it."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 3


class Three:
    group, size, several = Group(), 3, True


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gemma", {}, "no way to split its architecture \\(gemma\\)"),
        ("qwen2", {"num_hidden_layers": 2}, "2 layers, too few for 3 ranks"),
        ("llama", {"num_attention_heads": 4}, "num_attention_heads 4, which 3 ranks cannot divide"),
        ("llama", {"num_attention_heads": 6, "num_key_value_heads": 2}, "num_key_value_heads 2, which 3 ranks"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(kind: str, changes: dict[str, Any], message: str):
    module: Any = import_module(f"mlx_lm.models.{kind}")
    network = module.Model(module.ModelArgs.from_dict(LLAMA | {"model_type": kind} | changes))
    with pytest.raises(ModelError, match=f"model.path: tiny .*{message}"):
        split_network(network, Three(), "tiny", lambda: None)  # pyright: ignore[reportArgumentType]


def test_a_pipeline_leaves_the_first_rank_the_last_layers():
    module: Any = import_module("mlx_lm.models.qwen2")
    network = module.Model(module.ModelArgs.from_dict(LLAMA | {"model_type": "qwen2", "num_hidden_layers": 7}))
    last = network.model.layers[4:]
    assert split_network(network, Three(), "tiny", lambda: None).way == "pipeline"  # pyright: ignore[reportArgumentType]
    assert list(network.layers) == list(last)

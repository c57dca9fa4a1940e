"""States of our encoders against transformers in float32 on the CPU, where each row runs alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ...encoder_checkpoints import TINY_ENCODERS, tiny_bert, tiny_modernbert, tiny_roberta
from ..support.encoder_calls import batch_states, config_of, opened, random_rows

pytestmark = pytest.mark.oracle

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 130,
}
BRACKETS = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
# How transformers' classes begin, and what differs from SIZES.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {"layer_norm_eps": 1e-5},
    "XLMRoberta": {"layer_norm_eps": 1e-5, "type_vocab_size": 1},
    "Camembert": {"layer_norm_eps": 1e-5, "type_vocab_size": 1, "hidden_act": "gelu_new"},
    "ModernBert": {"local_attention": 12, "num_hidden_layers": 4, **BRACKETS},
    "MPNet": {"layer_norm_eps": 1e-5},
    "DistilBert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96},
    "Electra": {"embedding_size": 24},
    "NomicBert": {"pad_token_id": 0},
}
KINDS = ["Model", "ForMaskedLM", "ForSequenceClassification"]
SPREAD = 8.0  # on each matrix: a wrong mask, position or type moves states by a tenth and more
# float32 on both sides, three or four blocks: the order of sums differs.
NEAR = 2e-5
TYPED = {"bert", "electra", "nomic_bert"}


def write(folder: Path, family: str, kind: str, **settings: Any) -> Path:
    """Writes a model as transformers saves it, the same each time."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers

    sizes = {} if family == "DistilBert" else SIZES
    config = getattr(transformers, f"{family}Config")(**{**sizes, "vocab_size": 320, **ARCHITECTURES[family], **settings})
    torch.manual_seed(0)
    model = getattr(transformers, family + kind)(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(SPREAD)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def their_states(folder: Path, rows: list[list[int]], types: list[list[int]] | None) -> list[NDArray[np.float32]]:
    """States [T, H] of each row alone, by the body that AutoModel finds in a folder."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    found: list[NDArray[np.float32]] = []
    with torch.no_grad():
        for i, row in enumerate(rows):
            kinds = {} if types is None else {"token_type_ids": torch.tensor([types[i]])}
            found.append(model(torch.tensor([row]), **kinds).last_hidden_state[0].numpy())
    return found


def assert_agree(folder: Path, lengths: list[int]) -> None:
    """A padded batch and rows alone both give transformers' states of rows alone."""
    rows = random_rows(lengths)
    types = [[0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2) for row in rows]
    types = types if config_of(folder)["model_type"] in TYPED and config_of(folder).get("type_vocab_size") == 2 else None
    encoder, expected = opened(folder), their_states(folder, rows, types)
    together = batch_states(encoder, rows, types, pad=7)
    for i, state in enumerate(expected):
        assert len(state) < 3 or state.std() > 0.5
        np.testing.assert_allclose(together[i], state, rtol=0, atol=NEAR)
        alone = batch_states(encoder, [rows[i]], None if types is None else [types[i]])[0]
        np.testing.assert_allclose(alone, state, rtol=0, atol=NEAR)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_checkpoints_of_transformers(tmp_path: Path, family: str, kind: str) -> None:
    assert_agree(write(tmp_path / "model", family, kind), [1, 2, 7, 30, 128])


@pytest.mark.parametrize("labels", [None, 3])
@pytest.mark.parametrize("family", TINY_ENCODERS)
def test_folders_with_older_names(tmp_path: Path, family: str, labels: int | None) -> None:
    """What the other tests run on is what transformers reads in it."""
    assert_agree(TINY_ENCODERS[family](tmp_path / "model", labels=labels), [1, 5, 60, 128])


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu"])
def test_activations(tmp_path: Path, name: str) -> None:
    assert_agree(tiny_bert(tmp_path / "bert", hidden_act=name), [20])
    assert_agree(tiny_modernbert(tmp_path / "modernbert", hidden_activation=name), [20])


@pytest.mark.parametrize("window", [2, 7, 64, 500])
def test_windows_of_any_width(tmp_path: Path, window: int) -> None:
    assert_agree(tiny_modernbert(tmp_path / "model", local_attention=window), [1, 40, 128])


def test_modernbert_with_biases_and_thetas(tmp_path: Path) -> None:
    biases = dict.fromkeys(["norm_bias", "attention_bias", "mlp_bias"], True)
    assert_agree(tiny_modernbert(tmp_path / "older", global_rope_theta=900.0, local_rope_theta=70.0, **biases), [3, 50])
    rope = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in (("full_attention", 900.0), ("sliding_attention", 70.0))}
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    assert_agree(write(tmp_path / "newer", "ModernBert", "Model", rope_parameters=rope, layer_types=kinds, **biases), [3, 50])


@pytest.mark.parametrize("family", ["ModernBert", "NomicBert"])
def test_far_positions(tmp_path: Path, family: str) -> None:
    """Rows of thousands of tokens; test_rotary_positions.py holds the angles themselves to more digits."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    assert_agree(write(tmp_path / "model", family, "Model", **sizes), [2100])


@pytest.mark.parametrize("pad", [0, 1, 5])
def test_a_pad_that_a_text_spells(tmp_path: Path, pad: int) -> None:
    folder = tiny_roberta(tmp_path / "model", pad_token_id=pad)
    row = [3, 50, pad, 60, pad, pad, 70, 2]
    np.testing.assert_allclose(batch_states(opened(folder), [row], extra=4)[0], their_states(folder, [row], None)[0], rtol=0, atol=NEAR)

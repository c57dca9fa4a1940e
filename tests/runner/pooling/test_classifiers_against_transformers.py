"""Tests the logits of classifiers, reward models and generative rerankers against transformers in float32, each row alone."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.pooling.spec import TokenHead

from ...hf_classifiers import CLASSIFIERS, PAD, logits_of, logits_of_torch, network_of, random_rows, write_classifier

pytestmark = pytest.mark.oracle

LANGUAGE_MODELS = {"granite", "cohere"}  # transformers has no classifiers of them
LACK_WINDOW = {"mistral", "gemma2"}  # of mlx-lm's models: rows beyond their windows are refused
BOUND = 2e-5


def rows_for(architecture: str) -> list[list[int]]:
    rows = random_rows()
    return [row[:16] for row in rows] if architecture in LACK_WINDOW else rows


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("architecture", [name for name in CLASSIFIERS if name not in LANGUAGE_MODELS])
def test_logits_are_those_of_transformers_alone_and_in_a_padded_batch(tmp_path: Path, architecture: str, labels: int):
    model = write_classifier(tmp_path, architecture, labels)
    network, rows = network_of(tmp_path), rows_for(architecture)
    truth = logits_of_torch(model, rows)
    assert truth.std(axis=0).min() > 0.05
    bound = BOUND * max(1.0, np.abs(truth).max())
    np.testing.assert_allclose(np.concatenate([logits_of(network, [row]) for row in rows]), truth, rtol=0, atol=bound)
    np.testing.assert_allclose(logits_of(network, rows), truth, rtol=0, atol=bound)
    np.testing.assert_allclose(logits_of(network, rows, pad=PAD), truth, rtol=0, atol=bound)


@pytest.mark.parametrize("pad", [PAD, None])
def test_the_token_that_is_read_is_not_the_pads_id_also_where_a_row_ends_in_it(tmp_path: Path, pad: int | None):
    """As Qwen3-Embedding's tokenizer does it, which appends its pad."""
    model = write_classifier(tmp_path, "qwen3", 1, pad_token_id=pad)
    rows = [row + [PAD] * more for row, more in zip(random_rows([4, 9, 30, 12]), [1, 3, 0, 1], strict=True)]
    rows += [[PAD], [PAD, PAD], [7, PAD, 8, PAD]]
    network, truth = network_of(tmp_path), logits_of_torch(model, rows)
    np.testing.assert_allclose(logits_of(network, rows), truth, rtol=0, atol=BOUND)
    np.testing.assert_allclose(np.concatenate([logits_of(network, [row]) for row in rows]), truth, rtol=0, atol=BOUND)
    other = write_classifier(tmp_path / "other", "qwen3", 1, pad_token_id=None if pad else PAD)
    assert np.abs(logits_of_torch(other, rows) - truth).max() > 0.1  # the other rule would show


def test_modernberts_mean_is_of_a_rows_own_tokens(tmp_path: Path):
    model = write_classifier(tmp_path, "modernbert", 3, classifier_pooling="mean")
    rows = random_rows()
    np.testing.assert_allclose(logits_of(network_of(tmp_path), rows), logits_of_torch(model, rows), rtol=0, atol=5e-5)


def test_a_score_of_two_layers_is_torchs(tmp_path: Path):
    """Qwen2ForRewardModel, whose code is the checkpoint's: its head is a Sequential of Linear, ReLU and Linear."""
    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load_file, save_file  # pyright: ignore[reportMissingImports]

    model = write_classifier(tmp_path, "qwen2", 1)
    torch.manual_seed(0)
    model.score = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    weights: Any = load_file(tmp_path / "model.safetensors")
    del weights["score.weight"]
    save_file(weights | {f"score.{name}": array for name, array in model.score.state_dict().items()}, tmp_path / "model.safetensors")
    rows = random_rows()
    np.testing.assert_allclose(logits_of(network_of(tmp_path), rows), logits_of_torch(model, rows), rtol=0, atol=BOUND)


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("qwen3", {"tie_word_embeddings": True}),
        ("qwen3", {"tie_word_embeddings": False}),
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("granite", {}),
        ("cohere", {}),
    ],
)
def test_a_generative_rerankers_score_is_the_difference_of_two_logits(tmp_path: Path, architecture: str, settings: dict[str, Any]):
    """Of the logits that the model gives: behind caps and scales."""
    import torch  # pyright: ignore[reportMissingImports]

    model = write_classifier(tmp_path, architecture, None, **settings)
    rows = rows_for(architecture)
    with torch.no_grad():
        last = np.stack([model(input_ids=torch.tensor([row])).logits[0, -1].numpy() for row in rows])
    difference = last[:, [40]] - last[:, [41]]
    bound = 1e-5 * max(1.0, np.abs(difference).max())
    np.testing.assert_allclose(logits_of(network_of(tmp_path, TokenHead(40, 41)), rows), difference, rtol=0, atol=bound)
    np.testing.assert_allclose(logits_of(network_of(tmp_path, TokenHead(40)), rows), last[:, [40]], rtol=0, atol=2 * bound)


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_the_winners_of_200_pairs_are_those_of_transformers(tmp_path: Path, architecture: str):
    model = write_classifier(tmp_path, architecture, 1)
    prompts = random_rows([12] * 200, seed=1)
    answers = [random_rows((np.arange(200) % step + 3).tolist(), seed=step) for step in (17, 23)]
    rows = [prompt + answer for side in answers for prompt, answer in zip(prompts, side, strict=True)]
    network = network_of(tmp_path)
    found = np.concatenate([logits_of(network, rows[at : at + 50]) for at in range(0, len(rows), 50)]).reshape(2, 200)
    truth = logits_of_torch(model, rows).reshape(2, 200)
    apart = np.abs(truth[0] - truth[1]) > 1e-4
    assert apart.sum() > 190
    assert ((found[0] > found[1]) == (truth[0] > truth[1]))[apart].all()


def test_a_cross_encoder_with_pooling_and_a_dense_is_sentence_transformers(tmp_path: Path):
    import torch  # pyright: ignore[reportMissingImports]
    from sentence_transformers import CrossEncoder  # pyright: ignore[reportMissingImports]
    from sentence_transformers.base.modules import Dense, Transformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.sentence_transformer.modules import Pooling  # pyright: ignore[reportMissingImports]

    from ...encoder_checkpoints import tiny_bert

    transformer = Transformer(str(tiny_bert(tmp_path / "bert")))
    dense = Dense(32, 2, activation_function=torch.nn.Identity(), module_input_name="sentence_embedding", module_output_name="scores")
    torch.nn.init.normal_(dense.linear.weight, std=0.5)
    peer: Any = CrossEncoder(modules=[transformer, Pooling(32, "mean"), dense], device="cpu", activation_fn=torch.nn.Identity())
    peer.save(str(tmp_path / "model"))
    pairs = [("how many apples", "the cat had two apples"), ("what price", "a dog")]
    truth = np.stack([peer.predict([pair])[0] for pair in pairs])
    tokenizer: Any = transformer.tokenizer
    ids = [tokenizer(*pair) for pair in pairs]
    network = network_of(tmp_path / "model")
    found = np.concatenate([typed_logits(network, each["input_ids"], each["token_type_ids"]) for each in ids])
    np.testing.assert_allclose(found, truth, rtol=0, atol=BOUND)


def typed_logits(network: Any, ids: list[int], types: list[int]) -> Any:
    return np.array(network(mx.array([ids]), [len(ids)], None, mx.array([types])))

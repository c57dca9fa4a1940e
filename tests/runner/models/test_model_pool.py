"""Tests models that a process keeps from one run to the next."""

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.kernels import backend
from mlx_bulk.runner.core.errors import OutOfRoom
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.models import model_pool
from mlx_bulk.runner.models.checkpoint import Checkpoint, find_checkpoint
from mlx_bulk.runner.models.loader import WHOLE_SHARE, size
from mlx_bulk.runner.models.model_pool import ModelChoice, ModelPool, dequantizes, later_sizes, memory_shares
from mlx_lm.utils import load as mlx_lm_load

from ...adapters import write_adapter
from ...checkpoints import PLENTY, logprobs, write_checkpoint, write_quantized

on_cpu = pytest.mark.skipif(backend.device_name() != "cpu", reason="quantized weights are dequantized on the CPU alone")


def wanted(folder: Path, dtype: str = "auto") -> ModelChoice:
    config = ModelConfig.model_validate({"path": str(folder), "dtype": dtype})
    return ModelChoice(config, find_checkpoint(config))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return write_checkpoint(root / "a"), write_checkpoint(root / "b")


def test_a_model_is_loaded_once_and_another_precision_is_another_model(pair: tuple[Path, Path]) -> None:
    models = ModelPool()
    first, second = models.get([wanted(pair[0]), wanted(pair[1])], PLENTY)
    assert models.get([wanted(pair[1]), wanted(pair[0])], PLENTY) == [second, first]
    [half] = models.get([wanted(pair[0], "bfloat16")], PLENTY)
    assert (first.dtype, half.dtype) == ("float32", "bfloat16")


def test_what_is_not_needed_is_dropped_before_anything_is_loaded(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[int] = []
    load = model_pool.load_model

    def counting(config: ModelConfig, checkpoint: Checkpoint, memory: int, **how: Any) -> model_pool.LanguageModel:
        budgets.append(memory)
        return load(config, checkpoint, memory, **how)

    monkeypatch.setattr(model_pool, "load_model", counting)
    models = ModelPool()
    [first] = models.get([wanted(pair[0])], PLENTY)
    models.get([wanted(pair[1])], PLENTY)  # the first has made room
    models.get([wanted(pair[1]), wanted(pair[0])], PLENTY)  # both stand: the one that comes gets what the other leaves
    assert budgets == [PLENTY, PLENTY, PLENTY - first.parameter_bytes]


@pytest.mark.parametrize("first", [None, "first"])
def test_the_next_run_finds_on_the_model_what_it_was_loaded_with(pair: tuple[Path, Path], tmp_path: Path, first: str | None) -> None:
    """A sweep's cell leaves the last policy that it watched for on the network."""
    models = ModelPool()
    [base] = models.get([wanted(pair[0])], PLENTY)
    bare, folders = (
        logprobs(base.network),
        [write_adapter(tmp_path / name, base.network, seed=i) for i, name in enumerate(("first", "later"))],
    )
    config = ModelConfig(path=str(pair[0]), adapter=None if first is None else str(folders[0]))
    [model] = models.get([ModelChoice(config, find_checkpoint(config))], PLENTY)
    began = logprobs(model.network)
    assert np.array_equal(began, bare) == (first is None)
    assert model.adapters is not None
    model.adapters.put_on(folders[1])
    assert np.abs(logprobs(model.network) - began).max() > 0.1
    assert models.get([ModelChoice(config, find_checkpoint(config))], PLENTY) == [model]
    np.testing.assert_array_equal(logprobs(model.network), began)


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("fits", [True, False])
def test_the_base_is_found_again_beside_a_second_model_of_the_same_file(
    pair: tuple[Path, Path], tmp_path: Path, kind: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels stand before the adapter does; and where the second one's trial fails, they are taken out of the file for both."""
    config = ModelConfig(path=str(pair[0]), adapter=str(write_adapter(tmp_path / "first", base_of(pair[0]), kind)))
    models = ModelPool()
    kernel_injection.restore(base_of(pair[0]))  # as in a new process
    [model] = models.get([ModelChoice(config, find_checkpoint(config))], PLENTY)
    assert model.adapters is not None
    with model.adapters.off():
        np.testing.assert_allclose(logprobs(model.network), logprobs(base_of(pair[0])), rtol=0, atol=1e-4)
    model.adapters.put_on(write_adapter(tmp_path / "later", base_of(pair[0]), kind, seed=2))
    with monkeypatch.context() as patched:
        if not fits:
            patched.setattr(kernel_injection, "disagreement", lambda truth, found: "logits move")
        [_, second] = models.get([ModelChoice(config, find_checkpoint(config)), wanted(pair[1])], PLENTY)
    assert fits or second.substitutes == ()
    with model.adapters.off():
        np.testing.assert_allclose(logprobs(model.network), logprobs(base_of(pair[0])), rtol=0, atol=1e-4)


def base_of(folder: Path) -> Any:
    """The network by mlx-lm alone."""
    return mlx_lm_load(str(folder))[0]


def test_two_models_that_memory_cannot_hold_are_refused_with_their_sizes(pair: tuple[Path, Path]) -> None:
    size = sum(file.stat().st_size for file in pair[0].glob("*.safetensors"))
    models = ModelPool()
    models.get([wanted(pair[0])], size)
    with pytest.raises(OutOfRoom, match=r"the weights take at least .* MB \(.*/a .* MB and .*/b .* MB\), batch.memory leaves"):
        models.get([wanted(pair[0]), wanted(pair[1])], size)
    with pytest.raises(OutOfRoom, match=r"the weights of .*/b take at least [^(]*B, batch.memory leaves 1.0 kB"):
        models.get([wanted(pair[1])], 1000)


@on_cpu
def test_dequantization_follows_from_total_memory(tmp_path: Path) -> None:
    """A model that another run of the process dequantized is not what this one would have loaded."""
    folder = write_quantized(tmp_path / "quantized")
    whole_bytes, whole = size(*wanted(folder)[:2], PLENTY)
    least = ceil(whole_bytes / WHOLE_SHARE)  # the rest is for cached tokens
    packed_bytes, packed = size(*wanted(folder)[:2], least - 1)
    assert (whole, packed, whole_bytes > 2 * packed_bytes) == (True, False, True)
    models = ModelPool()
    [first] = models.get([wanted(folder)], least)
    assert not first.quantized
    assert models.get([wanted(folder)], least) == [first]
    [second] = models.get([wanted(folder)], least - 1)
    assert second.quantized
    pairs = [wanted(folder), wanted(folder, "float16")]
    assert [model.quantized for model in ModelPool().get(pairs, whole_bytes + least)] == [False, False]
    assert [model.quantized for model in ModelPool().get(pairs, whole_bytes + least - 1)] == [False, True]
    shares = memory_shares(pairs, whole_bytes + least - 1)
    assert [dequantizes(each, room) for each, room in zip(pairs, shares, strict=True)] == [
        True,
        False,
    ]
    assert dequantizes(wanted(write_checkpoint(tmp_path / "plain")), PLENTY) is None
    assert later_sizes(pairs, memory_shares(pairs, whole_bytes + least)) == [whole_bytes, 0]

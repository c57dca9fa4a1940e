"""Models that a process keeps from one run to the next."""

from pathlib import Path

import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner import loaded
from mlx_bulk.runner.errors import OutOfRoom
from mlx_bulk.runner.loaded import Models
from mlx_bulk.runner.model import Checkpoint, find

from ..checkpoints import PLENTY, write_checkpoint

Wanted = tuple[ModelConfig, Checkpoint]


def wanted(folder: Path, dtype: str = "auto") -> Wanted:
    config = ModelConfig.model_validate({"path": str(folder), "dtype": dtype})
    return config, find(config)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return write_checkpoint(root / "a"), write_checkpoint(root / "b")


def test_a_model_is_loaded_once_and_another_precision_is_another_model(pair: tuple[Path, Path]) -> None:
    models = Models()
    first, second = models.get([wanted(pair[0]), wanted(pair[1])], PLENTY)
    assert models.get([wanted(pair[1]), wanted(pair[0])], PLENTY) == [second, first]
    [half] = models.get([wanted(pair[0], "bfloat16")], PLENTY)
    assert (first.dtype, half.dtype) == ("float32", "bfloat16")


def test_what_is_not_needed_is_dropped_before_anything_is_loaded(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[int] = []
    load = loaded.load

    def counting(config: ModelConfig, checkpoint: Checkpoint, memory: int) -> loaded.Model:
        budgets.append(memory)
        return load(config, checkpoint, memory)

    monkeypatch.setattr(loaded, "load", counting)
    models = Models()
    [first] = models.get([wanted(pair[0])], PLENTY)
    models.get([wanted(pair[1])], PLENTY)  # the first has made room
    models.get([wanted(pair[1]), wanted(pair[0])], PLENTY)  # both stand: the one that comes gets what the other leaves
    assert budgets == [PLENTY, PLENTY, PLENTY - first.weight_bytes]


def test_two_models_that_memory_cannot_hold_are_refused_with_their_sizes(pair: tuple[Path, Path]) -> None:
    size = sum(file.stat().st_size for file in pair[0].glob("*.safetensors"))
    models = Models()
    models.get([wanted(pair[0])], size)
    with pytest.raises(OutOfRoom, match=r"the weights take at least .* GB \(.*/a .* GB and .*/b .* GB\), batch.memory leaves"):
        models.get([wanted(pair[0]), wanted(pair[1])], size)

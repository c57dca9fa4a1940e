"""Tests that what a twin has shown is remembered, and for how long."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.kernels import native
from mlx_bulk.runner.checks import capabilities as trusting
from mlx_bulk.runner.checks.capabilities import Capabilities, capabilities_of, own_digest, own_sources
from mlx_bulk.runner.checks.scoring_check import Shortcuts
from mlx_bulk.runner.models.loader import LanguageModel
from mlx_bulk.runner.twins.tiny_twin import twin
from mlx_lm.models import llama

from ..support.twin_models import LLAMA, Half, model_of
from ..support.twin_models import folder as folder

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry a twin that was built."""
    found: list[int] = []

    def counting(network: Any, config: Any) -> Any:
        found.append(1)
        return twin(network, config)

    monkeypatch.setattr(trusting, "twin", counting)
    return found


@pytest.fixture(scope="module")
def first_verdict(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Capabilities]:
    """Where the twin of LLAMA is remembered, and what it shows."""
    root = tmp_path_factory.mktemp("remembered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root))
        found = capabilities_of(model_of(LLAMA))
    return root / "mlx-bulk" / "twins", found


@pytest.fixture
def remembered(first_verdict: tuple[Path, Capabilities], folder: Path, built: list[int]) -> Capabilities:
    """What the twin of LLAMA has shown, as if in an earlier process of this test."""
    kept, found = first_verdict
    shutil.copytree(kept, folder)
    assert capabilities_of(model_of(LLAMA)) == found
    assert built == []
    return found


def test_a_twin_is_tried_once(built: list[int], folder: Path):
    model = model_of(LLAMA)
    first = capabilities_of(model)
    assert capabilities_of(model) == capabilities_of(model_of(LLAMA)) == first
    assert first == Capabilities("padded", first.difference, "", Shortcuts(True, True, True, True))
    assert (len(built), len(list(folder.iterdir()))) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda model: model_of(LLAMA | {"rope_theta": 5000.0}), id="its config"),
        pytest.param(lambda model: model_of(LLAMA, Half(llama.ModelArgs.from_dict(LLAMA))), id="its model file", marks=pytest.mark.slow),
        pytest.param(lambda model: replace(model, substitutes=("attention",)), id="what computes it", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("remembered")
def test_another_model_has_another_twin(built: list[int], change: Callable[[LanguageModel], LanguageModel]):
    capabilities_of(change(model_of(LLAMA)))
    assert len(built) == 1


@pytest.mark.usefixtures("remembered")
def test_another_build_of_the_kernels_has_another_twin(built: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "name", lambda: "another build")
    capabilities_of(model_of(LLAMA))
    assert len(built) == 1


def test_every_source_that_computes_is_hashed():
    """A room or a header that is left out would let remembered verdicts outlive a change of its code."""
    root = Path(__file__).parents[3]
    named = {file.resolve().relative_to(root).as_posix() for file in own_sources()}
    files = (
        file for folder in ("runner", "kernels") for file in (root / folder).rglob("*") if file.suffix in {".py", ".h", ".cpp", ".cuh"}
    )
    assert named == {file.relative_to(root).as_posix() for file in files}
    assert named > {
        "runner/checks/capabilities.py",
        "kernels/attention.py",
        "kernels/csrc/library.cpp",
        "kernels/csrc/matmul.h",
        "kernels/csrc/padded_attention.cuh",
    }


@pytest.mark.usefixtures("remembered")
def test_another_source_of_ours_has_another_twin(built: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    header = tmp_path / "softmax.h"
    header.write_text("changed")
    sources = own_sources()
    monkeypatch.setattr(trusting, "own_sources", lambda: sources | {header})
    monkeypatch.setattr(trusting, "own_digest", own_digest.__wrapped__)  # as another process sees it
    capabilities_of(model_of(LLAMA))
    assert len(built) == 1


@pytest.mark.parametrize(
    "damage", [pytest.param(b"", marks=pytest.mark.slow), b"{}", pytest.param(b'{"way": "padded"}', marks=pytest.mark.slow), None]
)
def test_a_damaged_memory_counts_as_missing(built: list[int], folder: Path, remembered: Capabilities, damage: bytes | None):
    (kept,) = folder.iterdir()
    kept.write_bytes(kept.read_bytes().replace(b'"padded"', b'"alone!"') if damage is None else damage)
    assert capabilities_of(model_of(LLAMA)) == remembered
    assert len(built) == 1
    assert capabilities_of(model_of(LLAMA)) == remembered  # written anew
    assert len(built) == 1

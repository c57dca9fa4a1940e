"""Tests the folder of prefixes on disk: what it holds, whose prefixes it gives, and how its size is bounded."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.kernels import native
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.engine.prefill import compute_prefix
from mlx_bulk.runner.engine.prefix_disk_cache import ComputedPrefix, PrefixCache
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.models.loader import LanguageModel
from numpy.typing import NDArray

from ...checkpoints import loaded, write_adapter, write_checkpoint
from ..support.tiny import build, prompts_of
from ..support.tiny_runs import setup_of


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def stem(seed: int) -> tuple[NDArray[np.int32], ComputedPrefix]:
    ids = np.array(prompts_of((80,), seed)[0], np.int32)
    return ids, compute_prefix(setup_of(build("llama"), wanted=LogprobOptions()), ids, None)


def test_the_least_recently_used_goes_first(tmp_path: Path):
    kept = PrefixCache.opened(tmp_path, {})
    stems = [stem(seed) for seed in range(4)]
    path = tmp_path
    for at, (ids, base) in enumerate(stems[:3]):
        before = files(tmp_path)
        kept.save(ids, "", base)
        (path,) = set(files(tmp_path)) - set(before)
        os.utime(path, (at, at))
    small = replace(kept, most_bytes=int(3.5 * path.stat().st_size))

    def has(number: int) -> bool:
        return small.load(stems[number][0], "", lambda: make_caches(build("llama"), 1, padded=False)) is not None

    assert has(0)  # and is used now
    small.save(stems[3][0], "", stems[3][1])
    assert [has(number) for number in (0, 2, 3)] == [True] * 3
    assert not has(1)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= small.most_bytes
    assert len(small.known("")) == 3


def test_files_of_a_killed_process_are_removed_too(tmp_path: Path):
    left = tmp_path / f".{'0' * 64}.safetensors.77.tmp"
    left.write_bytes(b"x" * 100_000)
    os.utime(left, (5, 5))
    ids, base = stem(1)
    replace(PrefixCache.opened(tmp_path, {}), most_bytes=100_000).save(ids, "", base)
    assert [path.suffix for path in files(tmp_path)] == [".safetensors"]


def test_other_files_in_the_folder_stay(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    ids, base = stem(1)
    replace(PrefixCache.opened(tmp_path, {}), most_bytes=100_000).save(ids, "", base)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path):
    (tmp_path / "kv").write_text("")
    with pytest.raises(ModelError, match=r"batch\.prefix_cache: .*kv cannot be used \(File exists\); expected a folder, or null for none"):
        PrefixCache.opened(tmp_path / "kv", {})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("kept") / "tiny")


def fitted(model: LanguageModel, folder: Path, **more: Any) -> Setup:
    return fit(model, BatchConfig(prefix_cache=str(folder), **more), LogprobOptions()).setup


def test_the_identity_tells_models_adapters_and_precisions_apart(checkpoint: Path, tmp_path: Path):
    adapter = write_adapter(checkpoint, tmp_path / "adapter", "lora")
    models = [loaded(checkpoint), loaded(checkpoint, dtype="float16"), loaded(checkpoint, adapter=str(adapter))]
    found = [fitted(model, tmp_path / "kv").prefix_cache for model in (*models, models[0])]
    names = [one.identity for one in found if one is not None]
    assert len(names) == 4
    assert names[0] == names[3]
    assert len(set(names)) == 3


@pytest.mark.slow
def test_the_identity_tells_builds_of_the_kernels_apart(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def identity() -> str:
        kept = fitted(loaded(checkpoint), tmp_path / "kv").prefix_cache
        assert kept is not None
        return kept.identity

    before = identity()
    monkeypatch.setattr(native, "name", lambda: "another build")
    assert identity() != before


def test_without_shared_prefixes_the_folder_is_unused_and_a_line_says_so(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    assert fitted(loaded(checkpoint), tmp_path / "kv", deterministic=True).prefix_cache is None
    assert [r.getMessage() for r in caplog.records if "prefix_cache" in r.getMessage()] == [
        f"batch.prefix_cache: {tmp_path / 'kv'} is not used, as prompts of this run share no prefixes (batch.deterministic)"
    ]
    assert not (tmp_path / "kv").exists()

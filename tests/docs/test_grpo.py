"""Tests the GRPO example: one step of it beside a real run, and its loss in closed form."""

import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pyarrow.dataset as ds
import pytest
from mlx_bulk.runner.runs.run_dir import RunDir

from .pages import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "grpo"
EXACT = 1e-3


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLE)
    spec = util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_step_beside_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command = [sys.executable, str(EXAMPLE / "train.py"), "--steps", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve] == [0, 1]
    assert max(line["ratio_off"] for line in curve) < EXACT
    written: dict[str, mx.array] = mx.load(str(tmp_path / "adapters" / "step_000001" / "adapters.safetensors"))  # pyright: ignore[reportAssignmentType]
    assert all(np.array(tensor).any() for name, tensor in written.items() if name.endswith("lora_b"))  # 0 at first
    with RunDir.open(tmp_path / "rollouts"):  # raises where the run is still there
        pass
    grpo, train = imported("grpo", monkeypatch), imported("train", monkeypatch)
    records = ds.dataset(tmp_path / "rollouts" / "results", format="arrow").to_table(columns=grpo.COLUMNS).to_pylist()
    model = train.policy(seed=0)
    for version in (0, 1):  # each policy's tokens under it, and under the other
        batch = grpo.batch_of([record for record in records if record["policy_version"] == version])
        assert batch.mask.sum().item() > 500
        off: list[float] = []
        for tensors in ({name: mx.zeros_like(tensor) for name, tensor in written.items()}, written):
            model.load_weights(list(tensors.items()), strict=False)
            off.append(float(np.abs(np.array(grpo.ratios(model, batch)) - 1).max()))
        assert off[version] < EXACT
        assert off[1 - version] > 10 * EXACT


class Fixed:
    """Stands where the network does: logits that depend on the token before alone."""

    def __init__(self, logits: mx.array):
        self.logits = logits

    def __call__(self, ids: mx.array) -> mx.array:
        return self.logits[ids]


def test_the_loss_in_closed_form(monkeypatch: pytest.MonkeyPatch):
    """Ratios of 2 and 1/2 on both sides of the clip, a masked sample, temperature 2; padding counts nothing."""
    grpo = imported("grpo", monkeypatch)
    p = np.array([[0.5, 0.25, 0.25]] * 3)
    model = Fixed(mx.array(2.0 * np.log(p), mx.float32))

    def record(completion: list[int], old: list[float], advantage: float, mask: int = 1) -> dict[str, Any]:
        about = {"prompt_ids": [0, 1], "completion_ids": completion, "tempered_logprobs": np.log(old).tolist()}
        return about | {"completion_mask": [mask] * len(completion), "advantage": advantage, "temperature": 2.0}

    records = [record([0, 1], [0.25, 0.5], 1.0), record([0, 1, 2], [0.25, 0.5, 0.25], -1.0), record([1], [0.9], 5.0, mask=0)]
    batch = grpo.batch_of(records)
    assert batch.ids.shape == (3, 5)
    np.testing.assert_allclose(np.array(grpo.ratios(model, batch)), [[1, 2, 0.5, 1], [1, 2, 0.5, 1], [1, 1, 1, 1]], rtol=1e-6)
    # min(r A, clip(r) A): 1.2 and 0.5 with A = 1; -2, -0.8 and -1 with A = -1; five tokens.
    assert grpo.loss(model, batch).item() == pytest.approx(-(1.2 + 0.5 - 2 - 0.8 - 1) / 5, rel=1e-6)

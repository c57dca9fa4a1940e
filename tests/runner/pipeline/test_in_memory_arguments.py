"""Tests arguments of rollouts from Python, and the errors for those that cannot be used."""

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.jobs import Rollouts
from mlx_bulk.runner.core.errors import ModelError

from ...adapters import write_adapter
from ...jobs.support.bench import Bench
from .test_in_memory import SHARDS_OF_TWO, job

LORA: dict[str, Any] = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": {"rank": 4, "scale": 2.0}}


def test_a_folder_is_named_by_text_too_and_stays_where_it_was(bench: Bench, network: Any, monkeypatch: pytest.MonkeyPatch):
    write_adapter(bench.root / "lib" / "b", network, seed=4)
    monkeypatch.chdir(bench.root)
    with Rollouts(job(bench, **SHARDS_OF_TWO)) as rollouts:
        rollouts.update(np.int64(3), "lib/b")  # pyright: ignore[reportArgumentType] - a trainer's counter
        os.chdir("/")
        assert {version for group in rollouts for version in group["policy_version"].to_pylist()} == {3}


def test_what_is_handed_over_in_another_type_is_named(bench: Bench):
    with Rollouts(job(bench)) as rollouts:
        given: Any = rollouts
        array = mx.zeros((2, 2))
        for call, said in [
            (lambda: given.update("3", "lib"), "update: version: found str; expected the trainer's step, an int"),
            (lambda: given.update(True, "lib"), "version: found bool"),
            (lambda: given.update(3, {"a": array}), "update: adapter: found dict; expected the path of a folder, a str or Path"),
            (
                lambda: given.update_arrays(3, "lib/b", {}),
                "update_arrays: settings: found str; expected a mapping",
            ),
            (lambda: given.update_arrays(3, {"num_layers": np.int32(2)}, {}), "settings: 'num_layers' cannot be written as JSON"),
            (lambda: given.update_arrays(3, {"scale": float("nan")}, {}), "settings: 'scale' cannot be written as JSON"),
            (lambda: given.update_arrays(3, LORA, [("a", array)]), "tensors: found list; expected a mapping: dict(tree_flatten("),
            (lambda: given.update_arrays(3, LORA, {"a": np.zeros(2)}), "tensors: found numpy.ndarray under 'a'; expected mx.array"),
            (lambda: given.update_arrays(3, LORA, {5: array}), "tensors: found mlx.core.array under 5; expected mx.array"),
        ]:
            with pytest.raises(TypeError) as caught:
                call()
            assert said in str(caught.value)
        for settings, said in [
            ({"lora_parameters": {"rank": 4, "scale": 2.0}}, "adapter_config.json has no num_layers; expected a whole number"),
            (LORA | {"num_layers": "2"}, 'adapter_config.json: num_layers: found "2"; expected a whole number'),
            (LORA | {"lora_parameters": {"rank": 4, "alpha": 8}}, "scale"),
        ]:
            with pytest.raises(ModelError) as refused:
                given.update_arrays(3, settings, {})
            assert said in str(refused.value)
        assert rollouts.policy.version == 0


def test_closed_rollouts_say_so(bench: Bench):
    rollouts = Rollouts(job(bench))
    groups = iter(rollouts)
    assert next(groups).num_rows
    rollouts.close()
    rollouts.close()
    for call in (
        lambda: next(groups),
        lambda: iter(rollouts),
        lambda: list(rollouts),
        lambda: rollouts.update(1, Path("x")),
        lambda: rollouts.update_arrays(1, LORA, {}),
    ):
        with pytest.raises(RuntimeError, match="are closed; make others"):
            call()

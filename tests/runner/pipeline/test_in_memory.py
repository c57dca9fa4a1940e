"""Tests rollouts from Python: the records of the command, policies that change between shards, and no threads left."""

import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pyarrow as pa
import pytest
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_flatten
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.rollout import RolloutConfig
from mlx_bulk.jobs import Rollouts
from mlx_bulk.runner.core.errors import DataError, ModelError
from mlx_bulk.runner.layers.kernel_injection import restore
from mlx_lm.utils import load as mlx_lm_load
from mlx_lm.utils import load_adapters

from ...adapters import write_adapter
from ...checkpoints import loaded
from ...jobs.support.bench import ROWS, Bench, Record
from ...jobs.support.rollout_runs import SAMPLES, groups, rewards_file, roll
from ..support.naive_truth import log_probabilities

TOLERANCE = 2e-4  # decode against decode, or a full forward, of another shape
LOGPROBS = ("logprobs", "tempered_logprobs", "sampled_logprobs", "ref_logprobs", "ref_tempered_logprobs", "cumulative_logprob")
SHARDS_OF_TWO: dict[str, Any] = {"batch": {"rows_per_shard": 2}}


def job(bench: Bench, rows: list[Record] | None = None, **sections: Any) -> RolloutConfig:
    """The config that ``roll`` runs."""
    sampling = {"n": SAMPLES, "max_tokens": 6, "temperature": 1.0} | sections.pop("sampling", {})
    config = load_config(bench.write_config(rows, **{"job": "rollout", "sampling": sampling} | sections))
    assert isinstance(config, RolloutConfig)
    return config


def in_order(found: Iterable[pa.RecordBatch]) -> pa.Table:
    """Groups as the parts of a run have them."""
    return pa.Table.from_batches(sorted(found, key=lambda group: (group["round"][0].as_py(), group["row"][0].as_py())))


def rewarded(bench: Bench) -> dict[str, Any]:
    return {"rewards": [{"fn": f"{rewards_file(bench)}:vowels"}, {"fn": f"{rewards_file(bench)}:long_enough", "weight": 0.5}]}


def running() -> tuple[set[str], set[int]]:
    """Returns the threads and processes of ours that a pass may leave."""
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,comm="], capture_output=True, text=True, check=False).stdout
    pids = {int(line.split()[0]) for line in children.splitlines() if not line.endswith("ps")}
    return {thread.name for thread in threading.enumerate()}, pids


def left_since(before: tuple[set[str], set[int]]) -> tuple[set[str], set[int]]:
    """Returns what is running now and was not before. Threads of other tests may end meanwhile."""
    threads, pids = running()
    return threads - before[0], pids - before[1]


@pytest.mark.slow
def test_the_records_are_those_of_a_run(bench: Bench):
    settings: dict[str, Any] = (
        rewarded(bench) | SHARDS_OF_TWO | {"rounds": 2, "policy": {"reference": "base"}, "data": {"key": "id", "keep": ["q"]}}
    )
    done = roll(bench, sampling={"temperature": 0.7, "top_p": 0.9}, logprobs={"kept": True}, **settings)
    assert done.code == 0, done.stderr
    with Rollouts(job(bench, sampling={"temperature": 0.7, "top_p": 0.9}, logprobs={"kept": True}, **settings)) as rollouts:
        table = in_order(rollouts)
        assert rollouts.schema.remove_metadata() == done.table.schema.remove_metadata()
    assert rollouts.errors == []
    exact = [name for name in table.column_names if name not in LOGPROBS]
    assert {"completion_ids", "reward", "rewards", "advantage", "seed", "group_id", "kept_ids", "input", "policy_sha"} <= set(exact)
    assert table.select(exact).to_pylist() == done.table.select(exact).to_pylist()
    for name in LOGPROBS:
        for ours, run in zip(table[name].to_pylist(), done.table[name].to_pylist(), strict=True):
            np.testing.assert_allclose(ours, run, rtol=0, atol=TOLERANCE * (6 if name == "cumulative_logprob" else 1))


def test_in_deterministic_mode_they_are_the_runs_to_the_bit(bench: Bench):
    settings: dict[str, Any] = rewarded(bench) | {"batch": {"rows_per_shard": 2, "deterministic": True}}
    done = roll(bench, **settings)
    with Rollouts(job(bench, **settings)) as rollouts:
        assert in_order(rollouts).to_pylist() == done.records


def under_its_own(network: Any, records: Iterable[Record]) -> tuple[float, int]:
    """The largest difference of the stored logprobs from a full forward of ``network``, and how many tokens were compared."""
    gaps = [np.zeros(0)]
    for record in records:
        prompt, ids = record["prompt_ids"], record["completion_ids"]
        expected = log_probabilities(network, prompt + ids)[len(prompt) - 1 : -1][np.arange(len(ids)), ids]
        gaps.append(np.abs(expected - np.array(record["logprobs"])))
    every = np.concatenate(gaps)
    return float(every.max()), len(every)


@pytest.mark.parametrize("update", ["shard", pytest.param("round", marks=pytest.mark.slow)])
def test_an_update_between_groups_is_taken_at_the_next_border(bench: Bench, network: Any, update: str):
    """In the middle of a shard it waits for the shard's end: no row sees two policies, and none the caches of the other."""
    adapter = write_adapter(bench.root / "adapter", network, seed=4)
    rows = [{"q": f"My lord, there is a messenger at the gate who says {word}."} for word in ("yes", "no", "go", "stay", "peace")]
    found: list[pa.RecordBatch] = []
    with Rollouts(job(bench, rows=rows, rounds=2, policy={"update": update}, **SHARDS_OF_TWO)) as rollouts:
        for group in rollouts:
            found.append(group)
            if len(found) == 1:
                rollouts.update(7, adapter)
                assert rollouts.policy.version == 0
        assert rollouts.policy.version == 7
    records = in_order(found).to_pylist()
    by_policy = {version: [record for record in records if record["policy_version"] == version] for version in (0, 7)}
    old = {(record["round"], record["row"]) for record in by_policy[0]}
    assert old == {(0, row) for row in (range(2) if update == "shard" else range(5))}
    assert len(groups(records)) == 10
    assert len({record["policy_sha"] for record in records}) == 2
    later = load_adapters(loaded(bench.model).network, str(adapter))
    later.eval()
    for version, own, other in ((0, network, later), (7, later, network)):
        gap, tokens = under_its_own(own, by_policy[version])
        assert (gap <= TOLERANCE, tokens > 20) == (True, True)
        assert under_its_own(other, by_policy[version])[0] > 0.1


def test_arrays_update_the_policy_as_their_folder_does(bench: Bench, network: Any):
    adapter = write_adapter(bench.root / "adapter", network, seed=4)
    settings = {
        "fine_tune_type": "lora",
        "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": 2.0, "dropout": 0.1, "keys": ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"]},
    }
    tensors: dict[str, mx.array] = mx.load(str(adapter / "adapters.safetensors"))  # pyright: ignore[reportAssignmentType]
    found: list[list[Record]] = []
    with Rollouts(job(bench)) as rollouts:
        base = in_order(rollouts).to_pylist()
        for version in (1, 2):
            if version == 1:
                rollouts.update(version, adapter)
            else:
                rollouts.update_arrays(version, settings, tensors)
            found.append(in_order(rollouts).to_pylist())
            assert {record["policy_version"] for record in found[-1]} == {version}
    assert [record["completion_ids"] for record in found[0]] == [record["completion_ids"] for record in found[1]]
    assert [record["logprobs"] for record in found[0]] == [record["logprobs"] for record in found[1]]
    assert [record["logprobs"] for record in found[0]] != [record["logprobs"] for record in base]


def test_an_unfit_update_is_refused_and_the_old_policy_goes_on(bench: Bench, network: Any):
    fits, does_not = write_adapter(bench.root / "fits", network, seed=4), bench.root / "does not"
    write_adapter(does_not, network)
    (does_not / "adapters.safetensors").write_bytes((does_not / "adapters.safetensors").read_bytes()[:-40])
    found: list[pa.RecordBatch] = []
    with Rollouts(job(bench, **SHARDS_OF_TWO)) as rollouts:
        for group in rollouts:
            found.append(group)
            if len(found) == 1:
                with pytest.raises(ModelError, match="does not"):
                    rollouts.update(3, does_not)
                with pytest.raises(ModelError, match="holds no adapter_config"):
                    rollouts.update(3, bench.root)
            if len(found) == 3:
                rollouts.update(3, fits)
                with pytest.raises(ConfigError, match="found version 3, and 3 was there before"):
                    rollouts.update(3, fits)
                with pytest.raises(ConfigError, match="3 was there before"):
                    rollouts.update_arrays(3, {}, {})
    records = in_order(found).to_pylist()
    assert [record["policy_version"] for record in records[::SAMPLES]] == [0, 0, 0, 0, 3]
    assert under_its_own(network, records[: 4 * SAMPLES])[0] <= TOLERANCE


def test_an_abandoned_pass_leaves_nothing_running(bench: Bench):
    """Left in the middle, with groups in the model, and with a reward function that hangs."""
    source = """
import threading
def hangs(completions, q, **kwargs):
    if q[0] == "O":
        threading.Event().wait()
    return [0.0 for _ in completions]
"""
    before = running()
    config = job(bench, rewards=[{"fn": f"{rewards_file(bench, source)}:hangs"}], batch={"rows": 4}, rounds=2)
    with Rollouts(config) as rollouts:
        for _ in rollouts:
            assert {"prepare", "record"} & running()[0]
            assert running()[1] - before[1]
            break
        assert left_since(before) == (set(), set())
        first = iter(rollouts)
        next(first)
        second = iter(rollouts)  # takes the first one's place
        assert next(first, None) is None
        next(second)
        rollouts.close()
        assert left_since(before) == (set(), set())
    assert multiprocessing.active_children() == []


def test_a_network_of_the_same_kind_can_be_trained_between_groups(bench: Bench):
    """Fast CPU kernels have no gradients, so they are in mlx-lm's model files only while the engine runs."""
    trained, ids = mlx_lm_load(str(bench.model))[0], mx.array([[5, 9, 13, 40]])
    gradient = value_and_grad(trained, lambda model: mx.logsumexp(model(ids), axis=-1).sum())
    expected, gradients = gradient(trained)
    truth: dict[str, mx.array] = dict(tree_flatten(gradients))
    with Rollouts(job(bench, **SHARDS_OF_TWO)) as rollouts:
        for _ in rollouts:
            loss, gradients = gradient(trained)
            assert loss.item() == expected.item()
            found: dict[str, mx.array] = dict(tree_flatten(gradients))
            for name, theirs in truth.items():
                assert mx.array_equal(found[name], theirs), name


def test_an_update_takes_the_place_of_a_fixed_adapter(bench: Bench, network: Any):
    first, second = (write_adapter(bench.root / name, network, seed=seed) for name, seed in (("first", 4), ("second", 5)))
    found: list[pa.RecordBatch] = []
    restore(network)  # mlx-lm's model files are as in a new process
    with Rollouts(job(bench, policy={"adapter": str(first), "reference": "base"}, **SHARDS_OF_TWO)) as rollouts:
        for group in rollouts:
            found.append(group)
            if len(found) == 2:
                rollouts.update(9, second)
    records = in_order(found).to_pylist()
    assert [record["policy_version"] for record in records[::SAMPLES]] == [0, 0, 9, 9, 9]
    for version, adapter in ((0, first), (9, second)):
        own = load_adapters(loaded(bench.model).network, str(adapter))
        own.eval()
        assert under_its_own(own, [record for record in records if record["policy_version"] == version])[0] <= TOLERANCE
    base = [record | {"logprobs": record["ref_logprobs"]} for record in records]
    assert under_its_own(network, base)[0] <= TOLERANCE


def test_a_pass_begins_with_the_first_row_and_the_policy_that_is_there(bench: Bench, network: Any):
    adapter = write_adapter(bench.root / "adapter", network, seed=4)
    with Rollouts(job(bench, **SHARDS_OF_TWO)) as rollouts:
        first = in_order(rollouts).to_pylist()
        assert in_order(rollouts).to_pylist() == first
        rollouts.update(1, adapter)
        for group in rollouts:
            assert group["policy_version"].to_pylist() == [1] * SAMPLES
            assert group["row"][0].as_py() in (0, 1)
            break


@pytest.mark.slow
def test_rows_without_a_group_are_told_of(bench: Bench, caplog: pytest.LogCaptureFixture):
    source = "def same(completions, q, **kwargs):\n    return [float(i if q[0] != 'O' else 1) for i in range(len(completions))]\n"
    rows = [ROWS[0], {"id": "x"}, ROWS[2]]
    settings: dict[str, Any] = {"rewards": [{"fn": f"{rewards_file(bench, source)}:same"}], "drop_degenerate": True, "rounds": 2}
    done = roll(bench, rows=rows, **settings)
    logging.getLogger("mlx_bulk").addHandler(caplog.handler)  # the command keeps its log to itself
    with Rollouts(job(bench, rows=rows, **settings)) as rollouts:
        found = in_order(rollouts).to_pylist()
    logging.getLogger("mlx_bulk").removeHandler(caplog.handler)
    assert list(groups(found)) == list(groups(done.records)) == [(0, 0), (1, 0)]
    assert [record["completion_ids"] for record in found] == [record["completion_ids"] for record in done.records]
    assert sorted(rollouts.errors, key=lambda error: (error["round"], error["row"])) == done.errors
    assert [(error["round"], error["row"], error["error"]) for error in done.errors] == [
        (around, row, error) for around in range(2) for row, error in ((1, "RowError"), (2, "DegenerateGroup"))
    ]
    assert {record.getMessage() for record in caplog.records if "no group" in record.getMessage()} == {
        f"2 rows have no group, the first for: {done.errors[0]['message']}"
    }
    with pytest.raises(DataError, match="on_error: fail, and row 1"), Rollouts(job(bench, rows=rows, on_error="fail")) as failing:
        list(failing)


def test_a_folder_to_watch_is_refused(bench: Bench):
    with pytest.raises(ConfigError, match=r"policy\.watch: expected null"):
        Rollouts(job(bench, policy={"watch": "adapters"}))


@pytest.mark.slow
def test_importing_the_package_does_not_import_what_rollouts_need(tmp_path: Path):
    source = (
        "import sys, mlx_bulk.jobs\nprint({'pyarrow', 'mlx_lm', 'transformers'} & set(sys.modules))\nfrom mlx_bulk.jobs import Rollouts"
    )
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert said == "set()\n"

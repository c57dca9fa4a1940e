"""Tests policies that cannot be stored, read or found again: records name the right one, and a run never goes back unsaid."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.policies import policy_store

from ...adapters import write_adapter
from ..support.policies import Run
from ..support.tiny import fresh


def logits(run: Run) -> np.ndarray[Any, Any]:
    return np.array(run.network(mx.array([[0, 1, 1, 0]])).astype(mx.float32))


def no_room(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["sync_file", "write_document", "fsync_folder", "append_line"])
def test_a_policy_that_cannot_be_stored_does_not_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str):
    run = Run(tmp_path)
    base, folder = logits(run), write_adapter(tmp_path / "step_000012", fresh())
    run.given.add(folder, 12)
    with monkeypatch.context() as patch:
        patch.setattr(policy_store, step, no_room)
        with pytest.raises(OSError, match="No space left"):
            run.updater.load_newest()
    assert (run.updater.policy.version, run.updater.refused) == (0, 0)
    np.testing.assert_array_equal(logits(run), base)
    run.updater.load_newest()
    assert run.updater.policy.version == 12
    assert np.abs(logits(run) - base).max() > 0.01


def test_an_offer_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = Run(tmp_path)
    folder, opened = write_adapter(tmp_path / "step_000012", fresh()), Path.open

    def bad_disk(path: Path, *how: Any, **more: Any) -> Any:
        if path == folder / "adapters.safetensors":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", bad_disk)
    run.given.add(folder, 12)
    run.updater.load_newest()
    assert (run.updater.policy.version, run.updater.refused) == (0, 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "broken",
    [
        lambda kept: flip(kept / "adapters.safetensors"),
        lambda kept: flip(kept / "policy.json"),
        lambda kept: [file.unlink() for file in kept.iterdir()] and kept.rmdir(),
    ],
    ids=["adapter", "policy.json", "gone"],
)
def test_a_run_does_not_go_back_where_its_newest_policy_is_damaged(
    tmp_path: Path, broken: Callable[[Path], None], caplog: pytest.LogCaptureFixture
):
    watch = tmp_path / "adapters"
    step = write_adapter(watch / "step_000012", fresh())
    first = Run(tmp_path, watch).updater.policy
    step.rename(tmp_path / "taken-away")
    assert first.adapter is not None
    broken(first.adapter)
    with pytest.raises(ModelError, match="policy 12 has sampled in this run and cannot be loaded any more; the newest that can be is 0"):
        Run(tmp_path, watch)
    assert ("is not" in caplog.text) == first.adapter.exists()  # which one, and why
    (tmp_path / "taken-away").rename(step)
    assert Run(tmp_path, watch).updater.policy == first
    assert Run(tmp_path, watch).store.policy(first.name) == first


def test_steps_that_no_record_can_hold_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    watch = tmp_path / "adapters"
    write_adapter(watch / "step_20261121224600", fresh())
    write_adapter(watch / f"step_{2**31 - 1}", fresh())
    with caplog.at_level("INFO", logger="mlx_bulk"):
        run = Run(tmp_path, watch)
    assert run.updater.policy.version == run.updater.newest_version() == 2**31 - 1
    assert caplog.text.count("step_20261121224600: is passed over, as its step is not below 2,147,483,648") == 1
    with pytest.raises(ConfigError, match="found version 2,147,483,648; expected"):
        run.given.add(tmp_path, 2**31)


def test_a_folder_of_older_steps_gives_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    watch = tmp_path / "adapters"
    write_adapter(watch / "step_000012", fresh())
    assert Run(tmp_path, watch).updater.policy.version == 12
    assert "older" not in caplog.text
    other = tmp_path / "other"
    write_adapter(other / "step_000003", fresh())
    run = Run(tmp_path, other)
    assert not run.updater.newer_available
    assert caplog.text.count("the newest step there is 3, older than policy 12") == 1


def test_resume_puts_on_an_older_policy_and_the_base(tmp_path: Path):
    run = Run(tmp_path)
    base, found = logits(run), dict[str, Any]()
    policies = [run.updater.policy]
    for version in (3, 9):
        run.given.add(write_adapter(tmp_path / f"{version}", fresh(), seed=version), version)
        run.updater.load_newest()
        policies.append(run.updater.policy)
        found[policies[-1].name] = logits(run)
    for policy in (policies[1], policies[0], policies[2]):
        run.updater.load_kept(policy.name)
        assert run.updater.policy == policy
        np.testing.assert_array_equal(logits(run), found.get(policy.name, base))
    with pytest.raises(ModelError, match="is not kept there"):
        run.updater.load_kept("7-0123456789ab")
    assert run.updater.policy == policies[2]

"""Tests which policy a run over workers names for each shard, when it is started once or again, and when workers refuse it."""

from pathlib import Path

import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.policies.policy_desk import PolicyDesk
from mlx_bulk.runner.policies.policy_source import DONE, FolderSource
from mlx_bulk.runner.policies.policy_store import PolicyStore
from mlx_bulk.runner.store.paths import RunPaths

LAYOUT = Layout(rows=8, rows_per_shard=2, rounds=2)


class Run:
    """A run's folder, and the trainer's."""

    def __init__(self, root: Path):
        self.root, self.watch = root / "run", root / "adapters"

    def step(self, number: int, content: str = "{}") -> Path:
        folder = self.watch / f"step_{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(content)
        (folder / "adapters.safetensors").write_bytes(b"tensors" * number)
        (folder / DONE).touch()
        return folder

    def desk(self, whole_rounds: bool = False) -> PolicyDesk:
        paths = RunPaths(self.root)
        return PolicyDesk(paths, PolicyStore(paths.policies, "weights"), FolderSource(self.watch), LAYOUT, whole_rounds, set())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def version(name: str) -> int:
    return int(name.split("-")[0])


def test_a_shard_keeps_the_policy_it_was_begun_with_over_starts(run: Run):
    desk = run.desk()
    assert version(desk.of(0)) == 0
    run.step(3)
    assert [version(desk.of(shard)) for shard in (0, 1)] == [0, 3]
    desk.note_loaded(desk.of(1))
    run.step(5)
    again = run.desk()
    assert [version(again.of(shard)) for shard in (1, 0, 2)] == [3, 0, 5]
    assert again.newest_version() == 5


def test_by_rounds_all_shards_of_a_round_have_one(run: Run):
    desk = run.desk(whole_rounds=True)
    assert version(desk.of(2)) == 0
    run.step(3)
    assert [version(desk.of(shard)) for shard in range(8)] == [0] * 4 + [3] * 4


def test_a_refused_policy_gives_its_shards_to_the_next_older_one(run: Run):
    run.step(2)
    run.step(3)
    desk = run.desk()
    refused = desk.of(0)
    assert version(refused) == 3
    assert desk.refuse(refused, "no such layer")
    assert version(desk.of(0)) == 2
    assert desk.folder(refused) is None
    assert version(run.desk().of(1)) == 3  # another start tries it again
    desk.note_loaded(desk.of(0))
    run.step(3, '{"rank": 2}')  # the trainer has mended it
    assert version(desk.of(1)) == 3


def test_what_was_loaded_once_is_not_refused_for_one_worker(run: Run):
    run.step(3)
    desk = run.desk()
    desk.note_loaded(desk.of(0))
    assert not desk.refuse(desk.of(0), "no room")
    assert version(desk.of(0)) == 3
    assert not run.desk().refuse(desk.of(0), "no room")


def test_a_start_that_died_before_anyone_loaded_a_policy_does_not_bind_the_next(run: Run):
    folder = run.step(3)
    desk = run.desk()
    (run.root / "policies" / desk.of(0) / "adapters.safetensors").unlink()
    (folder / DONE).unlink()
    assert version(run.desk().of(0)) == 0


def test_a_run_does_not_go_back(run: Run):
    folder = run.step(3)
    desk = run.desk()
    desk.note_loaded(desk.of(0))
    (run.root / "policies" / desk.of(0) / "adapters.safetensors").unlink()
    (folder / DONE).unlink()
    with pytest.raises(ModelError, match="policy 3 has sampled in this run and cannot be loaded any more"):
        run.desk()

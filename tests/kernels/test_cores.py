"""Tests how many cores are used in a container."""

import os
from pathlib import Path

import pytest
from mlx_bulk.kernels.cpu import cores


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n", "cpu.max": "600000 100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_quota_limits_the_cores(tmp_path: Path, files: dict[str, str], found: int):
    own = tmp_path / "own"
    own.write_text("1:cpu:/\n0::/a/b\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert cores.usable_cores(tmp_path / "groups", own) == found

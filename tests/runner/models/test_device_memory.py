"""Tests when spare buffers go back to the system."""

import mlx.core as mx
import pytest
from mlx_bulk.kernels import backend
from mlx_bulk.runner.models.device_memory import limit_spare_memory


@pytest.mark.parametrize(("device", "spare", "cleared"), [("cpu", 1, True), ("cuda", 99, False), ("cuda", 101, True), ("metal", 99, False)])
def test_a_gpu_keeps_spare_buffers_until_they_are_many(monkeypatch: pytest.MonkeyPatch, device: str, spare: int, cleared: bool):
    calls: list[int] = []
    monkeypatch.setattr(backend, "device_name", lambda: device)
    monkeypatch.setattr(backend, "memory_bytes", lambda: 800)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: spare)
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append(1))
    limit_spare_memory()
    assert bool(calls) == cleared

"""Pictures named by a path, over workers in processes of their own that have no such files, while engine, agent and driver are killed."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from ..vision_folders import drawn, picture_bytes, write_vision_model
from .test_cluster_processes import COMMAND, ENVIRONMENT, PATIENCE, engines, parts, require_sound

pytest.importorskip("distributed")
pytestmark = [pytest.mark.oracle, pytest.mark.slow]
ROWS, PICTURES, SHARD = 120, 7, 8


@pytest.fixture(name="folder")
def a_folder(tmp_path: Path) -> Path:
    """The driver's folder: rows, pictures and a model, all under relative paths but the model."""
    folder, model = tmp_path / "here", tmp_path / "model"
    folder.mkdir()
    write_vision_model(model, "qwen2_vl")
    for i in range(PICTURES):
        (folder / f"{i}.png").write_bytes(picture_bytes(drawn(30 + 20 * i, 40, i)))
    rows = [{"q": f"What is {i}?", "image": [f"{i % PICTURES}.png", "0.png"][: i % 3]} for i in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {
        "job": "generate",
        "model": {"path": str(model)},
        "data": {"path": "rows.jsonl"},
        "prompt": {"user": "{{ q }}", "images": "image"},
        "sampling": {"max_tokens": 6, "temperature": 1.0},
        "batch": {"rows": 4, "rows_per_shard": SHARD, "deterministic": True},
        "output": {"path": "plain"},
    }
    (folder / "plain.json").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config |= {"output": {"path": "cluster"}, "cluster": {"listen": f"127.0.0.1:{free.getsockname()[1]}"}}
    (folder / "cluster.json").write_text(json.dumps(config))
    return folder


def started(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, *words], cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def worker(folder: Path) -> "subprocess.Popen[bytes]":
    """Starts a worker in a folder of its own: the relative paths of the driver lead nowhere there."""
    away = folder.parent / "away"
    away.mkdir(exist_ok=True)
    listen = json.loads((folder / "cluster.json").read_text())["cluster"]["listen"]
    return started(away, "worker", f"tcp://{listen}", "--once")


def wait_for_parts(folder: Path, driver: "subprocess.Popen[bytes]", count: int) -> None:
    deadline = monotonic() + PATIENCE
    while len(list((folder / "cluster").glob("results/*"))) < count and driver.poll() is None:
        assert monotonic() < deadline
        sleep(0.02)


@pytest.fixture(name="processes")
def processes_that_end() -> Iterator[list["subprocess.Popen[bytes]"]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for each in running:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(each.pid).children(recursive=True):
                child.kill()
        each.kill()
        each.wait()


def test_kills_of_engine_agent_and_driver_change_no_byte(folder: Path, processes: list["subprocess.Popen[bytes]"]) -> None:
    assert started(folder, "run", "plain.json", "--quiet").wait() == 0
    driver, first, second = started(folder, "run", "cluster.json", "--quiet"), worker(folder), worker(folder)
    processes += [driver, first, second]
    wait_for_parts(folder, driver, 2)
    next(engines(first)).kill()
    wait_for_parts(folder, driver, 5)
    second.kill()
    processes.append(worker(folder))
    wait_for_parts(folder, driver, 9)
    assert driver.poll() is None
    driver.kill()
    driver.wait()
    driver = started(folder, "run", "cluster.json", "--quiet")
    processes.append(driver)
    assert driver.wait(PATIENCE) == 0
    assert parts(folder / "cluster") == parts(folder / "plain")
    require_sound(folder / "cluster")

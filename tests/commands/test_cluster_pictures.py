"""Rows that name pictures by a path, over workers that have no such files: the bytes of a plain run, and its errors.

Workers are threads here, which may not open a picture; see ThreadFleet.
"""

import json
import threading
from collections.abc import Callable, Generator
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.sweep import SweepConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.sweep.sweep import run_sweep
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.images.sources import PictureFile
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.parcels import picture_desk
from mlx_bulk.runner.parcels.file_messages import PicturePart
from mlx_bulk.runner.pipeline.model_work import ModelWork, SessionWork
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.runs.summary import Summary
from mlx_bulk.runner.store.results import read_errors

from ..jobs.support.cluster_runs import engine, mortal_fleet, parts, run_config
from ..jobs.verify.test_verify import verify
from ..runner.support.thread_fleet import ThreadFleet
from ..vision_folders import data_url, drawn, picture_bytes, write_vision_model

pytestmark = pytest.mark.oracle
PICTURES = {f"{i}.png": picture_bytes(drawn(30 + 20 * i, 40, i)) for i in range(4)} | {
    "cut.png": picture_bytes()[:200],
    "letter.png": b"Dear reader",
    "page.png": b"<html></html>",
}
JOBS: dict[str, dict[str, Any]] = {
    "generate": {"job": "generate", "sampling": {"max_tokens": 3, "temperature": 1.0, "n": 2}},
    "parts of messages": {"job": "generate", "prompt": {"messages": "chat"}, "sampling": {"max_tokens": 3, "temperature": 0}},
    "score": {"job": "score", "score": {"completion": "{{ said }}"}},
    "rollout": {"job": "rollout", "sampling": {"max_tokens": 2, "n": 2}, "rewards": [{"fn": "regex", "args": {"pattern": "e"}}]},
    "embed": {"job": "embed", "embed": {"pooling": "lasttoken"}},
}
TEXT = {"prompt": {"user": "{{ q }}", "images": "image"}}


@pytest.fixture(scope="module", name="model")
def a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_vision_model(folder, "qwen2_vl")
    return folder


@pytest.fixture(name="folder")
def a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the rows and pictures. One row's picture is cut off, one's is not there, one's lies elsewhere, and two are none."""
    for name, data in PICTURES.items():
        (tmp_path / name).write_bytes(data)
    rows: list[dict[str, Any]] = [
        {"q": f"What is {i}?", "image": [f"{i % 4}.png", data_url(PICTURES["0.png"]), "0.png"][: i % 3], "said": f" a dog {i}"}
        for i in range(24)
    ]
    rows[5]["image"], rows[9]["image"], rows[14]["image"] = ["cut.png"], ["gone.png"], ["../0.png"]
    rows[16]["image"], rows[20]["image"] = ["letter.png"], ["0.png", "page.png"]
    for row in rows:
        images = [{"type": "image_url", "image_url": {"url": image}} for image in row["image"]]
        row["chat"] = [{"role": "user", "content": [*images, {"type": "text", "text": row["q"]}]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(picture_desk, "PART_BYTES", 700)
    return tmp_path


def run(folder: Path, model: Path, work: SessionWork, output: str, **sections: Any) -> Summary:
    config = {
        "model": {"path": str(model)},
        "data": {"path": "rows.jsonl"},
        **TEXT,
        "batch": {"rows": 4, "rows_per_shard": 6, "deterministic": True, "image_memory": 0.000005},
        "output": {"path": str(folder / output)},
        **sections,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    return run_config(folder / "job.yaml", work)


def errors(run: Path) -> list[tuple[int, str, str]]:
    return sorted((each["row"], each["stage"], each["message"]) for batch in read_errors(run) for each in batch.to_pylist())


@pytest.fixture(name="driver_reads")
def the_driver_alone_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns what lets only this thread open pictures from then on."""
    opened = PictureFile.opened

    def only_here(self: PictureFile) -> Any:
        assert threading.current_thread() is threading.main_thread(), f"a worker opens {self.place}"
        return opened(self)

    return lambda: monkeypatch.setattr(PictureFile, "opened", only_here)


QUICK = "generate"


@pytest.mark.parametrize("job", [each if each == QUICK else pytest.param(each, marks=pytest.mark.slow) for each in JOBS])
def test_workers_get_pictures_from_the_driver(job: str, folder: Path, model: Path, driver_reads: Callable[[], None]) -> None:
    plain = run(folder, model, ModelWork(ModelPool()), "plain", **JOBS[job])
    driver_reads()
    fleet, frames = mortal_fleet(2, nth=2)
    over = run(folder, model, ClusterWork(lambda: fleet, ClusterConfig(workers=2)), "cluster", **JOBS[job])
    fleet.end(True)
    assert next(frames) > 2
    assert (over.complete, over.rows, over.records, over.errors) == (True, plain.rows, plain.records, plain.errors)
    assert {row for row, _, _ in errors(folder / "plain")} == {5, 9, 14, 16, 20}
    assert errors(folder / "cluster") == errors(folder / "plain")
    assert parts(folder / "cluster") == parts(folder / "plain")
    assert verify(folder / "cluster").exit_code == 3
    per_worker: dict[str, int] = {}
    for worker, message in fleet.sent:
        if isinstance(message, PicturePart):
            per_worker[worker] = per_worker.get(worker, 0) + len(message.content)
    assert per_worker
    assert max(per_worker.values()) <= sum(map(len, PICTURES.values()))  # each picture once, however many rows name it


def test_a_picture_that_changes_after_its_row_was_read_is_an_error_of_its_row(folder: Path, model: Path) -> None:
    """Each row's picture is asked for twice: when the row is read, and before the tower."""
    (folder / "rows.jsonl").write_text("".join(json.dumps({"q": str(i), "image": f"{i}.png"}) + "\n" for i in range(3)))
    changes = {sha256(PICTURES["1.png"]).hexdigest(): "1.png", sha256(PICTURES["2.png"]).hexdigest(): "2.png"}

    class Changing(ThreadFleet):
        """Changes a picture, and removes another, once they have been sent."""

        def send(self, worker: str, message: Any) -> None:
            super().send(worker, message)
            if isinstance(message, PicturePart) and message.content and message.offset + len(message.content) == message.size:
                changed = changes.pop(message.digest, None)
                if changed == "1.png":
                    (folder / changed).write_bytes(PICTURES["3.png"])
                elif changed == "2.png":
                    (folder / changed).unlink()

    fleet = Changing(engine, 1)
    over = run(folder, model, ClusterWork(lambda: fleet, ClusterConfig(workers=1)), "cluster", **JOBS["parts of messages"] | TEXT)
    fleet.end(True)
    assert (over.complete, over.records, over.errors) == (True, 1, 2)
    (first, second) = errors(folder / "cluster")
    assert first[:2] == (1, "image")
    assert "image: 1.png changed while the run read it; put it back as it was, then run again with --retry-errors" in first[2]
    assert second[:2] == (2, "image")
    assert "image: 2.png is not there; paths begin at" in second[2]


class Quiet(SimpleHTTPRequestHandler):
    """Serves the files of a folder, and keeps no log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        return


@pytest.fixture(name="web")
def a_web_server(folder: Path) -> Generator[str]:
    """Returns the address at which the folder's files are."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: Quiet(*given, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
def test_workers_fetch_pictures_of_the_web_themselves(folder: Path, model: Path, web: str) -> None:
    rows = [{"q": f"What is {i}?", "image": [f"{web}/{i % 4}.png"][: i % 3]} for i in range(12)]
    rows[4]["image"], rows[7]["image"] = [f"{web}/gone.png"], [f"{web}/cut.png"]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = JOBS["generate"] | {"data": {"path": "rows.jsonl", "fetch": True}}
    plain = run(folder, model, ModelWork(ModelPool()), "plain", **sections)
    fleet, _ = mortal_fleet(2, nth=2)
    over = run(folder, model, ClusterWork(lambda: fleet, ClusterConfig(workers=2)), "cluster", **sections)
    fleet.end(True)
    assert (over.complete, over.rows, over.records, over.errors) == (True, plain.rows, plain.records, plain.errors)
    assert [(row, stage) for row, stage, _ in errors(folder / "plain")] == [(4, "image"), (7, "image")]
    assert errors(folder / "cluster") == errors(folder / "plain")
    assert parts(folder / "cluster") == parts(folder / "plain")
    assert not [message for _, message in fleet.sent if isinstance(message, PicturePart)]


@pytest.mark.slow
def test_each_cell_of_a_sweep_gets_pictures_from_the_driver(folder: Path, model: Path, driver_reads: Callable[[], None]) -> None:
    batch = {"rows": 4, "rows_per_shard": 6, "deterministic": True}
    base = {**JOBS["generate"], **TEXT, "model": {"path": str(model)}, "data": {"path": "rows.jsonl"}, "batch": batch}
    fleet, _ = mortal_fleet(2, nth=2)

    def swept(output: str, work: SessionWork) -> dict[str, Any]:
        path = folder / f"{output}.yaml"
        values = {"job": "sweep", "base": base, "matrix": {"sampling.temperature": [0, 0.7]}, "output": {"path": str(folder / output)}}
        path.write_text(yaml.safe_dump(values))
        config = load_config(path)
        assert isinstance(config, SweepConfig)
        outcomes = run_sweep(cells(config, str(path)), KINDS, folder / output, Start(), HostProcess(), "nothing", lambda _: None, work)
        assert [outcome.summary.complete for outcome in outcomes if outcome.summary is not None] == [True, True]
        return {each.name: (parts(each), errors(each)) for each in (folder / output).iterdir() if each.is_dir()}

    plain = swept("plain", ModelWork(ModelPool()))
    driver_reads()
    over = swept("cluster", ClusterWork(lambda: fleet, ClusterConfig(workers=2)))
    fleet.end(True)
    assert len(plain) == 2
    assert over == plain
    assert [message for _, message in fleet.sent if isinstance(message, PicturePart)]

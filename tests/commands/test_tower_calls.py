"""A vision model's tower by the real command: one call a picture, whatever shards and windows, and the same bytes whatever is kept."""

from typing import Any

import pytest
from mlx_bulk.runner.core.images import PromptImage
from mlx_bulk.runner.vision.features import ImageFeatures
from mlx_bulk.runner.vision.towers import Tower

from ..jobs.support.bench import Bench
from ..vision_folders import drawn, picture_bytes, write_vision_model

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
ROWS, PICTURES = 100, 5
JOBS: dict[str, dict[str, Any]] = {
    "generate": {"sampling": {"max_tokens": 2, "temperature": 1.0, "n": 2}},
    "score": {"job": "score", "score": {"completion": "{{ said }}"}},
}


@pytest.fixture(scope="module", name="bench")
def a_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("qwen2_vl")
    write_vision_model(folder / "model", "qwen2_vl")
    for i in range(PICTURES):
        (folder / f"{i}.png").write_bytes(picture_bytes(drawn(30 + 20 * i, 40, i)))
    return Bench(folder, folder / "model")


@pytest.fixture(name="calls")
def tower_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls, real = list[str](), Tower.features

    def features(tower: Tower, image: PromptImage) -> ImageFeatures:
        calls.append(image.digest)
        return real(tower, image)

    monkeypatch.setattr(Tower, "features", features)
    return calls


def run(bench: Bench, job: str, **batch: Any) -> list[bytes]:
    """Runs a job over rows that ask about the pictures in turns; returns the bytes of its parts."""
    rows = [{"q": f"What is {i}?", "image": f"{i % PICTURES}.png", "said": f" a dog {i % 7}"} for i in range(ROWS)]
    sections: dict[str, Any] = {"prompt": {"user": "{{ q }}", "images": "image"}, "batch": {"rows_per_shard": 20, "rows": 8, **batch}}
    sections |= {name: given for name, given in JOBS[job].items() if name != "job"}
    done = (bench.score if job == "score" else bench.run)("--overwrite", rows=rows, **sections)
    assert done.code == 0, done.stderr
    assert len({record["row"] for record in done.records}) == ROWS
    return [part.read_bytes() for part in sorted((done.output / "results").glob("*.arrow"))]


@pytest.mark.parametrize("job", JOBS)
def test_a_hundred_rows_on_five_pictures_make_five_calls(bench: Bench, job: str, calls: list[str]) -> None:
    run(bench, job)
    assert sorted(calls) == sorted(set(calls))
    assert len(calls) == PICTURES


@pytest.mark.parametrize("job", JOBS)
def test_results_have_the_same_bytes_whatever_is_kept(bench: Bench, job: str, calls: list[str]) -> None:
    everything = run(bench, job, deterministic=True, image_memory=4.0)
    assert len(calls) == PICTURES
    nothing = run(bench, job, deterministic=True, image_memory=0.0)
    assert len(calls) > 2 * PICTURES
    assert nothing == everything
    assert len(everything) == ROWS // 20

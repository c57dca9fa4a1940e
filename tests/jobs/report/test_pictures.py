"""Tests the thumbnails of a report: pictures of sampled rows, small and inside the page; a line where one is gone or changed."""

import json
import os
from base64 import b64decode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.jobs import ROW_JOBS
from mlx_bulk.runner.data.scan import scan
from mlx_bulk.runner.files.checked_json import write_document
from mlx_bulk.runner.images.named_files import files_fingerprint
from PIL import Image

from ...vision_folders import data_url, drawn, picture_bytes
from ..support.bench import Bench, Record
from .test_report import HOSTILE, Reader, reported

pytestmark = pytest.mark.usefixtures("no_charts")

ONE, OTHER = picture_bytes(drawn(640, 480)), picture_bytes(drawn(30, 90, 1))


@pytest.fixture(name="page_of")
def a_page_of(bench: Bench) -> Callable[[list[Record]], Reader]:
    """Runs a text model over rows with pictures, marks the run as one of a vision model, and reads its page."""

    def page_of(rows: list[Record]) -> Reader:
        done = bench.run(rows=rows)
        stored = json.loads((done.output / "run.json").read_text())
        del stored["check"]
        stored["config"]["prompt"]["images"] = "image"
        stored["identity"]["model.image_processor"] = "one"
        config = ROW_JOBS["generate"].model_validate(stored["config"])
        files = files_fingerprint(scan(config.data, done.output), config, None)
        write_document(done.output / "run.json", stored | {"inputs": stored["inputs"] | {"pictures": files}})
        return reported(done.output)

    return page_of


def of_rows(page: Reader) -> list[list[dict[str, Any]]]:
    return [record.get("pictures", []) for record in page.samples["records"]]


def test_rows_show_their_pictures_small_and_each_once(bench: Bench, page_of: Callable[[list[Record]], Reader]) -> None:
    (bench.root / "one.png").write_bytes(ONE)
    rows: list[Record] = [
        {"q": "one?", "image": ["one.png"]},
        {"q": "two?", "image": [data_url(OTHER), "one.png"]},
        {"q": "none?", "image": []},
        {"q": "six?", "image": ["one.png"] * 6},
    ]
    page = page_of(rows)
    one, two, none, six = of_rows(page)
    assert one == [{"picture": 0, "width": 160, "height": 120, "alt": "the picture of row 0"}]
    assert [(each["picture"], each["alt"]) for each in two] == [(1, "picture 1 of 2 of row 1"), (0, "picture 2 of 2 of row 1")]
    assert none == []
    assert [each.get("picture", each.get("why")) for each in six] == [0, 0, 0, 0, "and 2 more"]
    head = "data:image/jpeg;base64,"
    assert [url[: len(head)] for url in page.samples["pictures"]] == [head, head]
    assert [Image.open(BytesIO(b64decode(url[len(head) :]))).size for url in page.samples["pictures"]] == [(160, 120), (30, 90)]
    assert all(len(url) < 16_000 for url in page.samples["pictures"])


def test_what_is_there_no_more_is_a_line(bench: Bench, page_of: Callable[[list[Record]], Reader]) -> None:
    for name in ("kept", "gone", "changed"):
        (bench.root / f"{name}.png").write_bytes(ONE)
    outside, web = "/etc/hostname", "https://example.invalid/a.png"
    rows: list[Record] = [{"q": "?", "image": [name]} for name in ("kept.png", "gone.png", outside, web, HOSTILE)]
    page_of(rows)
    (bench.root / "gone.png").unlink()
    page = reported(bench.root / "run")
    shown = [each for [each] in of_rows(page)]
    assert all(each["why"].startswith("picture not shown: ") for each in shown[1:])
    assert [word in each["why"] for word, each in zip(("not there", "outside", "on the web"), shown[1:], strict=False)] == [True] * 3
    assert shown[1]["why"].startswith("picture not shown: gone.png is not there; paths begin at ")
    assert len(page.scripts) == 2
    assert "<img" not in page.scripts[0]


def test_a_changed_file_is_not_shown_as_the_runs(bench: Bench, page_of: Callable[[list[Record]], Reader]) -> None:
    file = bench.root / "one.png"
    file.write_bytes(ONE)
    [[shown]] = of_rows(page_of([{"q": "?", "image": ["one.png"]}]))
    assert "picture" in shown
    os.utime(file)  # another date and the same contents: still the run's
    [[shown]] = of_rows(reported(bench.root / "run"))
    assert "picture" in shown
    file.write_bytes(OTHER)
    [[shown]] = of_rows(reported(bench.root / "run"))
    assert shown == {"why": "picture not shown: it has changed since the run, or may have"}


def test_another_input_costs_the_pictures_alone(bench: Bench, page_of: Callable[[list[Record]], Reader]) -> None:
    rows: list[Record] = [{"q": "?", "image": [data_url(ONE)]}]
    [[shown]] = of_rows(page_of(rows))
    assert "picture" in shown
    bench.write_rows([{"q": "!", "image": [data_url(OTHER)]}])
    page = reported(bench.root / "run")
    assert of_rows(page) == [[]]
    assert "Pictures are not shown: " in page.text
    Path(bench.root / "rows.jsonl").unlink()
    assert "Pictures are not shown: " in reported(bench.root / "run").text

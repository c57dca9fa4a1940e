"""Where a row's picture may be, and what is refused."""

import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import gaierror
from urllib.error import URLError

import numpy as np
import pytest
from mlx_bulk.runner.core.errors import ModelError, RowError
from mlx_bulk.runner.images import sources
from mlx_bulk.runner.images.sources import PictureSources

from ...vision_folders import data_url, drawn, picture_bytes

PNG = b"\x89PNG and so on"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "data"
    (inside / "pictures").mkdir(parents=True)
    (inside / "pictures" / "a.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(b"secret")
    return inside


def read(folder: Path, value: object, fetch: bool = False, beside: Path | None = None) -> bytes:
    return PictureSources((folder.resolve(),), fetch).source(value, "images", beside or folder).read()


@pytest.mark.parametrize(
    "value",
    [
        "pictures/a.png",
        "./pictures/../pictures/a.png",
        PNG,
        bytearray(PNG),
        {"bytes": PNG, "path": None},
        {"bytes": None, "path": "pictures/a.png"},
        {"url": "pictures/a.png", "detail": "low"},
        {"url": data_url(PNG)},
        data_url(PNG).replace("data:image/png;", "DATA:image/PNG;charset=x;").rstrip("="),
        f" \n{data_url(PNG)}\n",
        {"bytes": data_url(PNG)},
    ],
)
def test_each_way_to_name_a_picture(folder: Path, value: object) -> None:
    assert read(folder, value) == PNG


def test_absolute_paths_and_file_addresses_below_the_folder_are_read(folder: Path) -> None:
    assert read(folder, str(folder.resolve() / "pictures" / "a.png")) == PNG
    assert read(folder, (folder.resolve() / "pictures" / "a.png").as_uri()) == PNG
    assert read(folder, "../pictures/a.png", beside=folder / "rows") == PNG


def test_a_folder_that_is_gone_is_to_blame_and_not_the_row(tmp_path: Path) -> None:
    """A disk may go while a run works: all rows that are left would fail."""
    with pytest.raises(ModelError, match=r"data\.path: .*/away, from which images names a picture, is not there any more; put it back"):
        read(tmp_path.resolve() / "away", "a.png")


@pytest.mark.parametrize("way", ["../secret.png", "pictures/../../secret.png", "absolute", "link", "linked/secret.png", "file"])
def test_a_path_that_leaves_the_folder_is_refused(folder: Path, way: str) -> None:
    secret = folder.parent / "secret.png"
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(folder.parent)
    named = {"absolute": str(secret), "file": secret.as_uri()}.get(way, way)
    with pytest.raises(RowError, match=r"lies outside of the input's folder.* expected a picture below .*data") as caught:
        read(folder, named)
    assert caught.value.stage == "image"
    assert ("a link leads there" in str(caught.value)) == way.startswith("link")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "images: found null; expected a picture: a path, bytes, a data URL"),
        (
            7,
            r"images: found 7; expected a picture: a path, bytes, a data URL, an address, .*or \{url\}; .* a list of these",
        ),
        ("", "the path is empty"),
        ("a\0b", "NUL character"),
        (b"", "there are no bytes"),
        ({}, "a mapping with no keys"),
        ({"bytes": None, "path": None}, "a mapping with bytes, path; expected one with bytes, path or url that is not null"),
        ("pictures", "is a folder; expected a picture's file"),
        ("pictures/b.png", "pictures/b.png is not there; paths begin at .*/data, the folder of the row's file"),
        ("x" * 5000, "no path that can be followed|cannot be read"),
        ("gopher://a/b.png", "an address of the kind gopher:"),
        ("https://example.org/a.png", "https://example.org/a.png is on the web, which is not read; set data.fetch: true"),
        ({"url": "HTTP://example.org/a.png"}, "images.url: HTTP://example.org/a.png is on the web"),
        ("data:image/png;base64,iVBOR!", "the data URL is not base64"),
        ("data:image/png;base64,iVBOR", "the data URL is not base64"),
        ("data:image/png;base64", "expected a data URL such as"),
        ("data:text/plain;base64,aGk=", "the data URL holds text/plain; expected a picture"),
    ],
)
def test_what_names_no_picture(folder: Path, value: object, message: str) -> None:
    with pytest.raises(RowError, match=message) as caught:
        read(folder, value)
    assert caught.value.stage == "image"


@pytest.mark.parametrize("value", [lambda text: text, lambda text: {"bytes": text}, lambda text: f" {text}"])
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_base64_without_a_url_says_what_to_put_before_it(folder: Path, form: str, value: Callable[[str], object]) -> None:
    text = b64encode(picture_bytes(drawn(200, 200), form)).decode()
    with pytest.raises(RowError, match=r"put data:image/png;base64, before it") as caught:
        read(folder, value(text))
    assert len(str(caught.value)) < 200
    assert text[:40] not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 50_000,
        "x/" * 50_000,
        "x/" * 1000 + "y",
        "y" * 50_000 + ":a",
        "https://example.org/" + "a" * 50_000,
        "data:" + "x" * 50_000,
        f"data:{'x' * 50_000},a",
        {"y" * 50_000: 1},
        {str(number): None for number in range(50_000)},
        ["x" * 50_000],
        np.zeros((50, 50, 3)),
    ],
)
def test_messages_are_short(folder: Path, value: object) -> None:
    with pytest.raises(RowError) as caught:
        read(folder, value)
    assert len(str(caught.value).replace(str(folder), "")) < 400, str(caught.value)
    assert "\\n" not in str(caught.value)


def test_a_missing_file_says_where_paths_begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RowError, match=r"gone.png is not there; expected a picture's file"):
        read(folder, str(folder.resolve() / "gone.png"))
    monkeypatch.chdir(folder)
    with pytest.raises(RowError, match=r"gone.png is not there; paths begin at .*/data, the working directory"):
        read(folder, "gone.png", beside=Path.cwd())


def test_files_and_data_urls_have_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_BYTES", 1 << 20)
    (folder / "big.png").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(RowError, match=r"big\.png has 1 MiB; expected a picture of at most 1 MiB"):
        read(folder, "big.png")
    with pytest.raises(RowError, match="the data URL has 1 MiB; expected at most 1 MiB"):
        read(folder, data_url(bytes(1_100_000)))


class Pages(BaseHTTPRequestHandler):
    """A picture, a page that leads to it, one that leads to a file, and nothing else."""

    def __init__(self, secret: str, *others: object):
        self.secret = secret
        super().__init__(*others)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        leads = {"/there": "/a.png", "/file": self.secret}.get(self.path)
        self.send_response(302 if leads else 200 if self.path == "/a.png" else 404)
        if leads:
            self.send_header("Location", leads)
        self.end_headers()
        if self.path == "/a.png":
            self.wfile.write(PNG)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass


@pytest.fixture
def web(folder: Path) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), partial(Pages, (folder.parent / "secret.png").as_uri()))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pictures_on_the_web_are_fetched_where_that_is_allowed(folder: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    assert read(folder, f"{web}/a.png", fetch=True) == PNG
    assert read(folder, f"{web}/there", fetch=True) == PNG
    with pytest.raises(RowError, match=r"cannot be fetched: the server answers 404 Not Found$"):
        read(folder, f"{web}/b.png", fetch=True)
    with pytest.raises(RowError, match=r"cannot be fetched: .*(leads to file|not allowed)"):
        read(folder, f"{web}/file", fetch=True)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (URLError(gaierror(-2, "Name or service not known")), "no address is known for its host; check the name, and the network"),
        (URLError(ConnectionRefusedError(111, "Connection refused")), "its host refuses the connection"),
        (URLError(TimeoutError("timed out")), "no answer came within 30 s"),
        (TimeoutError("The read operation timed out"), "no answer came within 30 s"),
        (URLError(OSError(113, "No route to host")), "No route to host"),
        (URLError("it leads to ftp://x"), "it leads to ftp://x"),
    ],
)
def test_what_fails_on_the_web_is_said_in_words(folder: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, words: str) -> None:
    class Opener:
        def open(self, request: object, timeout: float) -> None:
            raise error

    monkeypatch.setattr(sources, "build_opener", lambda _: Opener())
    with pytest.raises(RowError) as caught:
        read(folder, "https://example.invalid/a.png", fetch=True)
    assert str(caught.value).endswith(f"https://example.invalid/a.png cannot be fetched: {words}")

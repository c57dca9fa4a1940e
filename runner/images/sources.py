"""Finds a picture's bytes: in the row itself, in a file below the input's folder, in a data URL, or, where that is allowed, on the web.

A worker has no such files: it is given what asks the driver for them. Knows nothing of what the bytes show. Bytes are read when they
are asked for, and nothing of them is kept.
"""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path, PurePath
from socket import gaierror
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ...configs.visible import visible
from ..core.errors import ModelError, RowError, first_line
from .data_urls import data_url, is_bare_base64, is_data_url

STAGE = "image"  # the stage of a row whose picture cannot be used
MOST_BYTES = 256 << 20  # of one picture's file, still compressed
FETCH_SECONDS = 30
_SHOWN = 160  # characters of a row's own text in messages

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)  # of two letters at least: C:\ is a path


FileReader = Callable[[str, str, Path], bytes]
"""Reads the file that a row names by a path; the arguments are those of ``PictureSources.file``. Raises RowError."""


@dataclass(frozen=True, slots=True)
class PictureSource:
    """Where a picture's bytes are. name: for messages. read: returns the bytes, or raises RowError.

    path: the file, where it is one; that of the driver's machine where a worker has the picture from there. lasting: to read it again
    costs no memory meanwhile.
    """

    name: str
    read: Callable[[], bytes]
    path: Path | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class PictureSources:
    """Finds the pictures that rows name.

    folders: those that paths may lead into, with what lies below them. A relative path begins at the row's own folder. fetch: pictures
    on the web may be read; None where no setting allows it. files: reads files in the place of this machine's own. called: the folders, in
    messages.
    """

    folders: tuple[Path, ...]
    fetch: bool | None
    files: FileReader | None = None
    called: str = "the input's folder"

    def source(self, value: object, where: str, beside: Path) -> PictureSource:
        """Returns the source that a row's ``value`` names.

        value: a path, a data URL or an address as text; a Path; bytes; or a mapping with ``bytes`` and ``path`` (an Image of datasets) or
        ``url``. where: the value's place in the row, for messages. beside: the folder of the file that the row was read from. Raises
        RowError, and ModelError where the folders themselves are gone.
        """
        if isinstance(value, bytes | bytearray | memoryview):
            return _bytes_source(bytes(value), where)
        if isinstance(value, Mapping):
            return self._of_mapping(value, where, beside)
        if isinstance(value, PurePath):
            return self._of_file(str(value), where, beside)
        if not isinstance(value, str):
            taken = "a path, bytes, a data URL, an address, {bytes, path} or {url}; where several may stand, also a list of these"
            raise picture_error(f"{where}: found {_found(value)}; expected a picture: {taken}")
        if not value.strip():
            raise picture_error(f"{where}: the path is empty; expected the path of a picture")
        if is_data_url(value):
            return PictureSource(f"{where} (a data URL)", lambda: _data_url_bytes(value, where))
        if is_bare_base64(value):
            cure = "put data:image/png;base64, before it (image/jpeg and so on do as well)"
            raise picture_error(f"{where}: found base64 that no data URL is around, {value.strip()[:12]}…; {cure}")
        if value[:7].lower() in ("http://", "https:/"):
            return self._on_the_web(value, where)
        if value[:7].lower() == "file://":
            return self._of_file(unquote(urlsplit(value).path), where, beside)
        if scheme := _SCHEME.match(value):
            raise picture_error(f"{where}: found an address of the kind {_short(scheme[0])}; expected a path, a data URL, or http(s)")
        return self._of_file(value, where, beside)

    def _of_mapping(self, value: Mapping[str, Any], where: str, beside: Path) -> PictureSource:
        if value.get("bytes") is not None:
            return self.source(value["bytes"], f"{where}.bytes", beside)
        for name in ("path", "url"):
            if value.get(name) is not None:
                return self.source(value[name], f"{where}.{name}", beside)
        names = _short(", ".join(map(str, islice(value, 9)))) if value else "no keys"
        raise picture_error(f"{where}: found a mapping with {names}; expected one with bytes, path or url that is not null")

    def _of_file(self, path: str, where: str, beside: Path) -> PictureSource:
        if (files := self.files) is not None:
            return PictureSource(shown_file(path, where), lambda: files(path, where, beside), beside / path, lasting=True)
        file = self.file(path, where, beside)
        return PictureSource(file.shown, file.read, file.place, lasting=True)

    def file(self, path: str, where: str, beside: Path) -> "PictureFile":
        """Returns the file that a row names by a path. Arguments and errors as in ``source``.

        Raises RowError for a file outside of the folders, also where a link leads out of them.
        """
        if "\0" in path:
            raise picture_error(f"{where}: the path holds a NUL character; expected the path of a picture")
        named = beside / path
        shown = shown_file(path, where)
        try:
            place = named.resolve()
            inside = any(place.is_relative_to(folder) for folder in self.folders)
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a name that is too long
            why = getattr(error, "strerror", None) or _short(first_line(error))
            raise picture_error(f"{shown} is no path that can be followed: {why}") from None
        if not inside:
            folders = " or ".join(visible(str(folder)) for folder in self.folders) or "no folder"
            link = " (a link leads there)" if ".." not in Path(path).parts and not Path(path).is_absolute() else ""
            raise picture_error(f"{shown} lies outside of {self.called}{link}; expected a picture below {folders}: copy it there")
        if not any(place.is_relative_to(folder) and folder.is_dir() for folder in self.folders):
            cure = "put it back, then run the same command again"
            raise ModelError(f"data.path: {visible(str(place.parent))}, from which {where} names a picture, is not there any more; {cure}")
        return PictureFile(place, shown, "expected a picture's file" if Path(path).is_absolute() else _beginning(beside))

    def _on_the_web(self, url: str, where: str) -> PictureSource:
        shown = f"{where}: {_short(url)}"
        if not self.fetch:
            allow = "" if self.fetch is None else "set data.fetch: true, or "
            raise picture_error(f"{shown} is on the web, which is not read; {allow}download it and give its path")
        return PictureSource(shown, lambda: _fetched(url, shown))


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture's file below the input's folder. shown: as messages name it. expected: follows the message on one that is not there."""

    place: Path
    shown: str
    expected: str

    def read(self) -> bytes:
        """Returns the file's bytes. Raises RowError."""
        with self.opened() as file:
            return file.read()

    @contextmanager
    def opened(self) -> Generator[BufferedReader]:
        """Opens the file for a block that reads it. Raises RowError, in the block too."""
        place, shown = self.place, self.shown
        try:
            if not place.exists():
                raise picture_error(f"{shown} is not there; {self.expected}")
            if not place.is_file():
                raise picture_error(f"{shown} is {'a folder' if place.is_dir() else 'no regular file'}; expected a picture's file")
            if (size := place.stat().st_size) > MOST_BYTES:
                raise picture_error(f"{shown} has {size >> 20:,} MiB; expected a picture of at most {MOST_BYTES >> 20} MiB")
            with place.open("rb") as file:
                yield file
        except OSError as error:
            raise picture_error(f"{shown} cannot be read: {error.strerror or error}") from None


def picture_error(message: str) -> RowError:
    """Returns the error of a row whose picture cannot be used."""
    return RowError(STAGE, message, "PictureError")


def _data_url_bytes(text: str, where: str) -> bytes:
    """Returns the bytes of a data URL. Raises RowError where it is none, or is not base64."""
    url = data_url(text)
    if url is None:
        raise picture_error(f"{where}: found {visible(text[:60])}…; expected a data URL such as data:image/png;base64,iVBORw0…")
    if not url.may_be_picture:
        raise picture_error(f"{where}: the data URL holds {visible(url.kind[:60])}; expected a picture, such as data:image/png;base64,…")
    if len(url.body) > MOST_BYTES * 4 // 3 + 4:
        raise picture_error(f"{where}: the data URL has {len(url.body) >> 20:,} MiB; expected at most {MOST_BYTES >> 20} MiB of picture")
    try:
        return url.content
    except ValueError as error:
        raise picture_error(f"{where}: the data URL is not base64: {first_line(error)}; encode the picture's bytes anew") from None


def _bytes_source(data: bytes, where: str) -> PictureSource:
    def read() -> bytes:
        if not data:
            raise picture_error(f"{where}: there are no bytes; expected those of a picture")
        return data

    return PictureSource(where, read)


def shown_file(path: str, where: str) -> str:
    """Returns what messages call the file that a row names."""
    return f"{where}: {_short(path)}"


def _short(text: str) -> str:
    """Returns a text for a message: of a long one its two ends. A row's own text may be a whole picture."""
    return visible(text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}")


def _beginning(beside: Path) -> str:
    """Says where a row's relative paths begin."""
    whole = beside.absolute()
    kind = "the working directory" if whole == Path.cwd() else "the folder of the row's file"
    return f"paths begin at {visible(str(whole))}, {kind}"


class _WebRedirects(HTTPRedirectHandler):
    """Follows redirects to the web alone: a server may not name a file of this machine."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise URLError(f"it leads to {newurl[:100]}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(url: str, shown: str) -> bytes:
    request = Request(url, headers={"User-Agent": "mlx-bulk", "Accept": "image/*"})
    try:
        with build_opener(_WebRedirects).open(request, timeout=FETCH_SECONDS) as answer:
            data: bytes = answer.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # URLError, timeouts and protocol errors
        raise picture_error(f"{shown} cannot be fetched: {_web_words(error)}") from None
    if len(data) > MOST_BYTES:
        raise picture_error(f"{shown} has more than {MOST_BYTES >> 20} MiB; expected a picture of at most that")
    return data


def _web_words(error: Exception) -> str:
    """Says why an address was not read."""
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} {visible(str(error.reason))}"
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, gaierror):
        return "no address is known for its host; check the name, and the network"
    if isinstance(cause, ConnectionRefusedError):
        return "its host refuses the connection"
    if isinstance(cause, TimeoutError):
        return f"no answer came within {FETCH_SECONDS} s"
    if isinstance(cause, OSError) and cause.strerror:
        return visible(cause.strerror)
    return visible(cause) if isinstance(cause, str) else first_line(cause)


def _found(value: object) -> str:
    """Returns a value as a message shows it."""
    if value is None or isinstance(value, int | float):
        return "null" if value is None else str(value)[:60]
    return f"a value of the type {type(value).__name__}"

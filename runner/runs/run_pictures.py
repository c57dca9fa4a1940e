"""The pictures of a run's rows, found again in its input, for those who show records: records hold no pictures.

A file counts as the run's where it is as it was when the run's last start looked at it. Changes nothing, and fetches nothing.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ...configs.jobs import ROW_JOBS
from ...configs.schema import JobConfig
from ..core.errors import RunDirError
from ..core.requests import BadRow, Row
from ..data.reader import read_rows
from ..data.rescan import stored_data, without_stdin
from ..data.scan import scan
from ..data.scan_result import Scan
from ..files.file_stamp import is_settled, stamp_of
from ..images.named_files import BLOCK, changed_blocks, files_fingerprint, is_unchanged_block, named_files, named_values
from ..images.row_pictures import folder_beside, picture_folders
from ..images.sources import PictureSources, picture_error
from ..store.paths import RunPaths
from ..store.results import read_errors
from .drift import inputs_drift
from .history import history

_BLOCKS = 2  # whose files are read again to see whether they are the run's, where their dates do not show it


@dataclass(frozen=True, slots=True)
class RunPicture:
    """A picture that a row names. read: returns its bytes; raises RowError where it is gone, or is not what it was."""

    read: Callable[[], bytes]


def had_pictures(stored: dict[str, Any]) -> bool:
    """Returns whether rows of a run could have pictures. stored: its run.json."""
    return "model.image_processor" in stored["identity"]


@contextmanager
def pictures_of_rows(run: Path, stored: dict[str, Any], rows: Iterable[int]) -> Generator[Iterator[tuple[int, list[RunPicture]]]]:
    """Finds the pictures of a run's ``rows``; inside the block, relative paths start where the run was started.

    Yields an iterator over those rows that name pictures, ascending. stored: the run's run.json. Raises RunDirError where the input is
    another one now, DataError where it is not there.
    """
    run, began_in = run.absolute(), Path(stored["cwd"])
    config = ROW_JOBS[str(stored["config"]["job"])].model_validate(stored["config"])
    config = config.model_copy(update={"data": without_stdin(stored_data(stored), run)})
    with chdir(began_in) if began_in.is_dir() else nullcontext():
        scanned = scan(config.data, run)
        had = {name: value for name, value in stored["inputs"].items() if name != "pictures"}
        if drift := inputs_drift(had, scanned.fingerprint()):
            raise RunDirError(f"the input is another one now: {drift[0]}")
        sources = PictureSources(tuple(folder for folder in picture_folders(config.data) if folder.is_dir()), fetch=False)
        yield _Files(scanned, config, sources, stored["inputs"].get("pictures"), _last_start(run)).of_rows(rows)


@dataclass(slots=True)
class PictureChanges:
    """Which rows of a run name a file that has changed or is gone. blocks: rows among which there is one. started: see ``_Files``."""

    config: JobConfig
    sources: PictureSources
    blocks: list[range]
    started: datetime | None

    @classmethod
    def of(cls, run: Path, stored: dict[str, Any], scanned: Scan, config: JobConfig) -> "PictureChanges":
        """Compares the files that rows name with those of run.json. scanned, config: the run's, with paths as they are now."""
        sources = PictureSources(tuple(folder for folder in picture_folders(config.data) if folder.is_dir()), fetch=False)
        had = stored["inputs"].get("pictures")
        now = None if had is None else files_fingerprint(scanned, config, had)
        return cls(config, sources, [] if had is None or now is None else changed_blocks(had, now), _last_start(run))

    def concern(self, row: Row | BadRow, number: int) -> bool:
        """Returns whether the row, the input's ``number``, names a file that is not, or may not be, what it was."""
        if not any(number in block for block in self.blocks):
            return False
        return not all(self._is_old(path) for path in named_files(row, self.config, self.sources))

    def _is_old(self, path: Path) -> bool:
        try:
            return _settled_since(path, self.started)
        except OSError:
            return False


def pictures_came(run: Path, stored: dict[str, Any], now: dict[str, Any], scanned: Scan, config: JobConfig) -> bool:
    """Returns whether the inputs differ, and in this alone: files are there that were not, and that only failed rows name.

    So no record can be of another picture. stored, now: the inputs as run.json has them, and as they are. Failures in journals do not
    count. Raises as ``inputs_drift``.
    """
    if "pictures" not in stored or "pictures" not in now or not changed_blocks(stored["pictures"], now["pictures"]):
        return False
    failed, started = set[int](), _last_start(run)
    try:
        for batch in read_errors(run, ["row", "stage"]):
            rows, stages = (batch.column(name).to_pylist() for name in ("row", "stage"))
            failed.update(row for row, stage in zip(rows, stages, strict=True) if stage == "image")
    except RunDirError:
        return False

    def absent(row: int, path: Path) -> bool:
        return row in failed and path.exists() and not _settled_since(path, started)

    before = files_fingerprint(scanned, config, stored["pictures"], absent)
    return before is not None and not inputs_drift(stored, now | {"pictures": before})


def _last_start(run: Path) -> datetime | None:
    sessions = history(RunPaths(run)).sessions
    return sessions[-1].started if sessions else None


def _settled_since(path: Path, started: datetime | None) -> bool:
    return started is not None and is_settled(stamp_of(path.stat()), int(started.timestamp() * 1e9))


@dataclass(slots=True)
class _Files:
    """The files that rows name. stored: their fingerprint in run.json. started: when the run's last start looked at them, where known."""

    scanned: Scan
    config: JobConfig
    sources: PictureSources
    stored: dict[str, Any] | None
    started: datetime | None
    blocks: dict[int, bool] = field(default_factory=dict[int, bool])

    def of_rows(self, rows: Iterable[int]) -> Iterator[tuple[int, list[RunPicture]]]:
        """Yields those of ``rows`` that name pictures, with these."""
        wanted = (range(row, row + 1) for row in sorted(set(rows)) if row < self.scanned.rows)
        for row in read_rows(self.scanned, self.config.data, wanted):
            if not isinstance(row, BadRow) and (values := list(named_values(row, self.config))):
                yield row.position, [self.picture(row, value) for value in values]

    def picture(self, row: Row, value: object) -> RunPicture:
        """Returns what a row's ``value`` names."""

        def read() -> bytes:
            source = self.sources.source(value, "picture", folder_beside(row))
            data = source.read()
            if source.path is not None and not self._is_as_it_was(source.path, row.position):
                raise picture_error("it has changed since the run, or may have")
            return data

        return RunPicture(read)

    def _is_as_it_was(self, path: Path, position: int) -> bool:
        if _settled_since(path, self.started):
            return True
        block = position // BLOCK
        if self.stored is None or (block not in self.blocks and len(self.blocks) == _BLOCKS):
            return False
        if block not in self.blocks:
            rows = range(block * BLOCK, min((block + 1) * BLOCK, int(self.stored["rows"])))
            files = [list(named_files(row, self.config, self.sources)) for row in read_rows(self.scanned, self.config.data, [rows])]
            self.blocks[block] = is_unchanged_block(self.stored, block, files)
        return self.blocks[block]

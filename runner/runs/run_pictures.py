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
from ..images.named_files import BLOCK, is_unchanged_block, named_files, named_values
from ..images.row_pictures import folder_beside, picture_folders
from ..images.sources import PictureSources, picture_error
from ..store.paths import RunPaths
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
        sessions = history(RunPaths(run)).sessions
        started = sessions[-1].started if sessions else None
        yield _Files(scanned, config, sources, stored["inputs"].get("pictures"), started).of_rows(rows)


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
        if self.started is not None and is_settled(stamp_of(path.stat()), int(self.started.timestamp() * 1e9)):
            return True
        block = position // BLOCK
        if self.stored is None or (block not in self.blocks and len(self.blocks) == _BLOCKS):
            return False
        if block not in self.blocks:
            rows = range(block * BLOCK, min((block + 1) * BLOCK, int(self.stored["rows"])))
            files = [list(named_files(row, self.config, self.sources)) for row in read_rows(self.scanned, self.config.data, [rows])]
            self.blocks[block] = is_unchanged_block(self.stored, block, files)
        return self.blocks[block]

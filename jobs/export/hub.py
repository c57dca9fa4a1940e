"""``mlx-bulk export --to hf:owner/name``: uploads a run's records as a dataset on the Hugging Face hub, private by default.

Files are uploaded one after another, with at most one on disk at a time, and appear together in one commit at the end.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...configs.errors import BulkError, ConfigError
from ...runner.core.errors import first_line
from ...runner.files.file_stamp import sha256
from ...runner.runs.run_files import stored_statistics
from ..terminal.tables import count_text
from .hub_card import dataset_card
from .result import ExportResult
from .source import ExportedRun, batches_with_progress
from .table_writers import portions, write_parquet

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_FILE_BYTES = 500 << 20  # of Arrow, as datasets' max_shard_size
_NOT_CONTENT = {".gitattributes"}


def upload(source: ExportedRun, to: str, repo: str, *, overwrite: bool, public: bool) -> ExportResult:
    """Uploads the run's records to the dataset ``repo`` ("owner/name"; ``to`` is the user's own word for it), and creates it if needed.

    Raises ConfigError for an invalid name, for a public dataset without ``public``, and for one with files without ``overwrite``;
    BulkError where the hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    if not _REPO.fullmatch(repo):
        raise ConfigError(f"--to {to}: expected hf:owner/name, a dataset on the hub")
    api, result = HfApi(), ExportResult(to, source.records)
    statistics = stored_statistics(source.run) if source.complete else None
    schema, batches = batches_with_progress(source.results(), source.records, source.run)
    with _hub_errors(to):
        old = _prepare_dataset(api, repo, to, overwrite, public)
        with TemporaryDirectory(prefix="mlx-bulk-") as folder:
            added: list[CommitOperationAdd] = []
            for digest, operation in _upload_files(api, repo, Path(folder), schema, portions(batches, _FILE_BYTES)):
                added.append(operation)
                result.files.append((digest, operation.path_in_repo))
            names = {operation.path_in_repo for operation in added}
            deleted = [CommitOperationDelete(name) for name in old if name.startswith("data/") and name not in names]
            readme = CommitOperationAdd("README.md", _card(source, repo, statistics).encode())
            message = f"{count_text(source.records, 'record')} of mlx-bulk"
            api.create_commit(repo, [*added, *deleted, readme], commit_message=message, repo_type="dataset")
    result.notes += source.notes(with_errors=False)
    if source.complete and statistics is None:
        result.notes.append(
            "its README has no statistics: stats.arrow is missing or damaged; the command that started the run writes it anew"
        )
    return result


def _prepare_dataset(api: "HfApi", repo: str, to: str, overwrite: bool, public: bool) -> list[str]:
    """Creates the dataset if it does not exist, and returns the names of its files. Raises ConfigError as ``upload``."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info: Any = api.dataset_info(repo)
    except RepositoryNotFoundError:
        api.create_repo(repo, repo_type="dataset", private=not public)
        return []
    names = [file.rfilename for file in info.siblings or [] if file.rfilename not in _NOT_CONTENT]
    if not info.private and not public:
        raise ConfigError(f"--to {to}: is there and public: everybody would see the records. Make it private, or say --public.")
    if names and not overwrite:
        raise ConfigError(f"--to {to}: holds {len(names):,} files ({names[0]}, …); --overwrite replaces README.md and what is in data/")
    return names


def _upload_files(
    api: "HfApi", repo: str, folder: Path, schema: pa.Schema, files: Iterator[Iterator[pa.RecordBatch]]
) -> "Iterator[tuple[str, CommitOperationAdd]]":
    """Writes and uploads one file after another; yields its sha256 and its operation for the commit."""
    from huggingface_hub import CommitOperationAdd

    for number, batches in enumerate(files):
        path = folder / f"train-{number:05d}.parquet"
        with path.open("wb") as file:
            write_parquet(file, schema, batches)
        digest, operation = sha256(path), CommitOperationAdd(f"data/{path.name}", path)
        api.preupload_lfs_files(repo, [operation], repo_type="dataset")
        if isinstance(operation.path_or_fileobj, bytes):  # uploaded; a small file's content goes with the commit instead
            path.unlink()
        yield digest, operation


def _card(source: ExportedRun, repo: str, statistics: pa.Table | None) -> str:
    counts = f"{count_text(source.records, 'record')} of {count_text(source.rows, 'row')}"
    counts += "" if source.complete else f" (the run is not complete: its input has {source.of:,})"
    counts += f"; {source.errors:,} that could not be done are not among them." if source.errors else "."
    return dataset_card(repo, source.stored, counts, source.records, statistics)


@contextmanager
def _hub_errors(to: str) -> Generator[None]:
    """Turns errors of the hub and the network into one line."""
    try:
        yield
    except BulkError:
        raise
    except Exception as error:  # the hub client raises many kinds
        reason = first_line(error, None)
        cure = "log in with `hf auth login`, as somebody who may write there, and run the same command again"
        raise BulkError(f"--to {to}: cannot be uploaded: {reason}. Nothing was committed: {cure}.") from error

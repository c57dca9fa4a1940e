"""``mlx-bulk export --to hf:owner/name``: a run's records as a dataset on the Hugging Face hub, private unless told otherwise.

Files are uploaded one after another and appear together, in one commit at the end; no more than one lies on the disk at a time.
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
from ...runner.store.results import read_results
from .hub_card import dataset_card
from .source import ExportedRun, ExportResult, batches_with_progress
from .table_writers import portions, write_parquet

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_FILE_BYTES = 500 << 20  # of Arrow, as datasets' max_shard_size
_NOT_CONTENT = {".gitattributes"}


def upload(source: ExportedRun, to: str, repo: str, *, overwrite: bool, public: bool) -> ExportResult:
    """Puts the run's records into the dataset ``repo`` ("owner/name"; ``to`` as the user wrote it), which is made if it is not there.

    Raises ConfigError for a name that is none, for a dataset that is public and not meant to be, and for one that has files
    unless ``overwrite``; BulkError for what the hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    if not _REPO.fullmatch(repo):
        raise ConfigError(f"--to {to}: expected hf:owner/name, a dataset on the hub")
    api, done = HfApi(), ExportResult(to, source.records)
    statistics = stored_statistics(source.run) if source.complete else None
    schema, batches = batches_with_progress(read_results(source.run), source.records, source.run)
    with _said(to):
        old = _ready(api, repo, to, overwrite, public)
        with TemporaryDirectory(prefix="mlx-bulk-") as folder:
            added: list[CommitOperationAdd] = []
            for digest, operation in _uploaded(api, repo, Path(folder), schema, portions(batches, _FILE_BYTES)):
                added.append(operation)
                done.files.append((digest, operation.path_in_repo))
            names = {operation.path_in_repo for operation in added}
            gone = [CommitOperationDelete(name) for name in old if name.startswith("data/") and name not in names]
            readme = CommitOperationAdd("README.md", _card(source, repo, statistics).encode())
            message = f"{source.records:,} records of mlx-bulk"
            api.create_commit(repo, [*added, *gone, readme], commit_message=message, repo_type="dataset")
    done.notes += source.notes(with_errors=False)
    if source.complete and statistics is None:
        done.notes.append(
            "its README has no statistics: stats.arrow is missing or damaged; the command that started the run writes it anew"
        )
    return done


def _ready(api: "HfApi", repo: str, to: str, overwrite: bool, public: bool) -> list[str]:
    """Makes the dataset where it is not there; the names of the files that it holds."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        found: Any = api.dataset_info(repo)
    except RepositoryNotFoundError:
        api.create_repo(repo, repo_type="dataset", private=not public)
        return []
    names = [file.rfilename for file in found.siblings or [] if file.rfilename not in _NOT_CONTENT]
    if not found.private and not public:
        raise ConfigError(f"--to {to}: is there and public: everybody would see the records. Make it private, or say --public.")
    if names and not overwrite:
        raise ConfigError(f"--to {to}: holds {len(names):,} files ({names[0]}, …); --overwrite replaces README.md and what is in data/")
    return names


def _uploaded(
    api: "HfApi", repo: str, folder: Path, schema: pa.Schema, files: Iterator[Iterator[pa.RecordBatch]]
) -> "Iterator[tuple[str, CommitOperationAdd]]":
    """Writes and uploads one file after another: its sha256, and what is to be committed."""
    from huggingface_hub import CommitOperationAdd

    for number, batches in enumerate(files):
        path = folder / f"train-{number:05d}.parquet"
        with path.open("wb") as file:
            write_parquet(file, schema, batches)
        digest, operation = sha256(path), CommitOperationAdd(f"data/{path.name}", path)
        api.preupload_lfs_files(repo, [operation], repo_type="dataset")
        if isinstance(operation.path_or_fileobj, bytes):  # its content is there; what is too small goes with the commit
            path.unlink()
        yield digest, operation


def _card(source: ExportedRun, repo: str, statistics: pa.Table | None) -> str:
    counts = f"{source.records:,} records of {source.rows:,} rows"
    counts += "" if source.complete else f" (the run is not complete: its input has {source.of:,})"
    counts += f"; {source.errors:,} that could not be done are not among them." if source.errors else "."
    return dataset_card(repo, source.stored, counts, source.records, statistics)


@contextmanager
def _said(to: str) -> Generator[None]:
    """Turns what the hub and the network refuse into one line."""
    try:
        yield
    except BulkError:
        raise
    except Exception as error:  # the hub client raises many kinds
        reason = first_line(error, None)
        cure = "log in with `hf auth login`, as somebody who may write there, and run the same command again"
        raise BulkError(f"--to {to}: cannot be uploaded: {reason}. Nothing was committed: {cure}.") from error

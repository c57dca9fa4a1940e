"""Writes a run's records as files: chooses their names, refuses a wrong place, and writes each whole or not at all.

The formats are in ``table_writers.py``, ``openai_batch.py`` and ``trainer_columns.py``.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from ...configs.errors import BulkError, ConfigError
from ...configs.rollout import RolloutConfig
from ...runner.core.errors import OutOfRoom
from ...runner.data.input_folder import is_input
from ...runner.files.atomic import replacing
from ...runner.files.file_stamp import sha256
from ...runner.runs.file_place import link_target, require_outside_runs, require_regular_files
from .openai_files import BatchFiles
from .result import ExportResult
from .source import ExportedRun, batches_with_progress
from .table_writers import WRITERS, Notes, write_parquet
from .trainer_columns import TRAINERS, TrainerBatches

SUMS = "SHA256SUMS"

_ENDINGS = {"openai": "jsonl", **dict.fromkeys(TRAINERS, "parquet")}


def export_files(source: ExportedRun, kind: str, to: str, *, overwrite: bool) -> ExportResult:
    """Writes the run's records as the format ``kind`` to ``to``: a file, or a folder (an existing one, or a name that ends in /).

    A folder gets ``results`` (of openai: ``output``), ``errors`` where rows are quarantined, and last their lines in SHA256SUMS, where
    those of other exports stay. An existing link stays too, and its target is replaced. Raises ConfigError for an existing target
    without ``overwrite``, for one in the directory of any run, and for a job that the format cannot hold.
    """
    _require_format(source, kind)
    if kind == "openai":  # a line holds all samples of a row
        _require_floats(source)
        source = source.without_open_shards()
    folder = to.endswith(os.sep) or Path(to).is_dir()
    target, ending = Path(to), _ENDINGS.get(kind, kind)
    name = "output" if kind == "openai" else "results"
    results, errors, sums = (target / f"{name}.{ending}", target / f"errors.{ending}", target / SUMS) if folder else (target, None, None)
    _require_place(source, to, [path for path in (results, errors) if path is not None], sums, overwrite)
    batch = BatchFiles(source, apart=folder) if kind == "openai" else None
    if batch is not None:
        write = batch.write
    elif kind in TRAINERS:
        write = _trainer(kind, source)
    else:
        write = _table(kind, source, source.results(), source.records)
    result = ExportResult(to, source.records)
    failures = errors if source.errors and kind in WRITERS else None
    with _write_errors(to):
        link_target(results).parent.mkdir(parents=True, exist_ok=True)
        own = [path.name for path in (results, errors) if path is not None]
        if sums is not None:  # what an earlier export said would not fit the new results
            _merge_sums(sums, own, [])
        if errors is not None:
            link_target(errors).unlink(missing_ok=True)
        _write(result, results, write)
        if failures is not None:
            _write(result, failures, _table(kind, source, source.failures(), source.errors))
        if batch is not None and errors is not None and batch.refused:
            _write(result, errors, batch.write_refused)
        if sums is not None:
            _merge_sums(sums, own, [f"{digest}  {Path(path).name}\n".encode() for digest, path in result.files])
    if failures is not None or kind == "openai":
        result.failures = source.errors
    result.notes += source.notes(with_errors=result.failures > 0)
    return result


def _table(kind: str, source: ExportedRun, batches: Iterator[pa.RecordBatch], total: int) -> Callable[[BinaryIO], Notes]:
    schema, shown = batches_with_progress(batches, total, source.run)
    return lambda file: WRITERS[kind](file, schema, shown)


def _trainer(kind: str, source: ExportedRun) -> Callable[[BinaryIO], Notes]:
    trainer_batches = TrainerBatches(kind, _eos(source) if kind == "trl" else None)
    schema, shown = batches_with_progress(trainer_batches.batches(source.results()), source.records, source.run)

    def write(file: BinaryIO) -> Notes:
        notes = write_parquet(file, schema, shown)
        if count := trainer_batches.appended:
            notes.append(f"completions that a stop string or id ended, with an EOS behind them that is not trained on: {count:,}")
        return notes

    return write


def _eos(source: ExportedRun) -> int | None:
    """Returns the EOS id to append to completions that a stop string or stop id ended; None where the config has neither."""
    from ...runner.models.run_tokenizer import tokenizer_of

    config = RolloutConfig.model_validate(source.stored["config"])
    sampling = config.sampling
    if not (sampling.stop or sampling.stop_token_ids or {"stop", "stop_token_ids"} & sampling.columns.keys()):
        return None
    return next(iter(tokenizer_of(config, source.stored).eos), None)


def _write(result: ExportResult, path: Path, write: Callable[[BinaryIO], Notes]) -> None:
    with replacing(link_target(path)) as file:
        result.notes += write(file)
    result.files.append((sha256(path), str(path)))


def _merge_sums(sums: Path, own: list[str], lines: list[bytes]) -> None:
    """Puts ``lines`` in place of those on the files ``own`` in SHA256SUMS. An export into the same folder at this instant waits."""
    folder = os.open(sums.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        _write_sums(sums, _other_sums(sums, own) + lines)
    finally:
        os.close(folder)


def _other_sums(sums: Path, own: list[str]) -> list[bytes]:
    """Returns the lines of SHA256SUMS on files that are not ``own``."""
    if not sums.exists():
        return []
    lines = [line + b"\n" for line in sums.read_bytes().splitlines() if line]
    return [line for line in lines if _name_of(line) not in {name.encode() for name in own}]


def _name_of(line: bytes) -> bytes:
    """Returns the file name in a line of sha256sum: the digest, a space, a space or an asterisk, the name."""
    return line.rstrip(b"\n").partition(b" ")[2][1:]


def _write_sums(sums: Path, lines: list[bytes]) -> None:
    """Replaces SHA256SUMS; without lines there is none."""
    if not lines:
        link_target(sums).unlink(missing_ok=True)
        return
    with replacing(link_target(sums)) as file:
        file.writelines(lines)


def _require_format(source: ExportedRun, kind: str) -> None:
    special = {"generate": ("openai",), "rollout": TRAINERS, "embed": ("openai",)}
    if kind not in (*WRITERS, *special.get(source.job, ())):
        content = "completions or embeddings" if kind == "openai" else "rollouts"
        choices = ", ".join([*WRITERS, *special.get(source.job, ())])
        raise ConfigError(f"--format {kind}: holds {content}, and this is a run of job: {source.job}; use one of {choices}")


def _require_floats(source: ExportedRun) -> None:
    """Refuses embeddings that OpenAI's lines cannot hold."""
    if source.job == "embed" and (dtype := source.stored["config"]["embed"]["dtype"]) in ("int8", "ubinary"):
        raise ConfigError(f"--format openai: holds floats, and this run has embed.dtype: {dtype}; use one of {', '.join(WRITERS)}")


def _input_paths(source: ExportedRun) -> list[str]:
    """Returns the ``data.path`` of a run's config; nothing for an evaluation, which reads no rows of the user's."""
    path: str | list[str] = source.stored["config"].get("data", {}).get("path", [])
    return [path] if isinstance(path, str) else path


def _require_place(source: ExportedRun, to: str, paths: list[Path], sums: Path | None, overwrite: bool) -> None:
    """Refuses a place that holds other things. ``sums`` may be there: lines are added to it."""
    if to == "-":
        raise ConfigError("--to -: an export appears whole or not at all, which a stream cannot; name a file (./- is one of that name)")
    require_outside_runs(f"--to {to}", [*paths, *([] if sums is None else [sums])])
    require_regular_files(f"--to {to}", paths)
    if own := [path for path in paths if path.exists() and is_input(_input_paths(source), path)]:
        raise ConfigError(f"--to {to}: {own[0]} is the run's input, or would be read as such; choose another place")
    if not overwrite and (there := [path for path in paths if path.exists()]):
        raise ConfigError(f"--to {to}: {there[0]} is there already; --overwrite replaces it")


@contextmanager
def _write_errors(to: str) -> Generator[None]:
    """Turns the operating system's errors inside the block into errors that name the place."""
    try:
        yield
    except OSError as error:
        kind = OutOfRoom if error.errno in (errno.ENOSPC, errno.EDQUOT) else BulkError
        raise kind(f"--to {to}: cannot be written: {error}. Nothing is left half written: make room, or choose another place.") from error

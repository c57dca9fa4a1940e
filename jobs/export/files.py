"""A run's records as files: which names they get, that none is there by mistake, and that each appears whole or not at all.

What a format holds is ``table_files.py``'s and ``openai_lines.py``'s.
"""

import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from ...configs.errors import BulkError, ConfigError
from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig
from ...runner.core.errors import OutOfRoom
from ...runner.files.atomic import replacing
from ...runner.files.file_stamp import sha256
from ...runner.store.results import read_errors, read_results
from .source import ExportedRun, ExportResult, batches_with_progress, show_progress
from .table_writers import WRITERS, Notes, write_parquet
from .trainer_columns import TRAINERS, TrainerBatches

SUMS = "SHA256SUMS"

_ENDINGS = {"openai": "jsonl", **dict.fromkeys(TRAINERS, "parquet")}


def export_files(source: ExportedRun, kind: str, to: str, *, overwrite: bool) -> ExportResult:
    """Writes the run's records as the format ``kind`` to ``to``: a file, or a folder (one that is there, or a name that ends in /).

    A folder gets ``results`` and, where rows are quarantined, ``errors``, and a file SHA256SUMS last. Raises ConfigError for a
    target that is there already unless ``overwrite``, or that lies in the run directory, and for what the format cannot hold.
    """
    _require_format(source, kind)
    folder = to.endswith(os.sep) or Path(to).is_dir()
    target, ending = Path(to), _ENDINGS.get(kind, kind)
    results, errors, sums = (target / f"results.{ending}", target / f"errors.{ending}", target / SUMS) if folder else (target, None, None)
    _require_place(source, to, [path for path in (results, errors, sums) if path is not None], overwrite)
    if kind == "openai":
        write = _openai(source)
    elif kind in TRAINERS:
        write = _trainer(kind, source)
    else:
        write = _table(kind, source, read_results(source.run), source.records)
    done = ExportResult(to, source.records)
    failures = errors if source.errors and kind in WRITERS else None
    with _said(to):
        _real(results).parent.mkdir(parents=True, exist_ok=True)
        for old in (sums, errors):  # what an earlier export left would not fit the new results
            if old is not None:
                _real(old).unlink(missing_ok=True)
        _write(done, results, write)
        if failures is not None:
            _write(done, failures, _table(kind, source, read_errors(source.run), source.errors))
        if sums is not None:
            with replacing(_real(sums)) as file:
                file.writelines(f"{digest}  {Path(path).name}\n".encode() for digest, path in done.files)
    if failures is not None or kind == "openai":
        done.failures = source.errors
    done.notes += source.notes(with_errors=done.failures > 0)
    return done


def _table(kind: str, source: ExportedRun, batches: Iterator[pa.RecordBatch], total: int) -> Callable[[BinaryIO], Notes]:
    schema, shown = batches_with_progress(batches, total, source.run)
    return lambda file: WRITERS[kind](file, schema, shown)


def _openai(source: ExportedRun) -> Callable[[BinaryIO], Notes]:
    from ...runner.models.run_tokenizer import tokenizer_of
    from .openai_batch import needs_tokens, openai_lines
    from .openai_logprobs import openai_spelling

    config = GenerateConfig.model_validate(source.stored["config"])
    spell = openai_spelling(tokenizer_of(config, source.stored).token_bytes) if needs_tokens(config) else None

    def write(file: BinaryIO) -> Notes:
        lines = openai_lines(source.run, source.stored, config, spell)
        file.writelines(f"{line}\n".encode() for line in show_progress(lines, source.rows, lambda _: 1))
        return []

    return write


def _trainer(kind: str, source: ExportedRun) -> Callable[[BinaryIO], Notes]:
    mapped = TrainerBatches(kind, _eos(source) if kind == "trl" else None)
    schema, shown = batches_with_progress(mapped.batches(read_results(source.run)), source.records, source.run)

    def write(file: BinaryIO) -> Notes:
        notes = write_parquet(file, schema, shown)
        if mapped.appended:
            notes.append(f"completions that a stop string or id ended, with an EOS behind them that is not trained on: {mapped.appended:,}")
        return notes

    return write


def _eos(source: ExportedRun) -> int | None:
    """The id that is put behind completions which something else than EOS ended; None where nothing else can have."""
    from ...runner.models.run_tokenizer import tokenizer_of

    config = RolloutConfig.model_validate(source.stored["config"])
    sampling = config.sampling
    if not (sampling.stop or sampling.stop_token_ids or {"stop", "stop_token_ids"} & sampling.columns.keys()):
        return None
    return next(iter(tokenizer_of(config, source.stored).eos), None)


def _write(done: ExportResult, path: Path, write: Callable[[BinaryIO], Notes]) -> None:
    with replacing(_real(path)) as file:
        done.notes += write(file)
    done.files.append((sha256(path), str(path)))


def _real(path: Path) -> Path:
    """Where the file lies: a link that is there stays, and what it leads to is replaced."""
    return Path(os.path.realpath(path))


def _require_format(source: ExportedRun, kind: str) -> None:
    special = {"generate": ("openai",), "rollout": TRAINERS}
    if any(kind in formats for job, formats in special.items() if job != source.job):
        holds = "completions" if kind == "openai" else "rollouts"
        fit = ", ".join([*WRITERS, *special.get(source.job, ())])
        raise ConfigError(f"--format {kind}: holds {holds}, and this is a run of job: {source.job}; use one of {fit}")


def _require_place(source: ExportedRun, to: str, paths: list[Path], overwrite: bool) -> None:
    if to == "-":
        raise ConfigError("--to -: an export appears whole or not at all, which a stream cannot; name a file (./- is one of that name)")
    if any(_real(path).is_relative_to(source.run.resolve()) for path in (Path(to), *paths)):
        raise ConfigError(f"--to {to}: lies in the run directory, which holds the run's own files alone; choose another place")
    if other := [path for path in paths if path.exists() and not path.is_file()]:
        raise ConfigError(f"--to {to}: {other[0]} is there and is no regular file (a folder, a device, a pipe); name another file")
    if not overwrite and (there := [path for path in paths if path.exists()]):
        raise ConfigError(f"--to {to}: {there[0]} is there already; --overwrite replaces it")


@contextmanager
def _said(to: str) -> Generator[None]:
    """Turns what the operating system refuses to write into errors that name the place."""
    try:
        yield
    except OSError as error:
        kind = OutOfRoom if error.errno in (errno.ENOSPC, errno.EDQUOT) else BulkError
        raise kind(f"--to {to}: cannot be written: {error}. Nothing is left half written: make room, or choose another place.") from error

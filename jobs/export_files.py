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

from ..configs.errors import BulkError, ConfigError
from ..configs.schema import GenerateConfig
from ..runner.durable import replacing, sha256
from ..runner.errors import OutOfRoom
from ..runner.parts import read_errors, read_results
from .export_source import Exported, Source, opened, told
from .table_files import WRITERS, Notes

SUMS = "SHA256SUMS"

_ENDINGS = {"openai": "jsonl"}


def export_files(source: Source, kind: str, to: str, *, overwrite: bool) -> Exported:
    """Writes the run's records as the format ``kind`` to ``to``: a file, or a folder (one that is there, or a name that ends in /).

    A folder gets ``results`` and, where rows are quarantined, ``errors``, and a file SHA256SUMS last. Raises ConfigError for a
    target that is there already unless ``overwrite``, or that lies in the run directory, and for what the format cannot hold.
    """
    _require_format(source, kind)
    folder = to.endswith(os.sep) or Path(to).is_dir()
    target, ending = Path(to), _ENDINGS.get(kind, kind)
    results, errors, sums = (target / f"results.{ending}", target / f"errors.{ending}", target / SUMS) if folder else (target, None, None)
    _require_place(source, to, [path for path in (results, errors, sums) if path is not None], overwrite)
    write = _openai(source) if kind == "openai" else _table(kind, source, read_results(source.run), source.records)
    done = Exported(to, source.records)
    failures = errors if source.errors and kind in WRITERS else None
    with _said(to):
        results.parent.mkdir(parents=True, exist_ok=True)
        for old in (sums, errors):  # what an earlier export left would not fit the new results
            if old is not None:
                old.unlink(missing_ok=True)
        _write(done, results, write)
        if failures is not None:
            _write(done, failures, _table(kind, source, read_errors(source.run), source.errors))
        if sums is not None:
            with replacing(sums) as file:
                file.writelines(f"{digest}  {Path(path).name}\n".encode() for digest, path in done.files)
    if failures is not None or kind == "openai":
        done.failures = source.errors
    done.notes += source.notes(with_errors=done.failures > 0)
    return done


def _table(kind: str, source: Source, batches: Iterator[pa.RecordBatch], total: int) -> Callable[[BinaryIO], Notes]:
    schema, shown = opened(batches, total, source.run)
    return lambda file: WRITERS[kind](file, schema, shown)


def _openai(source: Source) -> Callable[[BinaryIO], Notes]:
    from ..runner.run_tokenizer import tokenizer_of
    from .openai_lines import needs_tokens, openai_lines
    from .openai_logprobs import spelled

    config = GenerateConfig.model_validate(source.stored["config"])
    spell = spelled(tokenizer_of(config, source.stored).token_bytes) if needs_tokens(config) else None

    def write(file: BinaryIO) -> Notes:
        lines = openai_lines(source.run, source.stored, config, spell)
        file.writelines(f"{line}\n".encode() for line in told(lines, source.rows, lambda _: 1))
        return []

    return write


def _write(done: Exported, path: Path, write: Callable[[BinaryIO], Notes]) -> None:
    with replacing(path) as file:
        done.notes += write(file)
    done.files.append((sha256(path), str(path)))


def _require_format(source: Source, kind: str) -> None:
    if kind == "openai" and source.job != "generate":
        raise ConfigError(f"--format openai: holds completions, and this is a run of job: {source.job}; use one of {', '.join(WRITERS)}")


def _require_place(source: Source, to: str, paths: list[Path], overwrite: bool) -> None:
    if Path(to).resolve().is_relative_to(source.run.resolve()):
        raise ConfigError(f"--to {to}: lies in the run directory, which holds the run's own files alone; choose another place")
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

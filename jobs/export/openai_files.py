"""The files of a Batch: one of answers and one of errors, or both in one in input order. A run is read once for both."""

import shutil
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from ...configs.jobs import ROW_JOBS
from .openai_batch import BatchLine, needs_tokens, openai_lines, record_columns
from .openai_logprobs import openai_spelling
from .source import ExportedRun, show_progress
from .table_writers import Notes


class BatchFiles:
    """Writes a run's lines. apart: errors go to a file of their own; until it is written they wait in a temporary one."""

    def __init__(self, source: ExportedRun, *, apart: bool):
        from ...runner.models.run_tokenizer import tokenizer_of

        self._source, self._config = source, ROW_JOBS[source.job].model_validate(source.stored["config"])
        with_tokens = needs_tokens(self._config, record_columns(source.run))
        self._spell = openai_spelling(tokenizer_of(self._config, source.stored).token_bytes) if with_tokens else None
        self._waiting = tempfile.TemporaryFile() if apart else None  # noqa: SIM115 - lives as long as this object
        self.refused = 0  # lines that wait

    def write(self, file: BinaryIO) -> Notes:
        """Writes the lines, without those of the file of errors."""
        for line in show_progress(self._lines(), self._source.rows, lambda _: 1):
            if line.answered or self._waiting is None:
                file.write(line.text.encode() + b"\n")
            else:
                self._waiting.write(line.text.encode() + b"\n")
                self.refused += 1
        return []

    def write_refused(self, file: BinaryIO) -> Notes:
        """Writes the lines that wait, which ``write`` left out."""
        assert self._waiting is not None
        self._waiting.seek(0)
        shutil.copyfileobj(self._waiting, file)
        return []

    def _lines(self) -> Iterator[BatchLine]:
        return openai_lines(self._source.run, self._source.stored, self._config, self._spell)

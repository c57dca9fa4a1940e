"""What a job kind is: row -> requests, outcome -> record, records -> statistics. A new kind fulfils this and nothing else changes."""

from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from .prefill import Wanted
from .records import Outcome, Request, Row


class Job(Protocol):
    """A job kind, readied for one run: its config, the input's columns and the tokenizer are known to it."""

    @property
    def wanted(self) -> Wanted:
        """Which figures the engine is to compute."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The records' columns: ``row`` first; ``sample`` where a row can have several records."""
        ...

    def requests(self, row: Row) -> list[Request]:
        """What a row asks of the engine. Raises RowError where it cannot be done."""
        ...

    def record(self, row: Row, request: Request, outcome: Outcome) -> dict[str, Any]:
        """A finished outcome as the schema's columns (``row`` and ``sample`` are put in by the writer)."""
        ...

    def statistics(self, run: Path) -> pa.Table:
        """Statistics of all records in a run directory, one row a group; a function of the records alone."""
        ...

"""What a job kind is: row -> requests, outcome -> record, records -> statistics. A new kind fulfils this and nothing else changes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ..configs.schema import RunConfig
from .prefill import Wanted
from .prompts import Rendered
from .records import Outcome, Request, Row
from .tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class Parts:
    """What a job kind is made from, once input and checkpoint are known.

    columns: names in the input; kept: the records' ``input`` struct, None without one; context: the longest sequence that
    the model was made for, in tokens, None where it does not say; vocabulary: the width of its logits.
    """

    config: RunConfig
    columns: list[str]
    kept: pa.StructType | None
    render: Callable[[dict[str, Any]], Rendered]
    tokenizer: Tokenizer
    context: int | None
    vocabulary: int


class Job(Protocol):
    """A job kind, readied for one run from its ``Parts``."""

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

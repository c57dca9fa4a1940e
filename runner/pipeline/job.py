"""What a job kind is: row -> requests, outcome -> record, records -> statistics. A new kind fulfils this and nothing else changes."""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ...configs.schema import JobConfig
from ..core.logprob_options import LogprobOptions
from ..core.requests import BadRow, Failure, Generated, Outcome, Request, Row
from ..data.type_inference import json_text
from ..engine.interface import Runs
from ..engine.setup import Setup
from ..text.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class Parts:
    """What a job kind is made from, once input and checkpoint are known.

    columns: names in the input; kept: the records' ``input`` struct, None without one; context: the longest sequence that
    the model was made for, in tokens, None where it does not say; reference_context: the same of the reference model, None
    without one; vocabulary: the width of its logits; family: its
    ``model_type``; eos: the ids that end a completion.
    """

    config: JobConfig
    columns: list[str]
    kept: pa.StructType | None
    tokenizer: Tokenizer
    context: int | None
    reference_context: int | None
    vocabulary: int
    family: str
    eos: frozenset[int]


@dataclass(slots=True, frozen=True)
class Ratings:
    """A group's rewards by the functions' names, in the order of the config; each list has a place a sample, in their order.

    rewards: None where the function left the sample out, or could not rate it; errors: in the second case why, as
    "kind: text", else None. Kinds are exception, timeout, length, type, nan, infinite, died, start.
    """

    rewards: dict[str, list[float | None]]
    errors: dict[str, list[str | None]]


class Judge(Protocol):
    """What rates groups, beside the model's work."""

    def rate(self, row: Row, request: Request, outcomes: Sequence[Generated]) -> Future[Ratings]:
        """Has a complete group rated. The future always gets a result: what goes wrong in a function is in it, hanging too."""
        ...

    def close(self) -> None:
        """Ends the rating at once; futures that have no result yet get none."""
        ...


class Grouping(Protocol):
    """What a job does whose rows are recorded as a whole: all samples of a row in one round, or none."""

    def fingerprints(self) -> dict[str, str]:
        """What of the run's identity stands in files that the config names: key to digest."""
        ...

    def judge(self) -> Judge | None:
        """What rates the groups of one session; None where there is nothing to rate."""
        ...

    def group(
        self, row: Row, request: Request, outcomes: Sequence[Generated], ratings: Ratings, newest: int
    ) -> list[dict[str, Any]] | Failure:
        """The records of a complete group in the order of ``outcomes``, or a failure of stage ``DROP`` that says why it is left out.

        newest: the version of the newest policy that the trainer has finished.
        """
        ...


class Job(Protocol):
    """A job kind, readied for one run from its ``Parts``."""

    @property
    def wanted(self) -> LogprobOptions:
        """Which figures the engine is to compute."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The records' columns: ``row`` first; ``sample`` where a row can have several records."""
        ...

    @property
    def samples(self) -> int | None:
        """How many records a row has, None where each row says it."""
        ...

    def engine(self, setup: Setup, reference: Setup | None) -> Runs:
        """What runs this job's requests on a loaded model, held against a ``reference`` model where the config names one."""
        ...

    def requests(self, row: Row) -> list[Any]:
        """What a row asks of the engine. Raises RowError where it cannot be done."""
        ...

    def record(self, row: Row, request: Any, outcome: Outcome) -> dict[str, Any]:
        """A finished outcome as the schema's columns (``row`` and ``sample`` are put in by the writer)."""
        ...

    @property
    def grouping(self) -> Grouping | None:
        """How rows are recorded as a whole; None where each outcome is a record by itself."""
        ...

    def statistics(self, run: Path) -> pa.Table:
        """Statistics of all records in a run directory, one row a group; a function of the records alone."""
        ...

    def closing(self, statistics: pa.Table) -> str:
        """What of the statistics is printed at the end of a run; empty for nothing."""
        ...


class Kind(Protocol):
    """A job kind: what makes a ``Job`` from its parts, and checks templates."""

    def __call__(self, parts: Parts) -> Job:
        """The job, readied for one run. Raises ConfigError or DataError where config, input and model do not fit."""
        ...

    def check(self, config: Any, columns: Collection[str]) -> None:
        """Raises ConfigError for templates that cannot be parsed, DataError for those that ask for columns not in ``columns``.

        With no columns only the first is checked: that is done before any file is opened.
        """
        ...


def row_failure(row: Row, stage: str, error: str, message: str) -> Failure:
    """Returns the failure of a whole row: ``stage`` it failed at, ``error`` (a class name), and a message with the row's place."""
    return Failure(row.position, row.key, None, stage, error, placed(message, row), json_text(row.columns))


def bad_row_failure(row: BadRow) -> Failure:
    """Returns the failure of a row that could not be read."""
    return Failure(row.position, row.key, None, "read", "UnreadableRow", row.message, row.text)


def placed(message: str, row: Row) -> str:
    """Returns the message with the row's place in the input added."""
    return f"{message} ({row.place})" if row.place else message

"""The contract of a job kind: row -> requests, outcome -> record, records -> statistics.

A new kind implements ``Kind`` and ``Job``, and is listed in jobs/kinds.py; nothing else in the runner changes. Its life in a run:

    Kind.check(config, [])        before any file is opened
    Kind.check(config, columns)   after the input is scanned
    Kind(parts)                   after the tokenizer is loaded, before the model; returns the job
    Job.engine(...)               after the model is loaded; the engine runs in the model's thread
    Job.requests(row)             once a row, in the reading thread
    Job.record(...)               once an outcome, in the recording thread (a job of groups: ``Grouping.group`` once a row)
    Job.statistics(run)           after the last record, in the model's thread

The threads run at the same time, so what two of them use must not change. A plan, a sweep and ``verify`` make jobs that they do
not run.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ...configs.schema import JobConfig
from ..core.arrays import Ids
from ..core.images import ImageTable
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Failure, Generated, Outcome
from ..core.requests import BadRow, Request, Row, TokenInput
from ..data.request_census import RequestCensus
from ..data.type_inference import json_text
from ..engine.interface import EngineInterface
from ..engine.setup import Setup
from ..images.kept_pictures import kept_columns, without_bytes
from ..images.placeholders import PictureEncoder
from ..models.checkpoint import Checkpoint
from ..models.reward_checkpoint import RewardModel
from ..pooling.spec import PoolingSpec
from ..text.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class Parts:
    """The parts of which a job is made, once the input is scanned and the checkpoint is found.

    columns: names of the input's columns, with their types where a scan found them (``Scan.column_types``). kept: type of the records'
    ``input`` struct, None where nothing is kept. context: the longest sequence in tokens that the model was made for, None where its config
    does not say. reference_context: that of the reference model, None also without one. vocabulary: the width V of the model's logits;
    token ids are below it. family: the model's ``model_type``. eos: the token ids that end a completion. checkpoint: where the model lies.
    census: what the requests of a Batch file ask for. reward_models: those of the config's rewards, in their order. pictures: encodes
    prompts with pictures; None where rows hold text alone.
    """

    config: JobConfig
    columns: Collection[str]
    kept: pa.StructType | None
    tokenizer: Tokenizer
    context: int | None
    reference_context: int | None
    vocabulary: int
    family: str
    eos: frozenset[int]
    checkpoint: Checkpoint
    census: RequestCensus = field(default_factory=RequestCensus)
    reward_models: tuple[RewardModel, ...] = ()
    pictures: PictureEncoder | None = None

    @property
    def images(self) -> ImageTable | None:
        """Gives pictures their ids; None for rows of text alone."""
        return None if self.pictures is None else self.pictures.table

    def kept_columns(self, row: Row) -> dict[str, Any]:
        """Returns a row's columns for a record: digests in the place of pictures' bytes."""
        return row.columns if self.pictures is None else kept_columns(row.columns, self.config)

    def plain(self, ids: Ids) -> Ids:
        """Returns a prompt's ids as the tokenizer knows them, without those of pictures."""
        return ids if self.images is None else self.images.plain(ids)


LONG_BYTES = 1024  # errors/ is to be read, and holds no copies of files

ConfigFiles = dict[str, dict[str, bytes]]
"""Contents of local files that a config names: its key -> name -> content. The first name takes the place of the setting's path."""


class Kind(Protocol):
    """A kind of job: checks a config, and makes a ``Job`` from its parts. A class with this signature is one."""

    def __call__(self, parts: Parts) -> "Job":
        """Makes the job of one run. Raises ConfigError or DataError where config, input and model do not fit together."""
        ...

    def check(self, config: Any, columns: Collection[str]) -> None:
        """Checks the config's templates. Raises ConfigError for one that cannot be parsed, DataError for a missing column.

        With no ``columns`` only the parsing is checked: the first call comes before any file is opened.
        """
        ...


class Job(Protocol):
    """A job, ready for one run. Its properties do not change."""

    @property
    def wanted(self) -> LogprobOptions:
        """The figures that the engine is to compute."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The records' columns: ``row`` (int64) first, and ``sample`` (int32) where a row can have several records."""
        ...

    @property
    def pooling(self) -> PoolingSpec | None:
        """What becomes of the model's hidden states; None for a job that reads logits of next tokens."""
        ...

    @property
    def samples(self) -> int | None:
        """The number of records a row has, None where each row says it."""
        ...

    @property
    def grouping(self) -> "Grouping | None":
        """How a row's samples are recorded together; None where each outcome is a record by itself."""
        ...

    def config_files(self) -> ConfigFiles:
        """Returns local files that the config names, as a worker of another machine needs them; without prompts, grammars and models.

        Raises BulkError where one has changed.
        """
        ...

    def engine(self, setup: Setup, reference: Setup | None) -> EngineInterface:
        """Returns the engine that runs the job's requests on a loaded model: ``Engine`` for completions, ``Scorer`` for scores, ``Pooler``.

        reference: the reference model that the config names; None without one. Rollouts get None: the session scores for them.
        """
        ...

    def requests(self, row: Row) -> list[Any]:
        """Returns the requests of a row, as a rule one: all ``Request``, all ``ScoreRequest`` or all ``PoolRequest``.

        Each has ``row.position``, and the samples of all of them are 0 to n - 1. The same row must give the same requests in
        every session. Raises RowError(stage, message) where the row cannot be done; it goes to errors/ and the run goes on. Any
        other exception ends the run.
        """
        ...

    def record(self, row: Row, request: Any, outcome: Outcome) -> dict[str, Any]:
        """Returns a finished outcome as a record: the columns of ``schema`` without ``row``, ``round`` and ``sample``.

        The writer adds those. outcome: ``Generated``, ``Scored`` or ``Pooled``, never a failure. Arrays may be numpy's: token ids
        [N] int32, logprobs [N] float32, natural-log units. Raises RowError where the record cannot hold the outcome.
        """
        ...

    def statistics(self, run: Path) -> pa.Table:
        """Returns the statistics of all records in a run directory: one row a group, the first over all.

        The table depends on the records alone, so that it can be computed again.
        """
        ...

    def closing(self, statistics: pa.Table) -> str:
        """Returns the part of the statistics to print at the end of a run; empty for nothing."""
        ...


class Grouping(Protocol):
    """How a job records all samples of a row together: all of them in one round, or none."""

    def fingerprints(self) -> dict[str, str]:
        """Returns what the run's identity holds of the files that the config names: key -> digest."""
        ...

    def judge(self) -> "Judge | None":
        """Returns what rates the groups of one session; None where there is nothing to rate. Called once a session."""
        ...

    def rated_inputs(self, request: Request, outcome: Generated) -> Sequence[TokenInput | str]:
        """Returns what each reward model reads of a completion, or as "kind: text" why it cannot. Called in the model's thread."""
        ...

    def group(
        self, row: Row, request: Request, outcomes: Sequence[Generated], ratings: "Ratings", newest: int
    ) -> list[dict[str, Any]] | Failure:
        """Returns the records of a complete group, or a failure that leaves the group out.

        A record for each of the ``outcomes``, in their order; or one for all where ``Job.samples`` is 1. Such a failure says why; it has
        the stage ``DROP`` where the group is left out on purpose. newest: the version of the trainer's newest finished policy. Called in
        the recording thread.
        """
        ...


class Judge(Protocol):
    """Rates groups, beside the model's work."""

    def rate(self, row: Row, request: Request, outcomes: Sequence[Generated]) -> "Future[Ratings]":
        """Has a complete group rated, and returns at once. outcomes: one a sample, in the order of the samples.

        The future always gets a result: what goes wrong in a function, also a function that hangs, is in the ratings. Called in
        the recording thread; the result may come from any thread.
        """
        ...

    def close(self) -> None:
        """Ends the rating at once. Futures without a result get none any more."""
        ...


@dataclass(slots=True, frozen=True)
class Ratings:
    """The rewards of a group by their names, in the config's order. Each list has one entry a sample, in their order.

    rewards: None where the function left the sample out, or could not rate it. errors: in the second case the reason as
    "kind: text", else None. Kinds of functions are exception, timeout, memory, died, length, type, nan and infinite; of models too_long,
    template, empty, memory and nan.
    """

    rewards: dict[str, list[float | None]]
    errors: dict[str, list[str | None]]


def row_failure(row: Row, stage: str, error: str, message: str) -> Failure:
    """Returns the failure of a whole row: ``stage`` it failed at, ``error`` (a class name), and a message with the row's place."""
    return Failure(row.position, row.key, None, stage, error, placed(message, row), failed_input(row, stage))


def failed_input(row: Row, stage: str) -> str:
    """Returns a failed row's columns as JSON: digests in the place of pictures, and of other bytes that are as long as a file."""
    return json_text(without_bytes(row.columns, 0 if stage == "image" else LONG_BYTES))


def bad_row_failure(row: BadRow) -> Failure:
    """Returns the failure of a row that could not be read."""
    return Failure(row.position, row.key, None, "read", "UnreadableRow", row.message, row.text)


def placed(message: str, row: Row) -> str:
    """Returns the message with the row's place in the input added."""
    return f"{message} ({row.place})" if row.place else message

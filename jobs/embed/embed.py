"""``job: embed``: turns a row's text into token ids, and its vector into a record."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.embed import EmbedConfig
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Outcome, Pooled
from ...runner.core.requests import PoolRequest, Row, TokenInput
from ...runner.engine.setup import Setup
from ...runner.pipeline.job import Parts
from ...runner.pool_engine.pooler import Pooler
from ...runner.pooling.hidden_size import hidden_size
from ...runner.pooling.sentence_folder import SentenceFolder, read_sentence_folder
from ...runner.pooling.spec import PoolingSpec, embedding_spec
from ...runner.text.prompt_templates import Columns, compile_template
from .pooling_choice import chosen_head


@dataclass(frozen=True)
class EmbedJob:
    """An embedding job; implements ``runner.pipeline.job.Job``."""

    parts: Parts

    @staticmethod
    def check(config: EmbedConfig, columns: Collection[str]) -> None:
        """Parses the template, and checks that ``columns``, if there are any, hold those that it reads."""
        compile_template(config.prompt.text or "", "prompt.text", columns)

    @cached_property
    def config(self) -> EmbedConfig:
        """The job's settings."""
        assert isinstance(self.parts.config, EmbedConfig)
        return self.parts.config

    @property
    def wanted(self) -> LogprobOptions:
        """No logprobs."""
        return LogprobOptions()

    @cached_property
    def pooling(self) -> PoolingSpec:
        """How hidden states become the vector."""
        config = self.parts.checkpoint.config
        return embedding_spec(chosen_head(self.config.embed, self.folder, config), hidden_size(config))

    @cached_property
    def folder(self) -> SentenceFolder:
        """What sentence-transformers' files in the model's folder say."""
        return read_sentence_folder(self.parts.checkpoint.modules_folder)

    @property
    def samples(self) -> int:
        """The number of records a row: one."""
        return 1

    @property
    def grouping(self) -> None:
        """None: each outcome is a record by itself."""
        return None

    def engine(self, setup: Setup, reference: Setup | None) -> Pooler:
        """Returns the engine that computes vectors."""
        return Pooler(setup)

    def requests(self, row: Row) -> list[PoolRequest]:
        """Returns the row's one request. Raises RowError."""
        ids = self.parts.tokenizer.encode(self._text(row.columns)).ids
        return [PoolRequest(row.position, (TokenInput(ids),))]

    @cached_property
    def _text(self) -> Callable[[Columns], str]:
        return compile_template(self.config.prompt.text or "", "prompt.text", self.parts.columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that this config fills."""
        fields: list[tuple[str, pa.DataType]] = [("row", pa.int64()), ("key", pa.string())]
        fields += [("input", self.parts.kept)] if self.parts.kept is not None else []
        fields += [("embedding", pa.list_(pa.float32(), self.pooling.dimensions)), ("tokens", pa.int32()), ("truncated", pa.bool_())]
        return pa.schema(fields)

    def record(self, row: Row, request: PoolRequest, outcome: Outcome) -> dict[str, Any]:
        """Returns an embedded row as the schema's columns."""
        assert isinstance(outcome, Pooled), "only pooled rows become records"
        values: dict[str, Any] = {"row": row.position, "key": row.key, "input": row.columns, "embedding": outcome.values[0]}
        values |= {"tokens": request.text_tokens, "truncated": request.truncated > 0}
        return {name: values[name] for name in self.schema.names}

    def statistics(self, run: Path) -> pa.Table:
        """Returns a table of one row."""
        return pa.table({"group": pa.array([None], pa.string())})

    def closing(self, statistics: pa.Table) -> str:
        """Returns nothing yet."""
        return ""

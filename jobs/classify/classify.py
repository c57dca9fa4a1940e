"""``job: classify``: turns a row into token ids, and its logits into a record."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.classify import ClassifyConfig
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Outcome, Pooled
from ...runner.core.requests import PoolRequest, Row, TokenInput
from ...runner.engine.setup import Setup
from ...runner.pipeline.job import Parts
from ...runner.pool_engine.pooler import Pooler
from ...runner.pooling.checkpoint_head import CheckpointHead, checkpoint_head
from ...runner.pooling.spec import PoolingSpec
from ...runner.text.prompt_templates import Columns, compile_template


@dataclass(frozen=True)
class ClassifyJob:
    """A classification job; implements ``runner.pipeline.job.Job``."""

    parts: Parts

    @staticmethod
    def check(config: ClassifyConfig, columns: Collection[str]) -> None:
        """Parses the template, and checks that ``columns``, if there are any, hold those that it reads."""
        compile_template(config.prompt.text or "", "prompt.text", columns)

    @cached_property
    def config(self) -> ClassifyConfig:
        """The job's settings."""
        assert isinstance(self.parts.config, ClassifyConfig)
        return self.parts.config

    @property
    def wanted(self) -> LogprobOptions:
        """No logprobs."""
        return LogprobOptions()

    @cached_property
    def head(self) -> CheckpointHead:
        """The checkpoint's own head, and the names of its labels."""
        return checkpoint_head(self.parts.checkpoint.folder, self.parts.checkpoint.config)

    @property
    def pooling(self) -> PoolingSpec:
        """How hidden states become logits: by the checkpoint's own head."""
        return self.head.spec

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
        fields += [("logits", pa.list_(pa.float32(), self.pooling.dimensions)), ("tokens", pa.int32()), ("truncated", pa.bool_())]
        return pa.schema(fields)

    def record(self, row: Row, request: PoolRequest, outcome: Outcome) -> dict[str, Any]:
        """Returns a classified row as the schema's columns."""
        assert isinstance(outcome, Pooled), "only pooled rows become records"
        values: dict[str, Any] = {"row": row.position, "key": row.key, "input": row.columns, "logits": outcome.values[0]}
        values |= {"tokens": request.text_tokens, "truncated": request.truncated > 0}
        return {name: values[name] for name in self.schema.names}

    def statistics(self, run: Path) -> pa.Table:
        """Returns a table of one row."""
        return pa.table({"group": pa.array([None], pa.string())})

    def closing(self, statistics: pa.Table) -> str:
        """Returns nothing yet."""
        return ""

"""``job: embed``: turns a row's text into token ids, and its vector into a record."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.embed import EmbedConfig
from ...configs.errors import ConfigError
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Outcome, Pooled
from ...runner.core.requests import PoolRequest, Row
from ...runner.engine.setup import Setup
from ...runner.images.tower_processor import has_two_towers
from ...runner.pipeline.job import ConfigFiles, Parts
from ...runner.pool_engine.pooler import Pooler
from ...runner.pooling.hidden_size import hidden_size
from ...runner.pooling.sentence_folder import SentenceFolder, read_sentence_folder
from ...runner.pooling.spec import PoolingSpec, embedding_spec
from ...runner.templates.prompt_templates import compile_prompt
from .calibration import COLUMN, read_ranges
from .openai_texts import EmbeddingLines
from .pooling_choice import chosen_head
from .prompt_inputs import PromptInputs, with_a_turn
from .text_choice import chosen_inputs
from .text_inputs import TextInputs
from .tower_inputs import TowerInputs
from .vector_statistics import embed_closing, embed_statistics
from .vector_types import Ranges, ranges_text, stored_type, storing


@dataclass(frozen=True)
class EmbedJob:
    """An embedding job; implements ``runner.pipeline.job.Job``."""

    parts: Parts

    def __post_init__(self) -> None:
        _ = self.pooling, self.inputs, self.schema  # raises where the model does not allow what the config asks
        if self.config.data.format != "openai":
            _ = self._prompts

    @staticmethod
    def check(config: EmbedConfig, columns: Collection[str]) -> None:
        """Parses the templates, and checks that ``columns``, if there are any, hold those that they read."""
        if config.data.format != "openai":
            compile_prompt(with_a_turn(config.prompt), columns)

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
    def folder(self) -> SentenceFolder:
        """What sentence-transformers' files in the model's folder say."""
        return read_sentence_folder(self.parts.checkpoint.modules_folder)

    @cached_property
    def pooling(self) -> PoolingSpec:
        """How hidden states become the vector. Lines of a Batch file are cut afterwards, each to its own length."""
        config, settings = self.parts.checkpoint.config, self.config.embed
        if self.config.data.format == "openai":
            settings = settings.model_copy(update={"dimensions": None})
        head = chosen_head(settings, self.folder, config)
        whole = embedding_spec(replace(head, cut=None), hidden_size(config)).dimensions
        if (wanted := self.config.embed.dimensions) is not None and wanted > whole:
            raise ConfigError(f"embed.dimensions: found {wanted}; expected at most {whole}, the numbers of this model's vectors")
        return embedding_spec(head, hidden_size(config))

    @property
    def samples(self) -> int:
        """The number of records a row: one."""
        return 1

    @property
    def grouping(self) -> None:
        """None: each outcome is a record by itself."""
        return None

    def config_files(self) -> ConfigFiles:
        """Returns the ranges of int8 numbers, as a file of two vectors that has them."""
        if self._ranges is None:
            return {}
        file = BytesIO()
        np.save(file, self._ranges, allow_pickle=False)
        return {"embed.calibration": {"ranges.npy": file.getvalue()}}

    def engine(self, setup: Setup, reference: Setup | None) -> Pooler:
        """Returns the engine that computes vectors."""
        return Pooler(setup)

    # ----------------------------------------------------------------------------------------------- row -> request

    def requests(self, row: Row) -> list[PoolRequest]:
        """Returns the row's one request. Raises RowError."""
        if self._lines is not None:
            return [self._lines.request(row)]
        return [self._prompts.request(row)]

    @cached_property
    def inputs(self) -> TextInputs:
        """Encodes texts as the model reads them."""
        return chosen_inputs(self.config.embed, self.folder, self.parts)

    @cached_property
    def _lines(self) -> EmbeddingLines | None:
        """Reads the lines of a Batch file; None for other data."""
        if self.config.data.format != "openai":
            return None
        head = chosen_head(self.config.embed.model_copy(update={"dimensions": 1}), self.folder, self.parts.checkpoint.config)
        return EmbeddingLines(self.parts, self._prompts, self.pooling.dimensions, head.normalize)

    @cached_property
    def _prompts(self) -> PromptInputs | TowerInputs:
        if has_two_towers(self.parts.checkpoint.config):
            return TowerInputs(self.parts, self.inputs)
        return PromptInputs(self.parts, self.inputs, self.folder)

    # ------------------------------------------------------------------------------------------- outcome -> record

    @cached_property
    def _ranges(self) -> Ranges | None:
        """The ranges of int8 numbers; None for other types."""
        path = self.config.embed.calibration
        return None if path is None else read_ranges(path, self.pooling.dimensions)

    @cached_property
    def _stored(self) -> Callable[..., Any]:
        return storing(self.config.embed.dtype, self._ranges)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that this config fills. The vector's field says of it what a reader must know: see docs/embeddings.md."""
        vector = stored_type(self.config.embed.dtype, self.pooling.dimensions)
        metadata: dict[str | bytes, str | bytes] = {"dimensions": str(self.pooling.dimensions)}
        metadata["similarity"] = self.folder.similarity or "cosine"
        if self._ranges is not None:
            metadata["ranges"] = ranges_text(self._ranges)
        fields = [pa.field("row", pa.int64()), pa.field("key", pa.string())]
        fields += [pa.field("input", self.parts.kept)] if self.parts.kept is not None else []
        if self._lines is not None:
            vector = pa.list_(pa.list_(pa.float32()))
        fields += [pa.field(COLUMN, vector, metadata=metadata), pa.field("tokens", pa.int32()), pa.field("truncated", pa.bool_())]
        return pa.schema([*fields, *([pa.field("request", pa.large_string())] if self._lines is not None else [])])

    def record(self, row: Row, request: PoolRequest, outcome: Outcome) -> dict[str, Any]:
        """Returns an embedded row as the schema's columns. Raises RowError for a vector that its type cannot hold."""
        assert isinstance(outcome, Pooled), "only pooled rows become records"
        values: dict[str, Any] = {"row": row.position, "key": row.key, "input": self.parts.kept_columns(row)}
        if self._lines is not None:
            values |= {COLUMN: self._lines.vectors(row, outcome.values), "request": self._lines.repeated(row)}
        else:
            values[COLUMN] = self._stored(outcome.values)[0]
        values |= {"tokens": request.text_tokens, "truncated": request.truncated > 0}
        return {name: values[name] for name in self.schema.names}

    # ---------------------------------------------------------------------------------------- records -> statistics

    def statistics(self, run: Path) -> pa.Table:
        """Returns a table of one row: counts, and the lengths of texts and vectors."""
        return embed_statistics(run)

    def closing(self, statistics: pa.Table) -> str:
        """Returns the statistics as a table for the terminal."""
        return embed_closing(statistics)

"""``job: classify``: turns a row into token ids, and its logits into labels and scores."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.classify import ClassifyConfig
from ...configs.errors import ConfigError
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Outcome, Pooled
from ...runner.core.requests import PoolRequest, Row
from ...runner.encoders.registry import encoder_class
from ...runner.engine.setup import Setup
from ...runner.pipeline.job import ConfigFiles, Parts
from ...runner.pool_engine.pooler import Pooler
from ...runner.pooling.sentence_folder import SentenceFolder, read_sentence_folder
from ...runner.pooling.spec import PoolingSpec
from ..generate.prompt_encoding import require_chat_template, require_vocabulary
from ..score.choices import compile_label, label_index
from .closing_table import classify_closing
from .input_encoder import Cut, InputEncoder
from .model_head import ModelHead, model_head, most_tokens, require_token_room
from .pair_format import PairFormat, roles_in_template, shows_system_turn
from .records import form_columns, form_values
from .row_inputs import RowInputs, check_inputs, read_documents
from .score_rule import ScoreRule, chosen_activation
from .statistics import classify_statistics


@dataclass(frozen=True)
class ClassifyJob:
    """A classification job; implements ``runner.pipeline.job.Job``."""

    parts: Parts

    def __post_init__(self) -> None:
        require_chat_template(self.parts)
        classify = self.config.classify
        if classify.form in ("documents", "preference") and self.pooling.dimensions > 1:
            key = "documents" if classify.form == "documents" else "chosen"
            cure = "use a reranker or a reward model, or classify.true_token"
            raise ConfigError(f"classify.{key}: the model has {self.pooling.dimensions} labels; expected one with a single score; {cure}")
        if classify.label is not None and classify.form != "documents" and not self._rule.labels:
            raise ConfigError("classify.label: the model gives one score and no labels to compare with; remove it, or use a classifier")
        if self.config.prompt.prefill is not None and self._head.words is None:
            raise ConfigError("prompt.prefill: a classifier reads chats that are finished; expected null; remove it")
        _ = self._rule, self._inputs  # raises where the model does not allow what the config asks

    @staticmethod
    def check(config: ClassifyConfig, columns: Collection[str]) -> None:
        """Parses the templates, and checks that ``columns``, if there are any, hold those that they read."""
        check_inputs(config, columns)
        if config.classify.label is not None:
            compile_label(config.classify.label, columns, "classify.label")

    @cached_property
    def config(self) -> ClassifyConfig:
        """The job's settings."""
        assert isinstance(self.parts.config, ClassifyConfig)
        return self.parts.config

    @property
    def wanted(self) -> LogprobOptions:
        """No logprobs."""
        return LogprobOptions()

    @property
    def pooling(self) -> PoolingSpec:
        """How hidden states become logits."""
        return self._head.spec

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in the logits' order; empty for a model that gives one score."""
        return self._head.labels

    @property
    def samples(self) -> int:
        """The number of records a row: one."""
        return 1

    @property
    def grouping(self) -> None:
        """None: each outcome is a record by itself."""
        return None

    def config_files(self) -> ConfigFiles:
        """Returns no files: the config names none but those that all jobs may name."""
        return {}

    def engine(self, setup: Setup, reference: Setup | None) -> Pooler:
        """Returns the engine that computes logits."""
        return Pooler(setup)

    # ------------------------------------------------------------------------------------------ what the model brings

    @cached_property
    def _head(self) -> ModelHead:
        return model_head(self.config.classify, self.parts.checkpoint, self.parts.tokenizer)

    @cached_property
    def _folder(self) -> SentenceFolder:
        return read_sentence_folder(self.parts.checkpoint.modules_folder)

    @cached_property
    def _rule(self) -> ScoreRule:
        classify = self.config.classify
        relevance = classify.query is not None or self._head.words is not None
        activation = chosen_activation(classify.activation, self._head.said, self.pooling.dimensions, relevance=relevance)
        return ScoreRule(self._head.labels, activation)

    @property
    def _variables(self) -> dict[str, Any]:
        """The chat template's variables beside the user's own: a classifier reads a finished chat, a generative head the next token."""
        generative = self._head.words is not None and self.config.classify.form == "prompt" and self.config.classify.completion is None
        defaults = {"add_generation_prompt": generative} | ({"enable_thinking": False} if generative else {})
        return {name: value for name, value in defaults.items() if name not in self.config.prompt.chat_template_args}

    @cached_property
    def _pairs(self) -> PairFormat | None:
        """How a pair is written; None for a form without pairs."""
        classify, tokenizer, own = self.config.classify, self.parts.tokenizer, self.config.prompt.chat_template_args
        if classify.query is None:
            return None
        default = self._folder.prompts.get(self._folder.default_prompt or "")
        instruction = classify.instruction if classify.instruction is not None else default or None
        plain = {name: value for name, value in {"add_generation_prompt": False}.items() if name not in own}
        if (contents := roles_in_template(tokenizer, plain, named=classify.true_token is not None or self._head.words is None)) != "no":
            return PairFormat("roles", instruction, plain, parts=contents == "parts")
        if self._head.words is None:
            return PairFormat("tokenizer", instruction)
        if not tokenizer.has_chat_template:
            cure = "set prompt.chat_template, or write the pair yourself in prompt.text, up to where the answer begins"
            raise ConfigError(f"classify.query: the model's tokenizer has no chat template to ask a pair by; {cure}")
        judged = {"add_generation_prompt": True, "enable_thinking": False}
        variables = {name: value for name, value in judged.items() if name not in own}
        return PairFormat("judge", instruction, variables, system=shows_system_turn(tokenizer, variables), words=self._head.words)

    # ----------------------------------------------------------------------------------------------- row -> request

    @cached_property
    def _inputs(self) -> RowInputs:
        classify, checkpoint = self.config.classify, self.parts.checkpoint
        limit = most_tokens(classify.max_length, checkpoint, self._folder)
        types = encoder_class(checkpoint.config) is not None and checkpoint.config.get("type_vocab_size", 2) > 1
        require_token_room(classify, self.parts.tokenizer)
        encoder = InputEncoder(self.parts.tokenizer, limit, self._too_long, types)
        return RowInputs(self.config, self.parts.columns, encoder, self._pairs, self._variables)

    @property
    def _too_long(self) -> Cut:
        """What happens to inputs that are too long. By default nothing is cut whose end counts: answers, and what a token follows."""
        classify = self.config.classify
        ends = classify.form == "preference" or classify.completion is not None or (classify.query is None and self._head.words is not None)
        return "error" if classify.too_long == "auto" and ends else classify.too_long

    def requests(self, row: Row) -> list[PoolRequest]:
        """Returns the row's one request. Raises RowError."""
        inputs, cut = self._inputs.of(row.columns)
        for each in inputs:
            require_vocabulary(each.ids, self.parts.vocabulary, "the text")
        self._label(row)  # a label that fits no class costs the row before the model reads it
        return [PoolRequest(row.position, inputs, truncated=cut)]

    @cached_property
    def _read_label(self) -> Callable[[Row], Any]:
        label = self.config.classify.label
        if label is None:
            return lambda row: None
        read = compile_label(label, self.parts.columns, "classify.label")
        return lambda row: read(row.columns)

    def _label(self, row: Row) -> int | None:
        """Returns the place of the row's right label among the labels, or of its right document. Raises RowError."""
        value = self._read_label(row)
        if value is None:
            return None
        if self.config.classify.form == "documents":
            return label_index(value, read_documents(row.columns, self.config.classify.documents or ""), "classify.label", "document")
        return label_index(int(value) if isinstance(value, bool) else value, self._rule.labels, "classify.label", "label")

    # ------------------------------------------------------------------------------------------- outcome -> record

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that this config fills."""
        classify = self.config.classify
        fields: list[tuple[str, pa.DataType]] = [("row", pa.int64()), ("key", pa.string())]
        fields += [("input", self.parts.kept)] if self.parts.kept is not None else []
        fields += form_columns(classify.form, self._rule, self.pooling.dimensions, labelled=classify.label is not None)
        return pa.schema(fields)

    def record(self, row: Row, request: PoolRequest, outcome: Outcome) -> dict[str, Any]:
        """Returns a classified row as the schema's columns."""
        assert isinstance(outcome, Pooled), "only pooled rows become records"
        values: dict[str, Any] = {"row": row.position, "key": row.key, "input": row.columns}
        values |= form_values(self.config.classify.form, self._rule, outcome.values, self._label(row))
        values |= {"tokens": request.text_tokens, "truncated": request.truncated > 0}
        return {name: values[name] for name in self.schema.names}

    def statistics(self, run: Path) -> pa.Table:
        """Returns counts, shares of labels, means and accuracy over all records."""
        classify = self.config.classify
        return classify_statistics(run, classify.form, self._rule.labels, labelled=classify.label is not None)

    def closing(self, statistics: pa.Table) -> str:
        """Returns the statistics as text for the terminal."""
        return classify_closing(statistics)

"""``job: score``: turns a row into passages whose tokens are scored, and their scores into a record.

A row is a document in windows, a completion of a prompt, choices, or the assistant's turns of a chat.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.errors import ConfigError
from ...configs.score import ScoreConfig
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Outcome, Scored
from ...runner.core.requests import Row, ScoreRequest
from ...runner.data.column_paths import lookup, require_column
from ...runner.data.type_inference import json_text
from ...runner.engine.setup import Setup
from ...runner.images.row_pictures import RowPictures
from ...runner.pipeline.job import ConfigFiles, Parts
from ...runner.scoring.scorer import Scorer
from ...runner.templates.chat_messages import Columns, read_messages
from ...runner.templates.prompt_templates import Rendered, compile_prompt, compile_template, is_constant
from ..generate.prompt_encoding import require_chat_template, require_top, require_vocabulary
from ..statistics.score_stats import score_statistics
from ..statistics.score_table import score_closing
from .choices import compile_label, label_index, read_choices
from .completions import CompletionEncoder
from .records import CHOICES, choices_record, text_columns, text_record
from .requests import ChoicesRequest, TextRequest, choices_request, document_request, text_request
from .scored_text import encode_document, fit_chat
from .windows import BOS_EVERY_WINDOW, Window, rolling, strided

log = logging.getLogger("mlx_bulk")


@dataclass(frozen=True)
class ScoreJob:
    """A scoring job; implements ``runner.pipeline.job.Job``."""

    parts: Parts

    def __post_init__(self) -> None:
        require_chat_template(self.parts)
        require_top(self.parts)
        self._require_stride()
        _ = self._bos_every_window, self._request  # raises where the model does not allow what the config asks
        if self.config.score.text is not None and self._prefix[1] is None and self.config.score.prefix != "none":
            missing, cure = ("BOS", " (prefix: bos_or_eos puts EOS there)") if self.config.score.prefix == "bos" else ("BOS and no EOS", "")
            log.warning("score.prefix: this tokenizer has no %s, so the first token of each document is not scored%s", missing, cure)
        if self.config.score.text is not None and is_constant(self.config.score.text):
            log.warning("score.text: found %r, the same text for each row; a column is written {{ name }}", self.config.score.text)

    @staticmethod
    def check(config: ScoreConfig, columns: Collection[str]) -> None:
        """Parses the templates, and checks that ``columns``, if there are any, hold those that they read."""
        score = config.score
        if config.prompt.sources:
            compile_prompt(config.prompt, columns)
        for name, template in (("text", score.text), ("completion", score.completion)):
            if template is not None:
                compile_template(template, f"score.{name}", columns)
        if score.messages is not None and config.prompt.images is not None:
            require_column(columns, config.prompt.images, "prompt.images")
        for name, path in (("choices", score.choices), ("messages", score.messages), ("group_by", score.group_by)):
            if path is not None:
                require_column(columns, path, f"score.{name}")
        if score.label is not None:
            compile_label(score.label, columns)

    @cached_property
    def config(self) -> ScoreConfig:
        """The job's settings."""
        assert isinstance(self.parts.config, ScoreConfig)
        return self.parts.config

    @property
    def wanted(self) -> LogprobOptions:
        """The figures that the scorer computes."""
        logprobs, score = self.config.logprobs, self.config.score
        return LogprobOptions(echo=True, top=logprobs.top, stats=logprobs.stats, greedy=score.kind in ("completion", "choices"))

    @property
    def pooling(self) -> None:
        """None: the job reads logits."""
        return None

    @property
    def samples(self) -> int:
        """The number of records a row: one."""
        return 1

    def config_files(self) -> ConfigFiles:
        """Returns no files: the config names none but those that all jobs may name."""
        return {}

    def engine(self, setup: Setup, reference: Setup | None) -> Scorer:
        """Returns the scorer, with the reference model if the config names one."""
        rows = min(each.fixed_rows for each in (setup, reference) if each is not None)
        if setup.static and rows < setup.limits.rows:
            log.info("batch.deterministic: passages go through the model one at a time, as here a row's bits depend on its slot in a batch")
        return Scorer(setup, reference)

    # ------------------------------------------------------------------------------------------ what the model brings

    @cached_property
    def _context(self) -> int | None:
        """Most ids fed at once, to the reference model too; None where no model sets a limit and a text is not cut into windows."""
        setting = self.config.score.context
        either = (("the model", self.parts.context), ("the reference", self.parts.reference_context))
        stated = sorted((context, whose) for whose, context in either if context is not None)
        if setting == "auto":
            if self.parts.context is None and self.config.score.text is not None:
                raise ConfigError("score.context: the model's config.json does not say how long its context is; give a number of tokens")
            return stated[0][0] if stated else None
        if stated and setting > stated[0][0]:
            least, whose = stated[0]
            raise ConfigError(f"score.context: found {setting}; expected at most {least}, {whose}'s context; give that or less, or auto")
        return setting

    def _require_stride(self) -> None:
        stride, context = self.config.score.stride, self._context
        if stride is not None and context is not None and stride > context:
            raise ConfigError(f"score.stride: found {stride}; expected at most {context}, the context")

    @cached_property
    def _prefix(self) -> tuple[str, int | None]:
        """The prefix token before a text: its name in the statistics, and its id."""
        setting, tokenizer = self.config.score.prefix, self.parts.tokenizer
        if setting != "none" and tokenizer.bos is not None:
            return "bos", tokenizer.bos
        if setting == "bos_or_eos" and tokenizer.eos:
            return "eos", min(tokenizer.eos)
        return "none", None

    @cached_property
    def _bos_every_window(self) -> bool:
        setting, (name, _) = self.config.score.bos_every_window, self._prefix
        if setting is True and name == "none":
            raise ConfigError("score.bos_every_window: this tokenizer has no BOS; set score.prefix to bos_or_eos, or leave it at auto")
        automatic = self.parts.family in BOS_EVERY_WINDOW and name == "bos"
        return self.config.score.text is not None and (automatic if setting == "auto" else setting)

    # ----------------------------------------------------------------------------------------------- row -> request

    def requests(self, row: Row) -> list[ScoreRequest]:
        """Returns the row's one request. Raises RowError."""
        request = self._request(row)
        for passage in request.passages:
            require_vocabulary(self.parts.plain(passage.ids), self.parts.vocabulary, "the text")
        return [request]

    @cached_property
    def _request(self) -> Callable[[Row], ScoreRequest]:
        """The function from a row to its request, by the kind of scoring."""
        kinds = {"text": self._documents, "completion": self._completions, "choices": self._choices, "messages": self._chats}
        return kinds[self.config.score.kind]()

    def _documents(self) -> Callable[[Row], ScoreRequest]:
        text = compile_template(self.config.score.text or "", "score.text", self.parts.columns)
        prefix = self._prefix[1]
        bos = prefix if self._bos_every_window else None

        def request(row: Row) -> ScoreRequest:
            tokens = encode_document(text(row.columns), self.parts.tokenizer, prefix)
            return document_request(row.position, tokens, self._windows(len(tokens.ids)), bos)

        return request

    def _windows(self, ids: int) -> list[Window]:
        assert self._context is not None, "a document has windows"
        bos, stride = int(self._bos_every_window), self.config.score.stride
        if stride is None:
            return list(rolling(ids, self._context, bos))
        return list(strided(ids, self._context, stride, bos))

    def _completions(self) -> Callable[[Row], ScoreRequest]:
        prompt, encoder = self._prompt(), self._encoder()
        completion = compile_template(self.config.score.completion or "", "score.completion", self.parts.columns)

        def request(row: Row) -> ScoreRequest:
            encoded = encoder.encode(row, prompt(row.columns), [completion(row.columns)], self._pictures(row, prompt))
            return text_request(row.position, encoded.completions[0], encoded.images)

        return request

    def _choices(self) -> Callable[[Row], ScoreRequest]:
        prompt, encoder = self._prompt(), self._encoder()
        path, label = self.config.score.choices or "", self.config.score.label
        read_label = compile_label(label, self.parts.columns) if label is not None else lambda _: None

        def request(row: Row) -> ScoreRequest:
            choices = read_choices(row.columns, path)
            encoded = encoder.encode(row, prompt(row.columns), choices, self._pictures(row, prompt))
            return choices_request(row.position, choices, encoded, label_index(read_label(row.columns), choices))

        return request

    def _chats(self) -> Callable[[Row], ScoreRequest]:
        path, too_long = self.config.score.messages or "", self.config.prompt.too_long
        tokenizer, encoder = self.parts.tokenizer, self.parts.pictures
        if not tokenizer.marks_turns:
            raise ConfigError(_no_marks_message(own=tokenizer.chat_template is not None, has=tokenizer.has_chat_template))

        def request(row: Row) -> ScoreRequest:
            messages = read_messages(row.columns, path, encoder is not None)
            pictures = None if encoder is None else RowPictures(encoder, row, self.config.prompt, None)
            turns = tokenizer.encode_turns(messages) if pictures is None else pictures.turns_of(messages, path)
            return text_request(row.position, fit_chat(turns, tokenizer.bos, self._context, too_long), turns.prompt.images)

        return request

    def _prompt(self) -> Callable[[Columns], Rendered]:
        return compile_prompt(self.config.prompt, self.parts.columns, self.parts.pictures is not None)

    def _pictures(self, row: Row, prompt: Callable[[Columns], Rendered]) -> RowPictures | None:
        return None if self.parts.pictures is None else RowPictures(self.parts.pictures, row, self.config.prompt, prompt)

    def _encoder(self) -> CompletionEncoder:
        return CompletionEncoder(self.parts.tokenizer, self._prefix[1], self._context, self.config.prompt.too_long)

    # ------------------------------------------------------------------------------------------- outcome -> record

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that this config fills."""
        logprobs, score = self.config.logprobs, self.config.score
        fields: list[tuple[str, pa.DataType]] = [("row", pa.int64()), ("key", pa.string())]
        fields += [("input", self.parts.kept)] if self.parts.kept is not None else []
        fields += [("group", pa.large_string())] if score.group_by is not None else []
        if score.choices is not None:
            return pa.schema([*fields, *CHOICES])
        reference = score.reference is not None
        return pa.schema([*fields, *text_columns(score.kind, top=logprobs.top > 0, stats=logprobs.stats, reference=reference)])

    def record(self, row: Row, request: ScoreRequest, outcome: Outcome) -> dict[str, Any]:
        """Returns a scored row as the schema's columns."""
        assert isinstance(outcome, Scored), "only scored rows become records"
        values: dict[str, Any] = {"row": row.position, "key": row.key, "input": self.parts.kept_columns(row), "group": self._group(row)}
        if isinstance(request, ChoicesRequest):
            values |= choices_record(request, outcome)
        else:
            assert isinstance(request, TextRequest)
            values |= text_record(request, outcome)
            values["token_ids"] = self.parts.plain(request.tokens.ids)
        return {name: values[name] for name in self.schema.names}

    def _group(self, row: Row) -> str | None:
        """Returns the row's value of score.group_by; a value that is no string as JSON."""
        path = self.config.score.group_by
        value = None if path is None else lookup(row.columns, path)
        return value if value is None or isinstance(value, str) else json_text(value)

    # ---------------------------------------------------------------------------------------- records -> statistics

    def statistics(self, run: Path) -> pa.Table:
        """Computes sums, counts and figures from them, over all records and for each group."""
        return score_statistics(run, self.config, self._prefix[0], self._bos_every_window, self._context)

    @property
    def grouping(self) -> None:
        """None: each outcome is a record by itself."""
        return None

    def closing(self, statistics: pa.Table) -> str:
        """Returns the statistics as a table for the terminal."""
        return score_closing(statistics)


def _no_marks_message(*, own: bool, has: bool) -> str:
    """Returns why a chat cannot be scored by its template, and the cure. own: the config sets the template; has: there is one."""
    if not has:
        return "score.messages: the model's tokenizer has no chat template; set prompt.chat_template"
    which = "prompt.chat_template" if own else "the model's chat template"
    cure = "put {% generation %} … {% endgeneration %} around them"
    where = "" if own else " in a copy of it, and set prompt.chat_template to that file"
    return f"score.messages: {which} does not mark the assistant's turns, so nothing says which tokens to score; {cure}{where}"

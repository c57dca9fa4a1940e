"""``job: generate``: turns a row into a prompt with sampling parameters and seeds, and a completion into a record."""

import json
import logging
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...configs.errors import ConfigError
from ...configs.schema import GenerateConfig
from ...runner.answers.completion_text import ended_by_id
from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.grammar_spec import GrammarSpec
from ...runner.core.guide import Guidance
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Generated, Outcome
from ...runner.core.requests import Generate, Request, Row, Sample, Sampling
from ...runner.engine.engine import Engine
from ...runner.engine.setup import Setup
from ...runner.grammar.spec_values import configured_spec
from ...runner.images.row_pictures import RowPictures
from ...runner.pipeline.job import ConfigFiles, Grouping, Parts
from ...runner.templates.prompt_templates import AnyPrompt, compile_prompt, told_of_single_braces
from ...runner.text.stop_strings import cut_at_stop
from ..statistics.completion_stats import completion_statistics
from ..statistics.kv_table import kv_closing
from .completion_answers import CompletionAnswers
from .completion_columns import completion_fields, echoed
from .context_fit import ContextFit
from .grammar_check import require_grammar
from .prompt_encoding import encode_prompt, require_chat_template, require_shown_tools, require_top, require_vocabulary
from .row_settings import SAMPLING_FIELDS, ConfiguredRows, RowReader, RowSettings, sampling_parameters
from .sequence_breakers import SequenceBreakers

if TYPE_CHECKING:
    from ...runner.grammar.grammars import Grammars

log = logging.getLogger("mlx_bulk")

MAY_DIFFER = frozenset(SAMPLING_FIELDS) - {"max_tokens", "stop", "include_stop", "stop_token_ids", "ignore_eos"}


@dataclass(frozen=True)
class GenerateJob:
    """A generation job; implements ``runner.pipeline.job.Job``."""

    parts: Parts

    def __post_init__(self) -> None:
        require_chat_template(self.parts)
        assert self.rows  # whose columns are checked here, before the model is loaded
        if self.config.prompt.tools is not None:
            require_shown_tools(self.parts.tokenizer)
        self._warn_of_single_braces()
        self.answers.warn()
        require_top(self.parts)
        if self.config.structured.used:
            require_grammar(self.config.structured, self.grammars)
        if (spec := self.answers.configured_call) is not None and (problem := self.grammars.refusal(spec)):
            raise ConfigError(f"prompt.tools: {problem}")
        for name, ids in (
            ("logit_bias", self.config.sampling.logit_bias),
            ("stop_token_ids", self.config.sampling.stop_token_ids),
        ):
            if wrong := [i for i in ids if i >= self.parts.vocabulary]:
                raise ConfigError(
                    f"sampling.{name}: found the id {wrong[0]}; expected ids below {self.parts.vocabulary}, the model's vocabulary"
                )

        if self.config.sampling.dry_multiplier > 0:
            try:
                self._breakers.ids(self.config.sampling.dry_sequence_breakers)
            except RowError as error:
                raise ConfigError(str(error)) from error

    def _warn_of_single_braces(self) -> None:
        prompt = self.config.prompt
        for option, template in (("text", prompt.text), ("user", prompt.user), ("system", prompt.system)):
            if template is not None and (told := told_of_single_braces(template, self.parts.columns)):
                log.warning("prompt.%s: %s", option, told)

    @staticmethod
    def check(config: GenerateConfig, columns: Collection[str]) -> None:
        """Parses the prompt's templates, and checks that ``columns``, if there are any, hold those that they read."""
        if config.data.format != "openai":
            compile_prompt(config.prompt, columns)
        configured_spec(config.structured)

    @cached_property
    def config(self) -> GenerateConfig:
        """The job's settings."""
        assert isinstance(self.parts.config, GenerateConfig)
        return self.parts.config

    @cached_property
    def _breakers(self) -> SequenceBreakers:
        return SequenceBreakers(self.parts.tokenizer)

    @cached_property
    def _fitting(self) -> ContextFit:
        return ContextFit(self.parts.context, self.config.prompt.too_long, self.parts.tokenizer.bos)

    @cached_property
    def rows(self) -> RowReader:
        """Reads what each row asks for."""
        if self.config.data.format == "openai":
            from .openai_rows import OpenAIRows

            return OpenAIRows(self.parts)
        return ConfiguredRows(self.parts)

    @cached_property
    def answers(self) -> CompletionAnswers:
        """Reads finished completions, and ends their reasoning."""
        return CompletionAnswers(self.parts, self.rows)

    @cached_property
    def grammars(self) -> "Grammars":
        """Compiles the rows' grammars. Their library is imported for those who use one."""
        from ...runner.grammar.grammars import grammars_of

        return grammars_of(self.parts.tokenizer, self.parts.vocabulary, self.parts.eos)

    def config_files(self) -> ConfigFiles:
        """Returns no files: the config names none but those that all jobs may name."""
        return {}

    def engine(self, setup: Setup, reference: Setup | None) -> Engine:
        """Returns the engine that decodes; a generation job has no reference model."""
        assert reference is None
        return Engine(setup, self.parts.eos, self.parts.tokenizer.stopper)

    @property
    def grouping(self) -> Grouping | None:
        """None: each outcome is a record by itself."""
        return None

    def closing(self, statistics: pa.Table) -> str:
        """Returns what quantized keys and values changed, where they were; else the last line is enough."""
        return kv_closing(statistics)

    @property
    def wanted(self) -> LogprobOptions:
        """The figures that the engine computes."""
        logprobs = self.rows.logprobs
        return LogprobOptions(logprobs.prompt, logprobs.top, logprobs.stats)

    @property
    def pooling(self) -> None:
        """None: the job reads logits."""
        return None

    @property
    def samples(self) -> int | None:
        """The number of records a row, None where rows bring it."""
        return None if self.config.rows_bring("n") else self.config.sampling.n

    # ----------------------------------------------------------------------------------------------- row -> request

    def requests(self, row: Row) -> list[Request]:
        """Returns a request for each prompt of the row, with all its samples. Raises RowError."""
        asked = self.rows.settings(row)
        prompts = (asked.prompt, *asked.further)
        n, seed, own = asked.n * len(prompts), self.config.sampling.seed, asked.seed
        seeds = (own + row.round * n + s if own is not None else sample_seed(seed, row.key, s, row.round) for s in range(n))
        samples = tuple(Sample(s, key) for s, key in enumerate(seeds))
        parts = (samples[at : at + asked.n] for at in range(0, n, asked.n))
        return [self._request(row, asked, rendered, part) for rendered, part in zip(prompts, parts, strict=True)]

    def _request(self, row: Row, asked: RowSettings, rendered: AnyPrompt, samples: tuple[Sample, ...]) -> Request:
        prompt = encode_prompt(rendered, self.parts, asked.template_variables, self._pictures(row))
        require_vocabulary(self.parts.plain(prompt.ids), self.parts.vocabulary, "the prompt")
        prompt, sampling = self._fitting.fit(prompt, asked.sampling)
        reading = self.answers.reading(asked, prompt)
        spec = self.answers.call_spec(asked) or asked.structured
        guidance = self.answers.guidance(asked, reading, sampling, self._grammar(spec, sampling))
        breakers = self._breakers.ids(sampling.dry_sequence_breakers) if sampling.dry_multiplier > 0 else frozenset[int]()
        return Request(row.position, prompt, Generate(sampling, samples, guidance, reading, breakers))

    def _pictures(self, row: Row) -> RowPictures | None:
        """Returns what encodes the row's prompts with its pictures; None where rows hold text alone."""
        return None if self.parts.pictures is None else RowPictures(self.parts.pictures, row, self.config.prompt, self.rows.render)

    def _grammar(self, spec: GrammarSpec | None, sampling: Sampling) -> Guidance | None:
        """Returns what holds a row's completions to its grammar. Raises RowError for one that cannot be compiled, or never ends."""
        if spec is None:
            return None
        if sampling.ignore_eos:
            raise RowError("grammar", "sampling.ignore_eos of this row: expected false, since its grammar ends with EOS")
        return self.grammars.compiled(spec, sampling.stop_token_ids)

    # ------------------------------------------------------------------------------------------- outcome -> record

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that this config fills."""
        return pa.schema(self.fields())

    def fields(self) -> list[pa.Field]:
        """Returns the columns of a completion."""
        config = self.config.model_copy(update={"logprobs": self.rows.logprobs})
        return [*completion_fields(config, self.parts.kept, self.differs, self.answers.columns), *self.rows.fields]

    @property
    def differs(self) -> bool:
        """True when the distribution sampled from can differ from the model's own."""
        plain = sampling_parameters(self.config.sampling).plain and not any(map(self.config.rows_bring, MAY_DIFFER))
        return not plain or self.rows.guided or self.answers.columns.forced

    def record(self, row: Row, request: Request, outcome: Outcome) -> dict[str, Any]:
        """Returns a finished completion as the schema's columns."""
        assert isinstance(outcome, Generated), "only finished completions become records"
        values = self.rows.shown(row, self.values(row, request, outcome))
        return {name: values[name] for name in self.schema.names}

    def values(self, row: Row, request: Request, outcome: Generated) -> dict[str, Any]:
        """Returns a completion's value for every column that any config fills."""
        prompt, scores, offsets = request.prompt, outcome.scores, self.parts.tokenizer.offsets(outcome.ids)
        completion = self.completion(request, outcome, offsets)
        values: dict[str, Any] = {
            "row": row.position,
            "key": row.key,
            "sample": outcome.sample.index,
            "prompt": prompt.text,
            "completion": completion,
            "finish_reason": outcome.finish_reason,
            "stop_reason": outcome.stop_reason,
            "grammar_complete": outcome.grammar_complete,
            "truncated": outcome.finish_reason == "length",
            "prompt_tokens": len(prompt.ids),
            "completion_tokens": len(outcome.ids),
            "prompt_ids": self.parts.plain(prompt.ids),
            "completion_ids": outcome.ids,
            "sampled_logprobs": outcome.sampled_logprobs,
            "text_offset": offsets,
            "prompt_text_offset": prompt.offsets,
            "cumulative_logprob": math.fsum(scores.logprobs.astype(np.float64)),
            "seed": outcome.sample.seed,
        }
        values |= self.answers.values(row, request, outcome, completion)
        if self.parts.kept is not None:
            values["input"] = self.parts.kept_columns(row)
        for name in scores.__slots__:
            values[name] = getattr(scores, name)
            values[f"prompt_{name}"] = echoed(prompt.ids, getattr(outcome.echo, name)) if outcome.echo is not None else None
        return values

    def completion(self, request: Request, outcome: Generated, offsets: Ids) -> str:
        """Returns a completion's text without its stop string or stop token; offsets [N]: the code points where its tokens start."""
        sampling, text = request.work.sampling, self.parts.tokenizer.decode(outcome.ids)
        if ended_by_id(sampling, outcome):
            return text if sampling.include_stop else text[: offsets[-1]]
        min_length = int(offsets[sampling.min_tokens]) if 0 < sampling.min_tokens < len(offsets) else 0
        return cut_at_stop(text, sampling.stop, outcome.stop_reason, sampling.include_stop, min_length)

    # ---------------------------------------------------------------------------------------- records -> statistics

    def statistics(self, run: Path) -> pa.Table:
        """Computes one row of sums and counts over all records, and the perplexities from them."""
        max_tokens = None if self.config.rows_bring("max_tokens") else self.config.sampling.max_tokens
        return completion_statistics(run, self.parts.context, max_tokens)


def sample_seed(seed: int, key: str, sample: int, round_number: int = 0) -> int:
    """Returns the key of a sample's random stream: a hash of (config seed, row's key, sample, round) below 2**53."""
    digest = blake2b(f"[{seed}, {json.dumps(key)}, {sample}, {round_number}]".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11

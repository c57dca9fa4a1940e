"""``job: generate``: turns a row into a prompt with sampling parameters and seeds, and a completion into a record."""

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...configs.errors import ConfigError
from ...configs.explain import shown
from ...configs.fields import Expected
from ...configs.schema import GenerateConfig, SamplingConfig
from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.requests import Generate, Generated, Outcome, Prompt, Request, Row, Sample, Sampling
from ...runner.data.column_paths import lookup, require_column
from ...runner.engine.engine import Engine
from ...runner.engine.setup import Setup
from ...runner.pipeline.job import Grouping, Parts
from ...runner.store.arrow_builder import LEADING_NULL
from ...runner.text.prompt_templates import Columns, Rendered, compile_prompt
from ...runner.text.stop_strings import cut_at_stop
from ..statistics.completion_stats import completion_statistics
from .prompt_encoding import encode_prompt, require_chat_template, require_top, require_vocabulary

SAMPLING_FIELDS = tuple(Sampling.__slots__)
MAY_DIFFER = frozenset(SAMPLING_FIELDS) - {"max_tokens", "stop", "include_stop", "stop_token_ids", "ignore_eos"}
FLOATS, INTS = pa.list_(pa.float32()), pa.list_(pa.int32())


@dataclass(frozen=True)
class GenerateJob:
    """A generation job; implements ``runner.pipeline.job.Job``."""

    parts: Parts

    def __post_init__(self) -> None:
        require_chat_template(self.parts)
        for name, path in self.config.sampling.columns.items():
            require_column(self.parts.columns, path, f"sampling.columns.{name}")
        require_top(self.parts)
        for name, ids in (
            ("logit_bias", self.config.sampling.logit_bias),
            ("stop_token_ids", self.config.sampling.stop_token_ids),
        ):
            if wrong := [i for i in ids if i >= self.parts.vocabulary]:
                raise ConfigError(
                    f"sampling.{name}: found the id {wrong[0]}; expected ids below {self.parts.vocabulary}, the model's vocabulary"
                )

    @staticmethod
    def check(config: GenerateConfig, columns: Collection[str]) -> None:
        """Parses the prompt's templates, and checks that ``columns``, if there are any, hold those that they read."""
        compile_prompt(config.prompt, columns)

    @cached_property
    def config(self) -> GenerateConfig:
        """The job's settings."""
        assert isinstance(self.parts.config, GenerateConfig)
        return self.parts.config

    @cached_property
    def render(self) -> Callable[[Columns], Rendered]:
        """The function from a row's columns to its prompt."""
        return compile_prompt(self.config.prompt, self.parts.columns)

    def engine(self, setup: Setup, reference: Setup | None) -> Engine:
        """Returns the engine that decodes; a generation job has no reference model."""
        assert reference is None
        return Engine(setup, self.parts.eos, self.parts.tokenizer.stopper)

    @property
    def grouping(self) -> Grouping | None:
        """None: each outcome is a record by itself."""
        return None

    def closing(self, statistics: pa.Table) -> str:
        """Returns no text: the last line is enough."""
        return ""

    @property
    def wanted(self) -> LogprobOptions:
        """The figures that the engine computes."""
        logprobs = self.config.logprobs
        return LogprobOptions(logprobs.prompt, logprobs.top, logprobs.stats)

    @property
    def samples(self) -> int | None:
        """The number of records a row, None where a column gives it."""
        return None if "n" in self.config.sampling.columns else self.config.sampling.n

    # ----------------------------------------------------------------------------------------------- row -> request

    def requests(self, row: Row) -> list[Request]:
        """Returns the row's one request, with all its samples. Raises RowError."""
        prompt = encode_prompt(self.render(row.columns), self.parts.tokenizer)
        require_vocabulary(prompt.ids, self.parts.vocabulary, "the prompt")
        sampling, n, seed = self._sampling(row)
        prompt, sampling = self._fit(prompt, sampling)
        config = self.config.sampling
        seeds = (seed + row.round * n + s if seed is not None else sample_seed(config.seed, row.key, s, row.round) for s in range(n))
        samples = tuple(Sample(s, key) for s, key in enumerate(seeds))
        return [Request(row.position, prompt, Generate(sampling, samples))]

    def _sampling(self, row: Row) -> tuple[Sampling, int, int | None]:
        """Returns the row's sampling parameters, its number of samples, and its own seed if it brings one."""
        config, columns = self.config.sampling, self.config.sampling.columns
        if not columns:
            return self._shared, config.n, None
        values = {name: value for name, path in columns.items() if (value := lookup(row.columns, path)) is not None}
        try:
            merged = type(config).model_validate(config.model_dump() | {name: _convert(name, value) for name, value in values.items()})
        except ValidationError as error:
            raise RowError("sampling", _sampling_message(error.errors()[0], columns, values)) from error
        if wrong := [i for i in (*merged.logit_bias, *merged.stop_token_ids) if i >= self.parts.vocabulary]:
            raise RowError("sampling", f"token id {wrong[0]} is not below {self.parts.vocabulary}, the model's vocabulary")
        return _parameters(merged), merged.n, merged.seed if "seed" in values else None

    @cached_property
    def _shared(self) -> Sampling:
        return _parameters(self.config.sampling)

    def _fit(self, prompt: Prompt, sampling: Sampling) -> tuple[Prompt, Sampling]:
        """Cuts prompt and max_tokens so that both fit into the context. Raises RowError where they cannot.

        A prompt that is cut leaves room for max_tokens, but at most half of the context; its BOS stays.
        """
        n = len(prompt.ids)
        if n == 0:
            raise RowError("tokenize", "the prompt has no tokens, and this tokenizer puts no BOS before it; expected at least one token")
        if self.parts.context is None or n + sampling.max_tokens <= self.parts.context:
            return prompt, sampling
        policy = self.config.prompt.too_long
        if n < self.parts.context:
            return prompt, _with_max_tokens(sampling, self.parts.context - n)
        if policy == "error":
            raise RowError(
                "too_long",
                f"the prompt has {n} tokens, the model's context {self.parts.context}: no room for one token more; "
                "shorten it, or set prompt.too_long to truncate_left or truncate_right",
            )
        keep = max(1, self.parts.context - sampling.max_tokens, self.parts.context // 2)
        sampling = _with_max_tokens(sampling, self.parts.context - keep)
        if policy == "truncate_right":
            return Prompt(prompt.text, prompt.ids[:keep], prompt.offsets[:keep]), sampling
        index = np.arange(n - keep, n)
        if keep > 1 and prompt.ids[0] == self.parts.tokenizer.bos:
            index[0] = 0
        return Prompt(prompt.text, prompt.ids[index], prompt.offsets[index]), sampling

    # ------------------------------------------------------------------------------------------- outcome -> record

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that this config fills."""
        return pa.schema(self.fields())

    def fields(self) -> list[pa.Field]:
        """Returns the columns of a completion."""
        logprobs = self.config.logprobs
        fields: list[tuple[str, pa.DataType]] = [("row", pa.int64()), ("key", pa.string())]
        fields += [("input", self.parts.kept)] if self.parts.kept is not None else []
        fields += [("sample", pa.int32()), ("prompt", pa.large_string()), ("completion", pa.large_string())]
        fields += [("finish_reason", pa.string()), ("stop_reason", pa.string()), ("truncated", pa.bool_())]
        fields += [("prompt_tokens", pa.int32()), ("completion_tokens", pa.int32()), ("prompt_ids", INTS), ("completion_ids", INTS)]
        if logprobs.tokens:
            fields += [("logprobs", FLOATS)]
        if self.differs:
            fields += [("sampled_logprobs", FLOATS)]
        fields += _figures("", logprobs.top, logprobs.stats) if logprobs.tokens else []
        fields += [("text_offset", INTS), ("prompt_text_offset", INTS)]
        fields += [("cumulative_logprob", pa.float64()), ("seed", pa.uint64())]
        echo = [("prompt_logprobs", FLOATS), *_figures("prompt_", logprobs.top, logprobs.stats)] if logprobs.prompt else []
        return [*(pa.field(*f) for f in fields), *(pa.field(*f, metadata=LEADING_NULL) for f in echo)]

    @property
    def differs(self) -> bool:
        """True when the distribution sampled from can differ from the model's own."""
        return not self._shared.plain or bool(MAY_DIFFER & set(self.config.sampling.columns))

    def record(self, row: Row, request: Request, outcome: Outcome) -> dict[str, Any]:
        """Returns a finished completion as the schema's columns."""
        assert isinstance(outcome, Generated), "only finished completions become records"
        values = self.values(row, request, outcome)
        return {name: values[name] for name in self.schema.names}

    def values(self, row: Row, request: Request, outcome: Generated) -> dict[str, Any]:
        """Returns a completion's value for every column that any config fills."""
        prompt, scores, offsets = request.prompt, outcome.scores, self.parts.tokenizer.offsets(outcome.ids)
        values: dict[str, Any] = {
            "row": row.position,
            "key": row.key,
            "sample": outcome.sample.index,
            "prompt": prompt.text,
            "completion": self.completion(request, outcome, offsets),
            "finish_reason": outcome.finish_reason,
            "stop_reason": outcome.stop_reason,
            "truncated": outcome.finish_reason == "length",
            "prompt_tokens": len(prompt.ids),
            "completion_tokens": len(outcome.ids),
            "prompt_ids": prompt.ids,
            "completion_ids": outcome.ids,
            "sampled_logprobs": outcome.sampled_logprobs,
            "text_offset": offsets,
            "prompt_text_offset": prompt.offsets,
            "cumulative_logprob": math.fsum(scores.logprobs.astype(np.float64)),
            "seed": outcome.sample.seed,
        }
        if self.parts.kept is not None:
            values["input"] = row.columns
        for name in scores.__slots__:
            values[name] = getattr(scores, name)
            values[f"prompt_{name}"] = getattr(outcome.echo, name) if outcome.echo is not None else None
        return values

    def completion(self, request: Request, outcome: Generated, offsets: Ids) -> str:
        """Returns a completion's text without its stop string or stop token; offsets [N]: the code points where its tokens start."""
        sampling, text = request.work.sampling, self.parts.tokenizer.decode(outcome.ids)
        by_id = outcome.finish_reason == "stop" and (outcome.stop_reason is None or outcome.ids[-1] in sampling.stop_token_ids)
        if by_id:
            return text if sampling.include_stop else text[: offsets[-1]]
        min_length = int(offsets[sampling.min_tokens]) if 0 < sampling.min_tokens < len(offsets) else 0
        return cut_at_stop(text, sampling.stop, outcome.stop_reason, sampling.include_stop, min_length)

    # ---------------------------------------------------------------------------------------- records -> statistics

    def statistics(self, run: Path) -> pa.Table:
        """Computes one row of sums and counts over all records, and the perplexities from them."""
        sampling = self.config.sampling
        return completion_statistics(run, self.parts.context, None if "max_tokens" in sampling.columns else sampling.max_tokens)


def sample_seed(seed: int, key: str, sample: int, round_number: int = 0) -> int:
    """Returns the key of a sample's random stream: a hash of (config seed, row's key, sample, round) below 2**53."""
    digest = blake2b(json.dumps([seed, key, sample, round_number]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11


def _parameters(config: SamplingConfig) -> Sampling:
    values: dict[str, Any] = {name: getattr(config, name) for name in SAMPLING_FIELDS}
    values |= {"stop": tuple(config.stop), "stop_token_ids": tuple(config.stop_token_ids)}
    return Sampling(**values)


def _with_max_tokens(sampling: Sampling, most: int) -> Sampling:
    return replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))


def _convert(name: str, value: Any) -> Any:
    """Converts a column's value to its setting's type: CSV holds text, and a table's integers are floats where some are missing."""
    if isinstance(value, str) and name != "stop":
        try:
            return json.loads(value.lower() if value in ("True", "False") else value)
        except ValueError:
            return value
    if name == "logit_bias" and isinstance(value, dict | list):  # a table's map is a list of pairs, its struct has nulls
        return {key: bias for key, bias in dict(value).items() if bias is not None}
    whole = isinstance(value, float) and value.is_integer() and type(SamplingConfig.model_fields[name].default) is int
    return int(value) if whole else value


def _sampling_message(problem: ErrorDetails, columns: dict[str, str], values: dict[str, Any]) -> str:
    """Returns why a row's values are no sampling parameters, in the words of the config's own errors."""
    if problem["type"] == "contradiction":
        context = problem.get("ctx", {})
        return f"sampling.{context['key']} of this row: {context['text']}"
    name = str(problem["loc"][0])
    expected = [mark.words for mark in SamplingConfig.model_fields[name].metadata if isinstance(mark, Expected)][-1]
    return f"sampling.{name} from column {columns[name]!r}: found {shown(values[name])}; expected {expected}"


def _figures(prefix: str, top: int, stats: bool) -> list[tuple[str, pa.DataType]]:
    fields: list[tuple[str, pa.DataType]] = []
    if top:
        fields += [(f"{prefix}top_ids", pa.list_(INTS)), (f"{prefix}top_logprobs", pa.list_(FLOATS))]
    if stats:
        fields += [(f"{prefix}ranks", INTS), (f"{prefix}entropies", FLOATS)]
    return fields

"""What one row asks for: its prompt and its sampling parameters, from the config and from the row's own columns."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...configs.explain import passed_bound, shown
from ...configs.fields import Expected
from ...configs.logprobs import LogprobsConfig
from ...configs.sampling import SamplingConfig
from ...configs.schema import GenerateConfig
from ...runner.answers.tools import ANY_TOOL, Tool, ToolChoice, read_tools
from ...runner.core.errors import RowError
from ...runner.core.grammar_spec import GrammarSpec
from ...runner.core.requests import Row, Sampling
from ...runner.data.column_paths import lookup, require_column
from ...runner.grammar.spec_values import configured_spec, row_spec
from ...runner.pipeline.job import Parts
from ...runner.templates.chat_messages import Columns
from ...runner.templates.prompt_templates import AnyPrompt, Rendered, compile_prompt

SAMPLING_FIELDS = tuple(Sampling.__slots__)


@dataclass(slots=True, frozen=True)
class RowSettings:
    """What a row asks for. n: how many samples of each prompt; seed: the row's own, None where the config's counts.

    tools: as the chat template takes them, ``{type: function, function: {name, …}}``; None or empty without any. template_args:
    variables of the chat template, over the config's. thinking_budget: most tokens of reasoning; None is no limit. structured: the
    grammar that its completions are held to; None without one. further: prompts behind the first, with the samples after the first's.
    """

    prompt: AnyPrompt
    sampling: Sampling
    n: int
    seed: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice = ANY_TOOL
    parallel_tool_calls: bool = True
    template_args: dict[str, Any] = field(default_factory=dict[str, Any])
    thinking_budget: int | None = None
    structured: GrammarSpec | None = None
    further: tuple[AnyPrompt, ...] = ()

    @property
    def template_variables(self) -> dict[str, Any]:
        """The chat template's variables of this row: its own, and its tools unless it may call none."""
        shown = bool(self.tools) and self.tool_choice.mode != "none"
        return {**self.template_args, **({"tools": self.tools} if shown else {})}


class RowReader(Protocol):
    """Reads what a row asks for. Its properties do not change: they decide a run's columns."""

    @property
    def tools(self) -> bool:
        """True when a row may have tools."""
        ...

    @property
    def budgets(self) -> bool:
        """True when a row may limit its reasoning."""
        ...

    @property
    def guided(self) -> bool:
        """True when a row may have a grammar."""
        ...

    @property
    def logprobs(self) -> LogprobsConfig:
        """The logprobs that any record holds."""
        ...

    @property
    def fields(self) -> list[pa.Field]:
        """Columns of the records that only rows of this kind have."""
        ...

    def shown(self, row: Row, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the values of a record's columns as the row asks for them."""
        ...

    @property
    def render(self) -> Callable[[Columns], Rendered] | None:
        """The function from a row's columns to its prompt; None where a row brings its prompt whole."""
        ...

    def settings(self, row: Row) -> RowSettings:
        """Returns the row's settings. Raises RowError."""
        ...


class ConfiguredRows:
    """Rows of any table: the config says what each column is for."""

    def __init__(self, parts: Parts):
        """Raises ConfigError or DataError where the config names a column that no row has."""
        assert isinstance(parts.config, GenerateConfig)
        self._config, self._columns, self._vocabulary = config, columns, _ = parts.config, parts.columns, parts.vocabulary
        self._pictures = parts.pictures is not None
        for name, path in config.sampling.columns.items():
            require_column(columns, path, f"sampling.columns.{name}")
        if isinstance(config.prompt.tools, str):
            require_column(columns, config.prompt.tools, "prompt.tools")
        if config.structured.column is not None:
            require_column(columns, config.structured.column, "structured.column")

    @property
    def tools(self) -> bool:
        """True when a row may have tools."""
        return self._config.prompt.tools is not None

    @property
    def budgets(self) -> bool:
        """True when a row may limit its reasoning."""
        return self._config.reasoning.budget is not None

    @property
    def guided(self) -> bool:
        """True when a row may have a grammar."""
        return self._config.structured.used or self._config.prompt.tool_choice not in ("none", "auto")

    @property
    def logprobs(self) -> LogprobsConfig:
        """Those of the config."""
        return self._config.logprobs

    @property
    def fields(self) -> list[pa.Field]:
        """None."""
        return []

    def shown(self, row: Row, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the values as they are."""
        return values

    @property
    def render(self) -> Callable[[Columns], Rendered]:
        """The function from a row's columns to its prompt."""
        return self._render

    @cached_property
    def _render(self) -> Callable[[Columns], Rendered]:
        return compile_prompt(self._config.prompt, self._columns, self._pictures)

    def settings(self, row: Row) -> RowSettings:
        """Returns the row's settings. Raises RowError."""
        prompt = self._config.prompt
        return RowSettings(
            self.render(row.columns),
            *self._sampling(row),
            tools=read_tools(row.columns, prompt.tools) if isinstance(prompt.tools, str) else prompt.tools,
            tool_choice=ToolChoice.of(prompt.tool_choice),
            parallel_tool_calls=prompt.parallel_tool_calls,
            thinking_budget=self._config.reasoning.budget,
            structured=self._grammar(row),
        )

    def _grammar(self, row: Row) -> GrammarSpec | None:
        """Returns the row's grammar, None where it has none. Raises RowError."""
        own = self._config.structured.column
        return self._shared_grammar if own is None else row_spec(lookup(row.columns, own), self._config.structured)

    @cached_property
    def _shared_grammar(self) -> GrammarSpec | None:
        return configured_spec(self._config.structured)

    def _sampling(self, row: Row) -> tuple[Sampling, int, int | None]:
        """Returns the row's sampling parameters, its number of samples, and its own seed if it brings one."""
        config, columns = self._config.sampling, self._config.sampling.columns
        if not columns:
            return self._shared, config.n, None
        values = {name: value for name, path in columns.items() if (value := lookup(row.columns, path)) is not None}
        try:
            merged = type(config).model_validate(config.model_dump() | {name: _convert(name, value) for name, value in values.items()})
        except ValidationError as error:
            raise RowError("sampling", _sampling_message(error.errors()[0], columns, values)) from error
        if wrong := [i for i in (*merged.logit_bias, *merged.stop_token_ids) if i >= self._vocabulary]:
            raise RowError("sampling", f"token id {wrong[0]} is not below {self._vocabulary}, the model's vocabulary")
        return sampling_parameters(merged), merged.n, merged.seed if "seed" in values else None

    @cached_property
    def _shared(self) -> Sampling:
        return sampling_parameters(self._config.sampling)


def sampling_parameters(config: SamplingConfig) -> Sampling:
    """Returns a section's values as the engine takes them."""
    values: dict[str, Any] = {name: getattr(config, name) for name in SAMPLING_FIELDS}
    values |= {name: tuple(values[name]) for name in ("stop", "stop_token_ids", "dry_sequence_breakers")}
    return Sampling(**values)


def _convert(name: str, value: Any) -> Any:
    """Converts a column's value to its setting's type: CSV holds text, and a table's integers are floats where some are missing."""
    if isinstance(value, str) and name not in ("stop", "dry_sequence_breakers"):
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
    return f"sampling.{name} from column {columns[name]!r}: found {shown(values[name])}; expected {expected}{passed_bound(problem)}"

"""Rows of a Batch file: each line's body says what it asks for, and the config answers for what it leaves out."""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from ...configs.logprobs import LogprobsConfig
from ...configs.schema import GenerateConfig
from ...configs.visible import visible
from ...runner.answers.tools import ANY_TOOL
from ...runner.core.grammar_spec import GrammarSpec
from ...runner.core.requests import Row
from ...runner.data.request_census import RequestCensus
from ...runner.grammar.spec_values import configured_spec, spec_of
from ...runner.pipeline.job import Parts
from ...runner.templates.prompt_templates import AnyPrompt, Chat
from ..openai.answer_format import AnswerFormat
from ..openai.endpoints import CHAT, COMPLETIONS, ENDPOINTS, GRAMMAR_FIELDS, RESPONSES
from ..openai.refusal import RequestRefused
from ..openai.request import AskedLogprobs, BatchRequest, model_named, read_request
from ..statistics.completion_stats import REQUEST
from ..terminal.tables import count_text
from .prompt_encoding import shows_tools
from .row_settings import RowSettings, sampling_parameters

log = logging.getLogger("mlx_bulk")

_MOST_TOP = 20
_FIGURES = ("top_ids", "top_logprobs", "ranks", "entropies")


class OpenAIRows:
    """Reads the rows of a Batch file."""

    def __init__(self, parts: Parts):
        """Logs once what the file's lines ask for in vain."""
        assert isinstance(parts.config, GenerateConfig)
        self._parts, self._config = parts, parts.config
        data, model = self._config.data, self._config.model.path
        self._strict, self._cuts = data.unknown_fields == "refuse", self._config.prompt.too_long != "error"
        self._models = {model, PurePath(model).name} if data.other_models == "refuse" else None
        for line in _warnings(parts.census, model, self._strict, self._models is None):
            say_once(line)
        if self.tools and parts.tokenizer.has_chat_template and not shows_tools(parts.tokenizer):
            lines = sum(parts.census.fields[url, "tools"] for url in (CHAT, RESPONSES))
            say_once(f"the model's chat template ignores tools, so the model does not see those of {count_text(lines, 'request')}")

    @property
    def logprobs(self) -> LogprobsConfig:
        """The logprobs that any line asks for; a record of another line has nulls in their columns."""
        return self._logprobs

    @cached_property
    def _logprobs(self) -> LogprobsConfig:
        tokens, top, prompt = _asked_of(self._parts.census)
        stats = self._config.logprobs.stats and (tokens or prompt)
        return LogprobsConfig(tokens=tokens, prompt=prompt, top=min(top, self._parts.vocabulary), stats=stats)

    @property
    def tools(self) -> bool:
        """True when a line brings tools."""
        return any(self._parts.census.fields[url, "tools"] for url in (CHAT, RESPONSES))

    @property
    def budgets(self) -> bool:
        """True when a line limits its reasoning, or the config does."""
        return self._config.reasoning.budget is not None or self._parts.census.fields[CHAT, "thinking_token_budget"] > 0

    @property
    def guided(self) -> bool:
        """True when a line, or the config, may name a grammar."""
        fields = self._parts.census.fields
        return self._config.structured.used or any(fields[url, name] for url in ENDPOINTS for name in GRAMMAR_FIELDS)

    @property
    def render(self) -> None:
        """None: a line brings its prompt."""
        return None

    @property
    def fields(self) -> list[pa.Field]:
        """The columns of such a run alone."""
        return [pa.field(REQUEST, pa.large_string())]

    def settings(self, row: Row) -> RowSettings:
        """Returns the row's settings. Raises RequestRefused."""
        request = self._request(row)
        named = model_named(row.columns)
        if self._models is not None and named is not None and named not in self._models:
            here = f"the model here is {visible(self._config.model.path)} (data.other_models: answer takes any name)"
            raise RequestRefused("model", "model_not_found", f"found {visible(named)}; {here}")
        first, *further = (self._rendered(prompt) for prompt in request.prompts)
        sampling, n = self._sampling(request)
        use = request.tools
        return RowSettings(
            first,
            sampling,
            n,
            request.seed,
            tools=None if use is None else use.tools,
            tool_choice=ANY_TOOL if use is None else use.choice,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            template_args=request.template_args,
            thinking_budget=self._config.reasoning.budget if request.thinking_budget is None else request.thinking_budget,
            structured=self._grammar(request.held),
            further=tuple(further),
        )

    def shown(self, row: Row, values: dict[str, Any]) -> dict[str, Any]:
        """Returns a record's values as the row asks for them: without logprobs that it does not want."""
        request = self._request(row)
        asked = request.logprobs
        repeated = request.repeated
        if len(request.prompts) > 1:  # it says to which prompt a sample belongs
            repeated = repeated | {"n": self._sampling(request)[1]}
        kept = {**values, REQUEST: json.dumps(repeated, ensure_ascii=False)}
        for prefix, there, top in (("", asked.tokens, asked.top), ("prompt_", asked.prompt, asked.prompt_top)):
            if not there:
                kept |= dict.fromkeys(f"{prefix}{name}" for name in ("logprobs", *_FIGURES))
                continue
            for name in (f"{prefix}top_ids", f"{prefix}top_logprobs"):
                kept[name] = np.asarray(kept[name])[:, :top] if top and kept.get(name) is not None else None
        return kept

    def _request(self, row: Row) -> BatchRequest:
        return read_request(row.columns, self._strict, self._cuts)

    def _grammar(self, held: AnswerFormat | None) -> GrammarSpec | None:
        """Returns the grammar that a request names, else the config's. Raises RequestRefused."""
        if held is None:
            return self._shared_grammar
        if held.kind is None:
            return None
        rules = self._config.structured
        try:
            return spec_of(held.kind, held.value, rules.whitespace, rules.unsupported)
        except ValueError as error:
            raise RequestRefused(held.param, "invalid_value", str(error)) from None

    @cached_property
    def _shared_grammar(self) -> GrammarSpec | None:
        return configured_spec(self._config.structured)

    def _rendered(self, prompt: AnyPrompt) -> AnyPrompt:
        """Returns a prompt as this model takes it: developer is system where the chat template does not know it."""
        if not isinstance(prompt, Chat):
            return prompt
        tokenizer = self._parts.tokenizer
        if not tokenizer.has_chat_template:
            cure = "set prompt.chat_template, or ask /v1/completions"
            raise RequestRefused("url", "unsupported_endpoint", f"the model has no chat template: {cure}")
        if self._parts.pictures is None:
            _require_text(prompt.messages)
        if self._knows_developer:
            return prompt
        messages = [{**message, "role": "system"} if message["role"] == "developer" else message for message in prompt.messages]
        return replace(prompt, messages=messages)

    @cached_property
    def _knows_developer(self) -> bool:
        return self._parts.tokenizer.roles.names("developer")

    def _sampling(self, request: BatchRequest) -> tuple[Any, int]:
        """Returns the sampling parameters and the number of samples. Raises RequestRefused where the two do not go together."""
        config = self._config.sampling
        brought = request.sampling | ({} if request.n is None else {"n": request.n})
        brought |= {"n": 1} if request.url == RESPONSES else {}  # this API has one answer
        try:
            merged = type(config).model_validate(config.model_dump() | brought)
        except ValidationError as error:
            problem = error.errors()[0]
            context = problem.get("ctx", {})
            param = str(context.get("key") or (problem["loc"] or ("body",))[0])
            raise RequestRefused(param, "invalid_value", str(context.get("text") or problem["msg"])) from None
        for name in ("logit_bias", "stop_token_ids"):
            if wrong := [token for token in getattr(merged, name) if token >= self._parts.vocabulary]:
                expected = f"expected ids below {self._parts.vocabulary}, the model's vocabulary"
                raise RequestRefused(name, "invalid_value", f"found the token id {wrong[0]}; {expected}")
        return sampling_parameters(merged), merged.n


def _asked_of(census: RequestCensus) -> tuple[bool, int, bool]:
    """Returns whether any line asks for logprobs, the most alternatives that one asks for, and whether any asks for its prompt's."""
    tokens, prompt, top = False, False, 0
    for asked in (*_asked_of_chats(census), *_asked_of_completions(census)):
        tokens, prompt, top = tokens or asked.tokens, prompt or asked.prompt, max(top, asked.top, asked.prompt_top)
    return tokens, top, prompt


def _asked_of_chats(census: RequestCensus) -> Iterator[AskedLogprobs]:
    for url in (CHAT, RESPONSES):
        most = _largest(value for value, _ in census.seen(url, "top_logprobs"))
        if url == CHAT:
            asked = any(value is True for value, _ in census.seen(url, "logprobs"))
        else:
            asked = any(isinstance(value, list) and "message.output_text.logprobs" in value for value, _ in census.seen(url, "include"))
        yield AskedLogprobs(asked, most if asked else 0)
        yield from _asked_of_prompts(census, url)


def _asked_of_completions(census: RequestCensus) -> Iterator[AskedLogprobs]:
    values = [value for value, _ in census.seen(COMPLETIONS, "logprobs") if type(value) is int and value >= 0]
    echoes = any(value is True for value, _ in census.seen(COMPLETIONS, "echo"))
    yield AskedLogprobs(bool(values), _largest(values), echoes and bool(values))
    yield from _asked_of_prompts(census, COMPLETIONS)


def _asked_of_prompts(census: RequestCensus, url: str) -> Iterator[AskedLogprobs]:
    values = [value for value, _ in census.seen(url, "prompt_logprobs") if type(value) is int and value >= 0]
    if values:
        yield AskedLogprobs(prompt=True, prompt_top=_largest(values))


def _largest(values: Iterable[object]) -> int:
    return max((value for value in values if type(value) is int and 0 <= value <= _MOST_TOP), default=0)


def _require_text(messages: list[dict[str, Any]]) -> None:
    """Raises RequestRefused for a picture."""
    for number, message in enumerate(messages):
        if isinstance(message.get("content"), list):
            here = 'the model here reads text alone; pictures take a vision model, and pip install "mlx-bulk[vision]"'
            raise RequestRefused(f"messages[{number}].content", "unsupported_value", f"found a picture; {here}")


@cache
def say_once(text: str) -> None:
    """Logs a line on the file, once a process."""
    log.warning("%s", text)


def _warnings(census: RequestCensus, model: str, strict: bool, any_model: bool) -> Iterator[str]:
    """Yields a line on the fields that have no effect, and one on the models that the lines name."""
    for what, names in (("fields without effect here are ignored", _ignored(census)), ("unknown fields are ignored", _unknown(census))):
        if names and not (strict and what.startswith("unknown")):
            counts = ", ".join(f"{visible(name)} ({lines:,})" for name, lines in sorted(names.items(), key=lambda item: -item[1]))
            yield f"{what}: {counts}"
    named: dict[str, int] = {}
    for url in ENDPOINTS:
        for value, lines in census.seen(url, "model"):
            if isinstance(value, str) and value not in (model, PurePath(model).name):
                named[value] = named.get(value, 0) + lines
    if named and any_model:
        several = ", ".join(f"{visible(name)} ({lines:,})" for name, lines in sorted(named.items(), key=lambda item: -item[1])[:5])
        more = f" and {len(named) - 5:,} more" if len(named) > 5 else ""
        yield f"other models are named and {model} answers: {several}{more}; data.other_models: refuse refuses these lines"


def _ignored(census: RequestCensus) -> dict[str, int]:
    found: dict[str, int] = {}
    for (url, name), lines in census.fields.items():
        if url in ENDPOINTS and name in ENDPOINTS[url].ignored:
            found[name] = found.get(name, 0) + lines
    return found


def _unknown(census: RequestCensus) -> dict[str, int]:
    found: dict[str, int] = {}
    for (url, name), lines in census.fields.items():
        if url in ENDPOINTS and "." not in name:
            endpoint = ENDPOINTS[url]
            if name not in endpoint.honoured | endpoint.ignored | endpoint.refused.keys():
                found[name] = found.get(name, 0) + lines
    return found

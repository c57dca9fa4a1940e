"""A line of a Batch file as what it asks for: prompts, sampling, logprobs, tools, a grammar. A line that cannot be answered is refused.

Reads the line alone. What a field that is absent stands for is the caller's to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...configs.explain import shown
from ...configs.fields import Expected
from ...runner.templates.prompt_templates import AnyPrompt, Chat, PromptIds, Text
from .answer_format import AnswerFormat, answer_format, of_format
from .bodies import Body, ChatBody, CompletionBody, CompletionFields, ResponsesBody, SamplingFields
from .endpoints import CHAT, COMPLETIONS, EMBEDDING_ENDPOINTS, ENDPOINTS, RESPONSES, Endpoint
from .messages import Message, chat_messages, require_known, unknown_field
from .refusal import RequestRefused
from .response_items import response_messages
from .tools import ToolUse, tool_use

_Kind = TypeVar("_Kind", bound=Body)

_LINE = ("custom_id", "method", "url", "body")
_SAME_NAME = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "stop", "min_tokens", "stop_token_ids", "ignore_eos"),
)
_OTHER_NAME = {"include_stop_str_in_output": "include_stop", "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens"}
_LOGPROBS_OF_RESPONSES = "message.output_text.logprobs"


@dataclass(slots=True, frozen=True)
class AskedLogprobs:
    """The logprobs that an answer is to hold. tokens: of its own; top, prompt_top: alternatives a position; prompt: of the prompt's."""

    tokens: bool = False
    top: int = 0
    prompt: bool = False
    prompt_top: int = 0


@dataclass(slots=True, frozen=True)
class BatchRequest:
    """A request that can be answered. sampling: the parameters that it brings, under the config's names; n, seed: None where it has none.

    prompts: each is answered n times. held: the grammar that it names. template_args: variables of the chat template. repeated: what
    the answer says of the request.
    """

    url: str
    prompts: tuple[AnyPrompt, ...]
    sampling: dict[str, Any]
    n: int | None = None
    seed: int | None = None
    logprobs: AskedLogprobs = AskedLogprobs()
    held: AnswerFormat | None = None
    tools: ToolUse | None = None
    parallel_tool_calls: bool | None = None
    template_args: dict[str, Any] = field(default_factory=dict[str, Any])
    thinking_budget: int | None = None
    repeated: dict[str, Any] = field(default_factory=dict[str, Any])


def read_request(line: Mapping[str, Any], strict: bool, cuts: bool = False) -> BatchRequest:
    """Returns what a line asks for. Raises RequestRefused, with the parameter at fault.

    strict: a field that nobody knows refuses the line. cuts: a prompt that is too long is cut, as ``truncation: auto`` asks.
    """
    endpoint, values = effective_fields(line, ENDPOINTS, strict)
    if endpoint.url == CHAT:
        return _chat(checked_body(values, ChatBody), strict)
    if endpoint.url == COMPLETIONS:
        return _completion(checked_body(values, CompletionBody))
    return _response(checked_body(values, ResponsesBody), cuts)


def model_named(line: Mapping[str, Any]) -> str | None:
    """Returns the model that a line names, None where it names none."""
    body = line.get("body")
    name = body.get("model") if isinstance(body, dict) else None
    return name if isinstance(name, str) else None


def effective_fields(line: Mapping[str, Any], served: Mapping[str, Endpoint], strict: bool) -> tuple[Endpoint, dict[str, Any]]:
    """Returns a line's endpoint, which is one of ``served``, and the fields of its body that count. Raises RequestRefused."""
    endpoint = _endpoint(line, served)
    if strict:
        require_known(dict(line), "", _LINE)
    body = line.get("body")
    if not isinstance(body, dict):
        raise RequestRefused("body", "missing_required_parameter", f"found {shown(body)}; expected the request as an object")
    return endpoint, _effective(body, endpoint, strict)


def _endpoint(line: Mapping[str, Any], served: Mapping[str, Endpoint]) -> Endpoint:
    url, method = line.get("url"), line.get("method")
    if url not in served:
        apart = ""
        if url in ENDPOINTS or url in EMBEDDING_ENDPOINTS:
            apart = "; a run generates or embeds: put such lines into a file of their own"
        raise RequestRefused("url", "unsupported_endpoint", f"found {shown(url)}; expected {_one_of(served)}{apart}")
    if method not in ("POST", None):
        raise RequestRefused("method", "invalid_value", f"found {shown(method)}; expected POST")
    return served[str(url)]


def _one_of(served: Mapping[str, Endpoint]) -> str:
    return next(iter(served)) if len(served) == 1 else f"one of {', '.join(served)}"


def _effective(body: dict[str, Any], endpoint: Endpoint, strict: bool) -> dict[str, Any]:
    """Returns the fields that count. Raises RequestRefused for one that is refused, or that nobody knows."""
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in endpoint.ignored:
            continue
        if name in endpoint.honoured:
            kept[name] = value
        elif (refused := endpoint.refused.get(name)) is not None:
            if not any(value == harmless and type(value) is type(harmless) for harmless in refused.harmless):
                raise RequestRefused(name, "unsupported_parameter", f"found {shown(value)}; {refused.why}")
        elif strict:
            raise unknown_field(name, name, endpoint.honoured)
    return kept


def checked_body(values: dict[str, Any], kind: type[_Kind]) -> _Kind:
    """Returns the body with its types and bounds checked. Raises RequestRefused for the first that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refused(error.errors(include_url=False)[0], values, kind) from None


def _refused(problem: ErrorDetails, values: dict[str, Any], kind: type[Body]) -> RequestRefused:
    name = str(problem["loc"][0])
    inner = problem["loc"][1] if len(problem["loc"]) > 1 else None
    known = kind.model_fields[name]
    words = [mark.words for mark in (*_marks(known.annotation), *known.metadata) if isinstance(mark, Expected)]
    expected = words[-1] if words else "a mapping"
    if problem["type"] == "missing":
        return RequestRefused(name, "missing_required_parameter", f"missing; expected {expected}")
    if problem["type"] == "extra_forbidden":
        return RequestRefused(f"{name}.{inner}", "unknown_parameter", f"no field of {name}; leave it out")
    return RequestRefused(name, "invalid_value", f"found {shown(values[name])}; expected {expected}")


def _marks(kind: Any) -> list[Any]:
    """Returns what a type, or one of its alternatives, is annotated with; the last mark is the outermost."""
    if get_origin(kind) is Annotated:
        inner, *own = get_args(kind)
        return [*_marks(inner), *own]
    return [mark for part in get_args(kind) for mark in _marks(part)] if get_origin(kind) in (Union, UnionType) else []


# --------------------------------------------------------------------------------------------------- the endpoints


def _chat(body: ChatBody, strict: bool) -> BatchRequest:
    messages = chat_messages(body.messages, strict)
    prompt = Chat(messages)
    if body.continue_final_message:
        prompt = _continued(prompt)
    elif body.add_generation_prompt is False:
        raise RequestRefused("add_generation_prompt", "unsupported_value", "found false; it goes with continue_final_message: true")
    if body.top_logprobs and not body.logprobs:
        raise RequestRefused("top_logprobs", "invalid_value", "expected logprobs: true beside it")
    return BatchRequest(
        CHAT,
        (prompt,),
        _sampling(body),
        body.n,
        body.seed,
        AskedLogprobs(bool(body.logprobs), body.top_logprobs or 0, body.prompt_logprobs is not None, body.prompt_logprobs or 0),
        answer_format(body),
        tool_use(body.tools, body.tool_choice, flat=False),
        body.parallel_tool_calls,
        _variables(body.reasoning_effort) | dict(body.chat_template_kwargs or {}),
        body.thinking_token_budget,
        _repeated(CHAT, {"reasoning": body.include_reasoning, "prompt_logprobs": body.prompt_logprobs}),
    )


def _completion(body: CompletionBody) -> BatchRequest:
    n, prompts = body.n or 1, _prompts(body.prompt)
    if body.best_of is not None and body.best_of != n:
        raise RequestRefused("best_of", "unsupported_value", f"found {body.best_of}; expected n, which is {n}: every sample is answered")
    echoed = bool(body.echo) and body.logprobs is not None
    wanted = body.prompt_logprobs if not echoed else max(body.prompt_logprobs or 0, body.logprobs or 0)
    return BatchRequest(
        COMPLETIONS,
        prompts,
        _sampling(body),
        body.n,
        body.seed,
        AskedLogprobs(body.logprobs is not None, body.logprobs or 0, wanted is not None, wanted or 0),
        answer_format(body),
        repeated=_repeated(COMPLETIONS, {"echo": body.echo or None, "prompts": len(prompts), "prompt_logprobs": body.prompt_logprobs}),
    )


def _response(body: ResponsesBody, cuts: bool) -> BatchRequest:
    messages = response_messages(body.input, body.instructions)
    effort = None if body.reasoning is None else body.reasoning.effort
    asked = _LOGPROBS_OF_RESPONSES in (body.include or [])
    for name in body.include or []:
        if name not in (_LOGPROBS_OF_RESPONSES, "reasoning.encrypted_content"):
            raise RequestRefused("include", "unsupported_value", f"found {shown(name)}; expected {_LOGPROBS_OF_RESPONSES} alone")
    if body.top_logprobs and not asked:
        raise RequestRefused("top_logprobs", "invalid_value", f"expected include with {_LOGPROBS_OF_RESPONSES} beside it")
    if body.truncation == "auto" and not cuts:
        raise RequestRefused("truncation", "unsupported_value", "found auto; expected disabled (prompt.too_long of the config can cut)")
    held = None if body.text is None or body.text.format is None else of_format(body.text.format, "text.format", flat=True)
    names = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens", "parallel_tool_calls", "tool_choice", "tools", "text")
    said = body.model_dump(include={*names, "top_logprobs", "reasoning"}, exclude_none=True)
    return BatchRequest(
        RESPONSES,
        (Chat(messages),),
        _sampling(body),
        logprobs=AskedLogprobs(asked, body.top_logprobs or 0),
        held=held,
        tools=tool_use(body.tools, body.tool_choice, flat=True),
        parallel_tool_calls=body.parallel_tool_calls,
        template_args=_variables(effort),
        repeated=_repeated(RESPONSES, said),
    )


def _prompts(prompt: Any) -> tuple[AnyPrompt, ...]:
    if isinstance(prompt, str):
        return (Text(prompt),)
    if isinstance(prompt[0], int):
        return (PromptIds(tuple(prompt)),)
    return tuple(Text(one) if isinstance(one, str) else PromptIds(tuple(one)) for one in prompt)


def _continued(prompt: Chat) -> Chat:
    """Returns a chat whose last message is what the answer begins with."""
    last: Message = prompt.messages[-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str) or not last["content"]:
        raise RequestRefused("continue_final_message", "invalid_value", "expected a last message of the assistant, with a text")
    return Chat(prompt.messages[:-1], last["content"])


def _variables(effort: str | None) -> dict[str, Any]:
    """Returns what chat templates are told of the reasoning effort. Each family has a name of its own for it."""
    if effort is None:
        return {}
    thinks = effort != "none"
    return {"enable_thinking": thinks, "thinking": thinks, **({"reasoning_effort": effort} if thinks else {})}


def _sampling(body: SamplingFields | CompletionFields) -> dict[str, Any]:
    names = {name: name for name in _SAME_NAME} | _OTHER_NAME  # max_completion_tokens comes last, and wins
    return {ours: value for name, ours in names.items() if (value := getattr(body, name, None)) is not None}


def _repeated(url: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"url": url, **{name: value for name, value in values.items() if value is not None}}

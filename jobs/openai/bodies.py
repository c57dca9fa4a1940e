"""The bodies of requests as pydantic models: types and bounds of the fields that count. An absent or null field is None.

Says nothing of fields that are ignored or refused; ``endpoints.py`` does.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ...configs.fields import CountOrZero, Expected, Flag, JsonMapping, LogitBias, Name, Penalty, Ratio, ShareBelowOne, Strings, TokenIds

_SMALLEST = 1e-9  # a nucleus that holds the likeliest token alone


class Body(BaseModel):
    """A part of a request: strict about types, without unknown fields. Nulls are taken out before it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _nucleus(value: object) -> object:
    return _SMALLEST if value == 0 and not isinstance(value, bool) else value


def _off(value: object) -> object:
    return 0 if value == -1 else value


def _seed(value: object) -> object:
    """Returns a seed of the API, which may be negative, as one of ours."""
    return value % (1 << 63) if isinstance(value, int) and not isinstance(value, bool) else value


_Temperature = Annotated[float, Field(ge=0, le=2), Expected("a number from 0 to 2")]
_Nucleus = Annotated[float, BeforeValidator(_nucleus), Field(gt=0, le=1), Expected("a number from 0 to 1")]
_TopK = Annotated[
    int, BeforeValidator(_off), Field(ge=0, lt=2**31), Expected("a whole number of at least 0, or -1 (both 0 and -1 are off)")
]
_Samples = Annotated[int, Field(ge=1, le=128), Expected("a whole number from 1 to 128")]
_Tokens = Annotated[int, Field(ge=1, lt=2**31), Expected("a whole number of at least 1")]
_Top = Annotated[int, Field(ge=0, le=20), Expected("a whole number from 0 to 20")]
_AnySeed = Annotated[int, BeforeValidator(_seed), Expected("a whole number")]
_Mapping = Annotated[dict[str, Any], Expected("a mapping")]
_Mappings = Annotated[list[dict[str, Any]], Expected("a list of mappings")]
_Choice = Annotated[str | dict[str, Any], Expected("none, auto, required, or a mapping that names a tool")]
_Effort = Annotated[str, Field(min_length=1), Expected("none, minimal, low, medium, high, or another word of the model's template")]
_Text = Annotated[str, Expected("a string")]


class SamplingFields(Body):
    """The fields that any endpoint has."""

    model: Annotated[str, Expected("a string")] | None = None
    temperature: _Temperature | None = None
    top_p: _Nucleus | None = None
    top_k: _TopK | None = None
    min_p: ShareBelowOne | None = None
    repetition_penalty: Ratio | None = None


class GrammarFields(Body):
    """The fields that hold an answer to a grammar."""

    response_format: _Mapping | None = None
    structured_outputs: _Mapping | None = None
    guided_json: Annotated[dict[str, Any] | str, Expected("a schema")] | None = None
    guided_regex: Name | None = None
    guided_choice: Annotated[list[str], Expected("a list of strings")] | None = None
    guided_grammar: Name | None = None


class CompletionFields(SamplingFields, GrammarFields):
    """The fields that chats and completions share."""

    max_tokens: _Tokens | None = None
    n: _Samples | None = None
    seed: _AnySeed | None = None
    stop: Strings | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    min_tokens: CountOrZero | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: Flag | None = None
    include_stop_str_in_output: Flag | None = None
    prompt_logprobs: _Top | None = None


class ChatBody(CompletionFields):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Any], Field(min_length=1), Expected("a list of messages with at least one")]
    max_completion_tokens: _Tokens | None = None
    logprobs: Flag | None = None
    top_logprobs: _Top | None = None
    tools: _Mappings | None = None
    tool_choice: _Choice | None = None
    parallel_tool_calls: Flag | None = None
    reasoning_effort: _Effort | None = None
    thinking_token_budget: CountOrZero | None = None
    include_reasoning: Flag | None = None
    chat_template_kwargs: JsonMapping | None = None
    continue_final_message: Flag | None = None
    add_generation_prompt: Flag | None = None


_Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class CompletionBody(CompletionFields):
    """The body of /v1/completions."""

    prompt: Annotated[
        str | _Ids | Annotated[list[str], Field(min_length=1)] | Annotated[list[_Ids], Field(min_length=1)],
        Expected("a string, a list of token ids, or a list of either, none empty"),
    ]
    best_of: _Samples | None = None
    logprobs: _Top | None = None
    echo: Flag | None = None


class EmbeddingBody(Body):
    """The body of /v1/embeddings."""

    model: Annotated[str, Expected("a string")] | None = None
    input: Annotated[
        str | _Ids | Annotated[list[str], Field(min_length=1)] | Annotated[list[_Ids], Field(min_length=1)],
        Expected("a string, a list of token ids, or a list of either, none empty"),
    ]
    encoding_format: Annotated[Literal["float", "base64"], Expected("float or base64")] = "float"
    dimensions: Annotated[int, Field(ge=1, lt=2**31), Expected("a whole number of at least 1")] | None = None


class TextSettings(Body):
    """The field ``text`` of /v1/responses."""

    format: _Mapping | None = None
    verbosity: Any = None


class ReasoningSettings(Body):
    """The field ``reasoning`` of /v1/responses."""

    effort: _Effort | None = None
    summary: Any = None
    generate_summary: Any = None


class ResponsesBody(SamplingFields):
    """The body of /v1/responses."""

    input: Annotated[str | Annotated[list[Any], Field(min_length=1)], Expected("a string, or a list of items with at least one")]
    instructions: _Text | None = None
    max_output_tokens: _Tokens | None = None
    top_logprobs: _Top | None = None
    include: Annotated[list[str], Expected("a list of strings")] | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    metadata: _Mapping | None = None
    truncation: Annotated[Literal["disabled", "auto"], Expected("disabled")] | None = None
    tools: _Mappings | None = None
    tool_choice: _Choice | None = None
    parallel_tool_calls: Flag | None = None

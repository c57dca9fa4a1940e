"""The fields of a request's body, endpoint by endpoint: those that count, those that are ignored, and those that are refused.

docs/batch.md shows the same tables. Fields that are vLLM's own are among those that count.
A new field has its type in ``bodies``, and ``request`` says which setting it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS = "/v1/embeddings"

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_VLLM = ("min_tokens", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "prompt_logprobs")
_PENALTIES = ("presence_penalty", "frequency_penalty", "logit_bias")
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
_TEMPLATE = ("chat_template_kwargs", "continue_final_message", "add_generation_prompt")
_GRAMMARS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
GRAMMAR_FIELDS = ("response_format", "text.format", *_GRAMMARS)


@dataclass(slots=True, frozen=True)
class Refused:
    """A field that is refused: why, or what to write in its place. harmless: values that change nothing, and pass."""

    why: str
    harmless: tuple[Any, ...] = ()


_STREAM = Refused("answers of a batch come whole; leave it out", (False,))
_NOT_HERE = "is not supported; leave it out"
_VLLM_REFUSED = {
    "use_beam_search": Refused("beam search is not supported; leave it out", (False,)),
    "length_penalty": Refused("goes with beam search, which is not supported; leave it out", (1, 1.0)),
    "logits_processors": Refused(_NOT_HERE, ([],)),
    "bad_words": Refused("is not supported; logit_bias of -100 keeps a token out", ([],)),
    "allowed_token_ids": Refused("is not supported; structured_outputs holds an answer to a grammar", ([],)),
    "structural_tag": Refused("is not supported; use structured_outputs with json, regex, choice or grammar"),
}


@dataclass(slots=True, frozen=True)
class Endpoint:
    """An endpoint that is served. honoured: the fields that count; ignored: those without effect here; refused: those that are refused.

    Fields within a mapping are written with a dot.
    """

    url: str
    honoured: frozenset[str]
    ignored: frozenset[str]
    refused: Mapping[str, Refused]


ENDPOINTS = {
    one.url: one
    for one in (
        Endpoint(
            CHAT,
            frozenset(
                [
                    *("model", "messages", "max_completion_tokens", "max_tokens", "n", "seed", "stop", "logprobs", "top_logprobs"),
                    *("response_format", "reasoning_effort", "thinking_token_budget", "include_reasoning"),
                    *(*_SAMPLING, *_VLLM, *_PENALTIES, *_TOOLS, *_TEMPLATE, *_GRAMMARS),
                ]
            ),
            frozenset(
                [
                    *("user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention"),
                    *("prompt_cache_options", "verbosity", "prediction", "stream_options", "priority", "request_id", "cache_salt"),
                ]
            ),
            {
                "stream": _STREAM,
                "modalities": Refused("answers are text alone; leave it out", (["text"], [])),
                "audio": Refused("answers are text alone; leave it out"),
                "web_search_options": Refused("no tool searches the web here; leave it out"),
                "moderation": Refused(_NOT_HERE, (False,)),
                "functions": Refused("is no longer an API's; say tools"),
                "function_call": Refused("is no longer an API's; say tool_choice"),
                "best_of": Refused("is of /v1/completions alone; say n", (1,)),
                **_VLLM_REFUSED,
            },
        ),
        Endpoint(
            COMPLETIONS,
            frozenset(
                [
                    *("model", "prompt", "max_tokens", "n", "best_of", "seed", "stop", "logprobs", "echo", "response_format"),
                    *(*_SAMPLING, *_VLLM, *_PENALTIES, *_GRAMMARS),
                ]
            ),
            frozenset(["user", "stream_options", "priority", "request_id", "cache_salt"]),
            {"stream": _STREAM, "suffix": Refused("a text to insert before is not supported; leave it out", ("",)), **_VLLM_REFUSED},
        ),
        Endpoint(
            RESPONSES,
            frozenset(
                [
                    *("model", "input", "instructions", "max_output_tokens", "top_logprobs", "include", "text", "reasoning"),
                    *("metadata", "truncation", *_SAMPLING, *_TOOLS),
                ]
            ),
            frozenset(
                [
                    *("user", "safety_identifier", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention"),
                    *("prompt_cache_options", "text.verbosity", "reasoning.summary", "reasoning.generate_summary", "max_tool_calls"),
                    *("stream_options", "priority", "request_id", "cache_salt"),
                ]
            ),
            {
                "stream": _STREAM,
                "background": Refused("the whole batch runs in the background; leave it out", (False,)),
                "previous_response_id": Refused("no answers are stored; put the earlier turns into input"),
                "conversation": Refused("no conversations are stored; put the earlier turns into input"),
                "prompt": Refused("no prompts are stored; say input and instructions"),
                "context_management": Refused(_NOT_HERE, ([],)),
                "moderation": Refused(_NOT_HERE, (False,)),
            },
        ),
    )
}

_CUTS = Refused("lines say no lengths; set embed.max_length and embed.too_long in the config", (False, -1))
EMBEDDING_ENDPOINTS = {
    EMBEDDINGS: Endpoint(
        EMBEDDINGS,
        frozenset(["model", "input", "encoding_format", "dimensions"]),
        frozenset(["user", "safety_identifier", "metadata", "priority", "request_id", "cache_salt"]),
        {
            "truncate_prompt_tokens": _CUTS,
            "truncation_side": _CUTS,
            "messages": Refused("chats are not embedded; put their text into input"),
            "add_special_tokens": Refused("is not supported; token ids are read as they are, without special tokens", (True,)),
            "normalize": Refused("is not a line's to say; set embed.normalize in the config"),
            "use_activation": Refused("is not a line's to say; set embed.normalize in the config"),
            "embed_dtype": Refused("is not supported; vectors are float32", ("float32",)),
            "endianness": Refused("is not supported; base64 holds little-endian float32", ("native", "little")),
        },
    )
}

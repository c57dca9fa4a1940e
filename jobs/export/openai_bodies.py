"""The body of an answer as OpenAI's API writes it: a chat completion, a completion, a response, or embeddings.

Made of one row's records. What the answer says of its request is in the column ``request`` of runs on a Batch file.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...configs.schema import GenerateConfig
from ..openai.endpoints import CHAT, COMPLETIONS, RESPONSES
from ..statistics.completion_stats import samples_a_prompt
from .openai_logprobs import Json, Spelled, chat_logprobs, completion_logprobs, fill_first, prompt_logprobs


@dataclass(slots=True, frozen=True)
class AnswerBodies:
    """Makes the bodies of a run's answers. fingerprint: of the run; created: seconds since 1970; spell: None without logprobs."""

    config: GenerateConfig
    fingerprint: str
    created: int
    spell: Spelled | None

    def body(self, name: str, records: list[Json], request: Json) -> Json:
        """Returns the body of one row's ``records``; ``name`` is the part of its ids that tells rows apart."""
        if request["url"] == RESPONSES:
            return self._response(name, records[0], request)
        chat = request["url"] == CHAT
        choices = [self._chat_choice(name, one, request) if chat else self._text_choice(one, request) for one in records]
        body: Json = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{name}",
            "object": "chat.completion" if chat else "text_completion",
            "created": self.created,
            "model": self.config.model.path,
            "choices": choices,
            "usage": _usage(records, request),
            "system_fingerprint": f"fp_{self.fingerprint[:10]}",
        }
        if chat and (wanted := self._of_prompt(records[0], request)) is not None:
            body["prompt_logprobs"] = wanted
        return body

    def _chat_choice(self, name: str, record: Json, request: Json) -> Json:
        logprobs = chat_logprobs(record, self.spell) if self.spell is not None and record.get("logprobs") is not None else None
        calls = [_call(name, record["sample"], at, call) for at, call in enumerate(record.get("tool_calls") or [])]
        message: Json = {"role": "assistant", "content": _content(record, calls), "refusal": None}
        if calls:
            message["tool_calls"] = calls
        if record.get("reasoning") and request.get("reasoning") is not False:
            message["reasoning"] = record["reasoning"]
        return {"index": record["sample"], "logprobs": logprobs, "finish_reason": _finish(record, calls), "message": message}

    def _text_choice(self, record: Json, request: Json) -> Json:
        echo, logprobs = bool(request.get("echo")), None
        of_prompt, own = echo and record.get("prompt_logprobs") is not None, record.get("logprobs") is not None
        if self.spell is not None and (of_prompt or own):
            logprobs = completion_logprobs(record, self.spell, prompt=of_prompt, completion=own)
            if of_prompt and "request" in record:
                fill_first(logprobs)
        choice = {"index": record["sample"], "logprobs": logprobs, "finish_reason": record["finish_reason"]}
        if (wanted := self._of_prompt(record, request)) is not None:
            choice["prompt_logprobs"] = wanted
        return {**choice, "text": (record["prompt"] if echo else "") + record["completion"]}

    def _of_prompt(self, record: Json, request: Json) -> list[Json | None] | None:
        wanted = request.get("prompt_logprobs")
        return None if wanted is None or self.spell is None else prompt_logprobs(record, self.spell, wanted)

    def _response(self, name: str, record: Json, request: Json) -> Json:
        cut = record["finish_reason"] == "length"
        sampling, effort = self.config.sampling, request.get("reasoning", {}).get("effort")
        return {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": self.created,
            "status": "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": request.get("instructions"),
            "max_output_tokens": request.get("max_output_tokens"),
            "model": self.config.model.path,
            "output": list(self._output(name, record, "incomplete" if cut else "completed")),
            "parallel_tool_calls": request.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "temperature": request.get("temperature", sampling.temperature),
            "text": {"format": request.get("text", {}).get("format") or {"type": "text"}},
            "tool_choice": request.get("tool_choice", "auto"),
            "tools": request.get("tools", []),
            "top_p": request.get("top_p", sampling.top_p),
            "truncation": request.get("truncation", "disabled"),
            "usage": _response_usage(record),
            "metadata": request.get("metadata", {}),
        }

    def _output(self, name: str, record: Json, status: str) -> Iterator[Json]:
        if record.get("reasoning"):
            thoughts = [{"type": "reasoning_text", "text": record["reasoning"]}]
            yield {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": thoughts, "status": status}
        calls = [_call(name, record["sample"], at, call) for at, call in enumerate(record.get("tool_calls") or [])]
        text = _content(record, calls)
        if text is not None:
            logprobs = chat_logprobs(record, self.spell)["content"] if self.spell and record.get("logprobs") is not None else []
            content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}]
            yield {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": status, "content": content}
        for at, call in enumerate(calls):
            function = call["function"]
            yield {"id": f"fc_{name}-{at}", "type": "function_call", "call_id": call["id"], **function, "status": "completed"}


def embedding_body(record: Json, model: str) -> Json:
    """Returns the body of an answer with a row's vectors, as lists of numbers or as base64 of little-endian float32."""
    vectors, request = record["embedding"], json.loads(record.get("request") or "{}")
    rows = vectors if vectors and isinstance(vectors[0], list) else [vectors]
    write: Callable[[list[float]], Any] = _base64 if request.get("encoding_format") == "base64" else _shortest
    data = [{"object": "embedding", "index": index, "embedding": write(vector)} for index, vector in enumerate(rows)]
    return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": record["tokens"], "total_tokens": record["tokens"]}}


def _base64(vector: list[float]) -> str:
    return b64encode(np.array(vector, "<f4").tobytes()).decode()


def _shortest(vector: list[float]) -> list[float]:
    """Returns float32 numbers as the shortest that read back as the same float32."""
    return [float(str(number)) for number in np.array(vector, np.float32)]


def request_of(record: Json, config: GenerateConfig) -> Json:
    """Returns what an answer repeats of its request; of a run on other data, what its config says."""
    if (text := record.get("request")) is not None:
        return json.loads(text)
    chat = config.prompt.text is None
    return {"url": CHAT if chat else COMPLETIONS, "echo": config.logprobs.prompt and not chat}


def _content(record: Json, calls: list[Json]) -> str | None:
    """Returns the answer without reasoning and calls, where they are told apart; None where there are these alone."""
    content = record.get("content", record["completion"])
    return None if calls and not content else content


def _finish(record: Json, calls: list[Json]) -> str:
    return "tool_calls" if calls and record["finish_reason"] == "stop" else record["finish_reason"]


def _call(name: str, sample: int, at: int, call: Json) -> Json:
    identifier = call["id"] or f"call_{name}-{sample}-{at}"
    return {"id": identifier, "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}


def _usage(records: list[Json], request: Json) -> Json:
    """Returns the tokens of a row: those of each prompt once, those of all completions."""
    each = samples_a_prompt(request)
    prompt = sum({record["sample"] // each: record["prompt_tokens"] for record in records}.values())
    completion = sum(record["completion_tokens"] for record in records)
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if any(record.get("reasoning_tokens") is not None for record in records):
        reasoning = sum(record["reasoning_tokens"] or 0 for record in records)
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def _response_usage(record: Json) -> Json:
    given, made = record["prompt_tokens"], record["completion_tokens"]
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": record.get("reasoning_tokens") or 0},
        "total_tokens": given + made,
    }

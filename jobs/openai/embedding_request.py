"""A line of a Batch file that asks for embeddings: its texts, their encoding, and how many numbers a vector has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .bodies import EmbeddingBody
from .endpoints import EMBEDDING_ENDPOINTS
from .request import checked_body, effective_fields


@dataclass(slots=True, frozen=True)
class EmbeddingRequest:
    """A request that can be answered. inputs: texts, or token ids; dimensions: None where it names none."""

    inputs: tuple[str | tuple[int, ...], ...]
    encoding: Literal["float", "base64"]
    dimensions: int | None


def read_embedding_request(line: Mapping[str, Any], strict: bool) -> EmbeddingRequest:
    """Returns what a line asks for. Raises RequestRefused, with the parameter at fault; for ``strict`` see ``read_request``."""
    _, values = effective_fields(line, EMBEDDING_ENDPOINTS, strict)
    body = checked_body(values, EmbeddingBody)
    return EmbeddingRequest(_inputs(body.input), body.encoding_format, body.dimensions)


def _inputs(given: Any) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], int):
        return (tuple(given),)
    return tuple(one if isinstance(one, str) else tuple(one) for one in given)

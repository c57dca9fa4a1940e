"""Rows of a Batch file that ask for embeddings: a line's inputs as token ids, and its vectors as the line wants them."""

import json
import logging
from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from ...configs.embed import EmbedConfig
from ...configs.visible import visible
from ...runner.core.arrays import Floats
from ...runner.core.errors import RowError
from ...runner.core.requests import PoolRequest, Row, TokenInput
from ...runner.data.request_census import RequestCensus
from ...runner.pipeline.job import Parts
from ..generate.prompt_encoding import require_vocabulary
from ..openai.embedding_request import EmbeddingRequest, read_embedding_request
from ..openai.endpoints import EMBEDDING_ENDPOINTS, EMBEDDINGS
from ..openai.refusal import RequestRefused
from ..openai.request import model_named
from ..terminal.tables import count_text
from .prompt_inputs import PromptInputs
from .tower_inputs import TowerInputs

log = logging.getLogger("mlx_bulk")


class EmbeddingLines:
    """Reads the lines of a Batch file for /v1/embeddings.

    inputs: encodes texts. size: the numbers of the model's vector. unit: vectors that are cut are divided by their length again.
    """

    def __init__(self, parts: Parts, inputs: PromptInputs | TowerInputs, size: int, unit: bool):
        """Logs once what the file's lines ask for in vain."""
        assert isinstance(parts.config, EmbedConfig)
        self._parts, self._config, self._inputs, self._size, self._unit = parts, parts.config, inputs, size, unit
        data, model = parts.config.data, parts.config.model.path
        self._strict = data.unknown_fields == "refuse"
        self._models = {model, PurePath(model).name} if data.other_models == "refuse" else None
        for line in _warnings(parts.census, model, any_model=self._models is None):
            log.warning("%s", line)

    def request(self, row: Row) -> PoolRequest:
        """Returns the request for all vectors of a line. Raises RequestRefused, and RowError for an input that cannot be embedded."""
        asked = self._asked(row)
        named = model_named(row.columns)
        if self._models is not None and named is not None and named not in self._models:
            here = f"the model here is {visible(self._config.model.path)} (data.other_models: answer takes any name)"
            raise RequestRefused("model", "model_not_found", f"found {visible(named)}; {here}")
        if asked.dimensions is not None and asked.dimensions > self._size:
            raise RequestRefused("dimensions", "invalid_value", f"found {asked.dimensions}; expected at most {self._size}, the model's")
        encoded = [self._encoded(one, place, len(asked.inputs)) for place, one in enumerate(asked.inputs)]
        return PoolRequest(row.position, tuple(one for one, _ in encoded), truncated=sum(cut for _, cut in encoded))

    def vectors(self, row: Row, values: Floats) -> Floats:
        """Returns the vectors [n, k] that a line wants of those [n, D] that the model gives."""
        keep = self._asked(row).dimensions or self._config.embed.dimensions or self._size
        if keep >= values.shape[1]:
            return values
        values = values[:, :keep]
        return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12) if self._unit else values

    def repeated(self, row: Row) -> str:
        """Returns what an answer repeats of its request, as JSON."""
        return json.dumps({"url": EMBEDDINGS, "encoding_format": self._asked(row).encoding})

    def _asked(self, row: Row) -> EmbeddingRequest:
        return read_embedding_request(row.columns, self._strict)

    def _encoded(self, one: str | tuple[int, ...], place: int, of: int) -> tuple[TokenInput, bool]:
        which = f"input[{place}]" if of > 1 else "input"
        try:
            encoded = self._inputs.text(one) if isinstance(one, str) else self._ids(one)
            require_vocabulary(encoded[0].ids, self._parts.vocabulary, "it")
        except RowError as error:
            raise RequestRefused(which, "context_length_exceeded" if error.stage == "too_long" else "invalid_value", str(error)) from None
        return encoded

    def _ids(self, ids: tuple[int, ...]) -> tuple[TokenInput, bool]:
        """Returns token ids as they are: without a prompt and special tokens, cut at the config's side."""
        whole, most = np.array(ids, np.int32), self._inputs.texts.max_length
        if most is None or len(whole) <= most:
            return TokenInput(self._inputs.texts.padded(whole)), False
        if self._inputs.texts.too_long == "error":
            raise RowError("too_long", f"found {len(whole)} token ids; {self._inputs.texts.longest}")
        cut = whole[:most] if self._inputs.texts.too_long == "truncate_right" else whole[-most:]
        return TokenInput(self._inputs.texts.padded(cut)), True


def _warnings(census: RequestCensus, model: str, *, any_model: bool) -> Iterator[str]:
    """Yields a line on lines of other endpoints, one on fields that have no effect, and one on other models."""
    other: dict[str, int] = {}
    for (url, _), lines in census.fields.items():
        if url not in EMBEDDING_ENDPOINTS:
            other[url] = max(other.get(url, 0), lines)
    if other:
        listed = ", ".join(f"{visible(url)} ({lines:,})" for url, lines in other.items())
        yield f"this run embeds, and lines of other endpoints are refused one by one: {listed}; put them into a file of their own"
    endpoint = EMBEDDING_ENDPOINTS[EMBEDDINGS]
    if ignored := {name: lines for (url, name), lines in census.fields.items() if url == EMBEDDINGS and name in endpoint.ignored}:
        yield f"fields without effect here are ignored: {', '.join(f'{name} ({lines:,})' for name, lines in ignored.items())}"
    named = {value: lines for value, lines in census.seen(EMBEDDINGS, "model") if value not in (model, PurePath(model).name)}
    if named and any_model:
        several = ", ".join(f"{visible(str(name))} ({lines:,})" for name, lines in list(named.items())[:5])
        yield f"other models are named and {model} answers {count_text(sum(named.values()), 'line')} of theirs: {several}"

"""Finds rows that cannot run even alone: too long for the memory of a batch, or for a window that the model lacks."""

import logging
from collections.abc import Callable
from typing import Any

from ..caches.image_blocks import attends_in_blocks
from ..core.errors import OutOfRoom, RowError
from ..core.images import FIRST_IMAGE_ID
from ..core.requests import AnyRequest, PoolRequest, Request
from ..core.units import size_as_text
from ..engine.setup import Setup
from ..pool_engine.pooler import pooling_batches
from ..pooling.decoder_body import DecoderBody
from ..pooling.vectors import PoolingNetwork
from ..scheduler.pool_batches import OwnedInput
from .window_check import missing_window

log = logging.getLogger("mlx_bulk")


class LackOfRoom(str):
    """Why a request cannot run even alone: it needs more memory than there is here. A machine with more may run it."""


def row_check(
    setup: Setup, config: dict[str, Any], reference: tuple[Setup, dict[str, Any]] | None = None
) -> Callable[[AnyRequest], str | None]:
    """Returns a function that says why a request cannot run even alone, or None where it can.

    It raises OutOfRoom instead in deterministic mode, and RowError for a row that the model would read wrongly. It warns once of a row
    beyond a sliding window that a model lacks; a pooling model cannot run such a row.
    ``config``: the model's config.json; ``reference``: setup and config.json of the second model, whose limits are the first one's.
    """
    if isinstance(setup.model, PoolingNetwork):
        lacks = _beyond_window(setup.model, config)
        return lambda request: lacks(request) or _too_large_to_pool(request, setup)
    windows = [("config.json", missing_window(setup.model, config), config)]
    if reference is not None:
        windows.append(("the reference's config.json", missing_window(reference[0].model, reference[1]), reference[1]))
    lacking = [(name, window, config.get("model_type")) for name, window, config in windows if window is not None]

    def check(request: AnyRequest) -> str | None:
        for beyond in [each for each in lacking if request.reach > each[1]]:
            lacking.remove(beyond)
            log.warning(
                "row %d can grow to %d tokens: %s asks for a sliding window of %d, which mlx-lm's %s does not have; "
                "logprobs beyond it are not the trained model's",
                *(request.row, request.reach, *beyond),
            )
        _require_whole_pictures(request, setup)
        return _too_large(request, setup)

    return check


def _require_whole_pictures(request: AnyRequest, setup: Setup) -> None:
    """Raises RowError where a picture ends the prompt of a model that reads pictures both ways: a prompt's last token has its own call."""
    if isinstance(request, Request) and request.prompt.ids[-1] >= FIRST_IMAGE_ID and attends_in_blocks(setup.model):
        raise RowError("image", "the prompt ends in a picture, which this model can only read with tokens behind it; add text after it")


def _beyond_window(network: PoolingNetwork, config: dict[str, Any]) -> Callable[[AnyRequest], str | None]:
    """Returns a function that says why a text would get another result than from the trained model, or None where it would not.

    A wrong score is worse than none: it looks like any other.
    """
    body: Any = network.body
    window = missing_window(body.network, config) if isinstance(body, DecoderBody) else None

    def check(request: AnyRequest) -> str | None:
        if window is None or request.reach <= window:
            return None
        lacks = f"more than the sliding window of {window} that config.json asks for; mlx-lm's {config.get('model_type')} has no window"
        return f"{request.reach} tokens are {lacks}, so the result would be wrong; lower max_length to {window}"

    return check


def _too_large(request: AnyRequest, setup: Setup) -> str | None:
    """Returns why a request cannot run even alone, or None. In deterministic mode a scored row is in a full batch.

    Raises OutOfRoom in that mode: leaving a row out changes its batch, which must not depend on this machine's memory.
    """
    limits = setup.limits
    scored = not isinstance(request, Request)
    rows = setup.fixed_rows if scored and setup.static else 1
    need = limits.kv(rows, request.reach)
    if need <= limits.kv_bytes:
        return None
    if scored:
        asked, cure, other = f"{request.reach} tokens", "lower score.context", "a lower score.context"
    else:
        asked = f"{len(request.prompt.ids)} prompt tokens and up to {request.work.sampling.max_tokens} more"
        cure, other = "shorten the prompt, lower sampling.max_tokens", "shorter prompts or a lower sampling.max_tokens"
    if rows > 1:
        asked = f"{rows} rows of {asked}, as many as batch.deterministic fills each batch up to,"
        other = f"fewer batch.rows or {other}"
    room = f"need {size_as_text(need)} of KV cache, {size_as_text(limits.kv_bytes)} are there"
    if not setup.static:
        return LackOfRoom(f"{asked} {room}; {cure}, or raise batch.memory")
    raise OutOfRoom(
        f"row {request.row}: {asked} {room}; what was finished is safe. With batch.deterministic no row is left out for lack of memory, "
        f"its batch would become another: raise batch.memory and continue with the same command (without --overwrite), "
        f"or start another run with {other}"
    )


def _too_large_to_pool(request: AnyRequest, setup: Setup) -> str | None:
    """Returns why the longest of a row's texts cannot be computed even alone, or None. Raises OutOfRoom as ``_too_large``."""
    assert isinstance(request, PoolRequest), "a pooling model has no others"
    if not request.inputs:
        return None
    limits, longest = setup.limits, max(request.inputs, key=lambda each: len(each.ids))
    if request.reach > setup.positions and not request.images:  # a picture has the positions of its own tower
        return f"{request.reach} tokens are more than the model's {setup.positions} positions; lower max_length to that"
    rows, width = 1, request.reach
    if setup.static:
        (batch,) = pooling_batches(setup, limits, [OwnedInput(longest)])
        rows, width = batch.rows, batch.width
    if (need := limits.kv(rows, width)) <= limits.kv_bytes:
        return None
    room = f"need {size_as_text(need)} of memory, {size_as_text(limits.kv_bytes)} are there"
    if not setup.static:
        return LackOfRoom(f"{request.reach} tokens {room}; lower max_length, or raise batch.memory")
    raise OutOfRoom(
        f"row {request.row}: {request.reach} tokens, in a batch of {rows} x {width}, {room}; what was finished is safe. With "
        "batch.deterministic no row is left out for lack of memory: raise batch.memory and continue with the same command (without "
        "--overwrite), or start another run with a lower max_length"
    )

"""Converts lm-eval's requests for the engine: passages to score and prompts to continue, cut as in lm-eval's HF backend.

Each rule is that of ``lm_eval/models/huggingface.py`` (0.4.13), oddities included, so that figures are comparable. Works on ids
and settings; knows no model and no tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.models.utils import (  # pyright: ignore[reportMissingImports]  (the extra eval has it)
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

from ...configs.errors import ConfigError
from ...configs.explain import shown
from ...configs.fields import nearest
from ...runner.core.errors import DataError
from ...runner.core.requests import Passage, Sampling

MAX_GEN_TOKS = 256
_FILTERS = {"top_k": 50, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
DEFAULTS = {**_FILTERS, "repetition_penalty": 1.0}  # of transformers' generate, by its names
SERVED = ("do_sample", "temperature", *DEFAULTS, "num_beams", "until", "max_gen_toks", "max_length")


@dataclass(slots=True, frozen=True)
class Continuation:
    """A prompt's ids, its sampling parameters, and the strings before which its text ends."""

    ids: list[int]
    sampling: Sampling
    until: list[str]


def passage(context: Sequence[int], continuation: Sequence[int], max_length: int) -> Passage:
    """Returns the ids of a context and its continuation, which is scored; too many ids are cut at the beginning.

        context     a b c d     continuation  e f     max_length 4: four ids are fed
        ids           b c d e f               positions 3 4

    Raises DataError where nothing is to be scored, or where the continuation alone is too long.
    """
    if not continuation:
        raise DataError("lm-eval asks for the loglikelihood of a continuation that has no tokens of its own; its context holds them all")
    if len(continuation) > max_length:
        raise DataError(f"lm-eval asks for the loglikelihood of {len(continuation)} tokens at once; max_length is {max_length}: raise it")
    ids = [*context, *continuation][-(max_length + 1) :]
    return Passage(np.array(ids, np.int32), np.arange(len(ids) - len(continuation), len(ids), dtype=np.int32))


def rolling_windows(ids: list[int], prefix: int, max_length: int) -> tuple[Passage, ...]:
    """Returns a document's rolling windows: each id is scored once, the first after ``prefix``; none for an empty document."""
    pairs = get_rolling_token_windows(token_list=ids, prefix_token=prefix, max_seq_len=max_length, context_len=1)
    return tuple(passage(*make_disjoint_window(pair), max_length) for pair in pairs)


def check_settings(gen_kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError where no task could be served with a config's ``gen_kwargs``."""
    # Settings that a task may still give, or that depend on its prompts, are left open.
    open_settings = {"temperature": 1.0, **gen_kwargs, "max_length": None}
    try:
        continuation([0], open_settings, None, {}, {}, 2**31)
    except DataError as error:
        raise ConfigError(str(error).replace("generation_kwargs.", "gen_kwargs.")) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"gen_kwargs: {error}; found {shown(dict(gen_kwargs))}") from None


def continuation(
    ids: list[int], gen_kwargs: Mapping[str, Any], eos: str | None, special: Mapping[str, int], defaults: Mapping[str, Any], max_length: int
) -> Continuation:
    """Converts a prompt's ids and a task's ``generation_kwargs`` for the engine.

    ``eos`` is the text of the tokenizer's EOS, ``special`` the id of each special token by its text, ``defaults`` the checkpoint's
    generation config. Raises DataError for settings that are not served or leave no room.
    """
    settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(gen_kwargs), MAX_GEN_TOKS))
    if unknown := [name for name in settings if name not in SERVED]:
        near = nearest(unknown[0], SERVED)
        fix = f"did you mean {near}?" if near else f"expected of {', '.join(SERVED)}"
        raise DataError(f"generation_kwargs.{unknown[0]}: mlx-bulk does not serve it; {fix}")
    if int(settings.get("num_beams") or 1) != 1:
        raise DataError(f"generation_kwargs.num_beams: found {settings['num_beams']}; expected 1, since mlx-bulk has no beam search")
    until = handle_stop_sequences([text for text in settings["until"] if text is not None], eos=eos)
    room = max_length - settings["max_gen_toks"]
    if room <= 0 or settings["max_gen_toks"] < 1:
        raise DataError(f"max_gen_toks: found {settings['max_gen_toks']}; expected at least 1, and less than max_length, {max_length}")
    ids = ids[-room:]
    most = settings["max_gen_toks"] if settings.get("max_length") is None else int(settings["max_length"]) - len(ids)
    if not ids or most < 1:
        reason = "has no tokens" if not ids else f"of {len(ids)} tokens leaves no room in generation_kwargs.max_length"
        raise DataError(f"lm-eval asks to continue a prompt that {reason}")
    stop = tuple(text for text in until if text)
    if len(stop) < len(until):
        most = 1  # every text contains the empty stop string, also that of the first token
    return Continuation(ids, _sampling(settings, defaults, most, stop, special), until)


def _sampling(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], most: int, stop: tuple[str, ...], special: Mapping[str, int]
) -> Sampling:
    """Merges the settings of the task, of the checkpoint and of transformers, in this order; greedy takes the penalty alone."""
    values: dict[str, Any] = {name: default if defaults.get(name) is None else defaults[name] for name, default in DEFAULTS.items()}
    values |= {name: settings[name] for name in DEFAULTS if settings.get(name) is not None}
    temperature = float(settings.get("temperature") or 0.0) if settings["do_sample"] else 0.0
    if settings["do_sample"] and temperature <= 0:
        raise DataError(f"generation_kwargs.temperature: found {temperature:g}; expected a number above 0, since do_sample is true")
    filters: dict[str, Any] = {name: values[name] for name in _FILTERS} if settings["do_sample"] else {}
    # lm-eval looks for stop strings in text with special tokens; the engine's text has none, so those stop by their id.
    stop_ids = tuple(i for text, i in special.items() if any(s in text for s in stop))
    return Sampling(
        max_tokens=most,
        temperature=temperature,
        repetition_penalty=float(values["repetition_penalty"]),
        stop=stop,
        stop_token_ids=stop_ids,
        **filters,
    )


def postprocess(text: str, until: list[str], think_end_token: str | None) -> str:
    """Returns a completion's text after the end of its thinking, if that is marked, and before the first stop string."""
    return postprocess_generated_text(generation=text, stop=until, think_end_token=think_end_token)

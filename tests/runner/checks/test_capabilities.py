"""Tests what a twin shows beyond short rows on a model's own weights, and what is done where there is none."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.checks import capabilities as trusting
from mlx_bulk.runner.checks.capabilities import Capabilities, capabilities_of, try_twin
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.checks.padding_probe import probe
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.models.loader import LanguageModel
from mlx_bulk.runner.twins.tiny_twin import twin
from mlx_lm.models import gemma3_text, llama, mamba2, qwen3_next
from mlx_lm.models.base import create_attention_mask

from ..support import tiny
from ..support.released_configs import CONFIGS, uncomputed
from ..support.twin_models import GEMMA, LLAMA, Half, model_of
from ..support.twin_models import folder as folder

Mask = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("folder")


def _without_padding(mask: Any) -> Any:
    """A mask without pads: all rows of a batch see what the first may see."""
    return mx.broadcast_to(mask[:1], mask.shape) if isinstance(mask, mx.array) and mask.ndim == 4 else mask


def in_decode(h: mx.array, cache: Any = None, **more: Any) -> Any:
    """Forgets pads in calls of one token."""
    mask = create_attention_mask(h, cache, **more)
    return _without_padding(mask) if h.shape[1] == 1 else mask


def beyond_the_window(h: mx.array, cache: Any = None, window_size: int | None = None, **more: Any) -> Any:
    """Forgets pads where the window has begun to slide."""
    mask = create_attention_mask(h, cache, window_size=window_size, **more)
    slides = window_size is not None and getattr(cache, "_offset", 0) > window_size
    return _without_padding(mask) if slides else mask


def of_sliding_layers(h: mx.array, cache: Any = None, window_size: int | None = None, **more: Any) -> Any:
    """Forgets pads in one kind of layer."""
    mask = create_attention_mask(h, cache, window_size=window_size, **more)
    return _without_padding(mask) if window_size is not None else mask


def of_full_layers(h: mx.array, cache: Any = None, window_size: int | None = None, **more: Any) -> Any:
    """Forgets pads in the other kind."""
    mask = create_attention_mask(h, cache, window_size=window_size, **more)
    return mask if window_size is not None else _without_padding(mask)


def no_mask(h: mx.array, cache: Any = None) -> None:
    """Lets a state take in pads."""


def shown(name: str) -> Capabilities:
    """By the twin of a model as it is released."""
    return try_twin(twin(uncomputed(CONFIGS[name]), CONFIGS[name]))


without_fault = functools.cache(shown)


@pytest.mark.parametrize(
    ("name", "module", "function", "fault", "way"),
    [
        pytest.param("Qwen3-Next-80B-A3B", qwen3_next, "create_attention_mask", in_decode, "exact", marks=pytest.mark.slow),
        pytest.param("gemma-3-27b", gemma3_text, "create_attention_mask", in_decode, "exact", marks=pytest.mark.slow),
        pytest.param("gemma-3-27b", gemma3_text, "create_attention_mask", beyond_the_window, "exact", marks=pytest.mark.slow),
        pytest.param("gemma-3-27b", gemma3_text, "create_attention_mask", of_sliding_layers, "exact", marks=pytest.mark.slow),
        pytest.param("gemma-3-27b", gemma3_text, "create_attention_mask", of_full_layers, "exact", marks=pytest.mark.slow),
        pytest.param("Qwen3-Next-80B-A3B", qwen3_next, "create_ssm_mask", no_mask, "joined", marks=pytest.mark.slow),
        ("mamba2-780m", mamba2, "create_ssm_mask", no_mask, "joined"),
    ],
)
def test_a_fault_of_padded_batches_is_seen(monkeypatch: pytest.MonkeyPatch, name: str, module: Any, function: str, fault: Mask, way: str):
    assert without_fault(name).way == "padded"
    monkeypatch.setattr(module, function, fault)
    found = shown(name)
    assert found.way == way
    assert found.reason.startswith("padded batches of a small random twin change logprobs by ")


def test_faults_beyond_a_window_do_not_show_in_short_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gemma3_text, "create_attention_mask", beyond_the_window)
    network = gemma3_text.Model(gemma3_text.ModelArgs.from_dict(GEMMA))
    assert probe(network, tiny.VOCABULARY).way == "padded"
    about = fit(model_of(GEMMA, network), BatchConfig(), LogprobOptions()).about
    assert about["probe"]["way"] == "exact"
    assert about["probe"]["found_on"] == "twin"
    assert "small random twin" in about["probe"]["reason"]


def test_a_right_twin_is_still_confirmed_on_the_weights():
    network = Half(llama.ModelArgs.from_dict(LLAMA))
    network.set_dtype(mx.bfloat16)
    assert try_twin(twin(network, LLAMA)).way == "padded"
    fitted = fit(model_of(LLAMA, network), BatchConfig(), LogprobOptions(echo=True))
    setup, about = fitted.setup, fitted.about
    assert (about["probe"]["way"], about["probe"]["found_on"], about["probe"]["twin"]["way"]) == ("alone", "weights", "padded")
    assert setup.limits.rows == 1


@pytest.mark.slow
def test_calls_are_not_cut_where_a_prompt_in_several_calls_is_another(monkeypatch: pytest.MonkeyPatch):
    def one_too_wide(h: mx.array, cache: Any = None, window_size: int | None = None, **more: Any) -> Any:
        return create_attention_mask(h, cache, window_size=None if window_size is None else window_size + 1, **more)

    monkeypatch.setattr(gemma3_text, "create_attention_mask", one_too_wide)
    found = shown("gemma-3-27b")
    assert (found.way, found.shortcuts.chunked, found.shortcuts.shared_passages) == ("padded", False, False)
    network = gemma3_text.Model(gemma3_text.ModelArgs.from_dict(GEMMA))
    assert not fit(model_of(GEMMA, network), BatchConfig(), LogprobOptions()).setup.features.chunked


# -------------------------------------------------------------------------------------------------- without a twin


class OneSize(gemma3_text.Model):
    """Cannot be built in another size; its window is one that rows of tests pass."""

    def __init__(self, args: gemma3_text.ModelArgs):
        super().__init__(args)
        if args.intermediate_size != 128:
            raise ValueError("kernels for 128 alone")


def one_size(window: int | None) -> LanguageModel:
    config = GEMMA | {"sliding_window": window or tiny.WINDOW}
    network = OneSize(gemma3_text.ModelArgs.from_dict(config))
    return model_of(config if window else {k: v for k, v in config.items() if k != "sliding_window"}, network)


@pytest.mark.slow
def test_a_small_model_without_a_twin_goes_through_its_checks_itself(monkeypatch: pytest.MonkeyPatch, folder: Path):
    found = capabilities_of(one_size(12))
    assert (found.way, found.on, found.no_twin) == ("padded", "weights", "no twin (kernels for 128 alone)")
    monkeypatch.setattr(gemma3_text, "create_attention_mask", beyond_the_window)
    found = capabilities_of(one_size(12))
    assert found.way == "exact"
    assert found.reason.startswith("padded batches change logprobs by")
    assert not folder.exists()  # the next start's weights may be others


def test_a_large_one_with_a_window_runs_rows_of_one_length(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trusting, "WORK", 1e6)
    fitted = fit(one_size(12), BatchConfig(), LogprobOptions(echo=True))
    setup, about = fitted.setup, fitted.about
    said = "no twin (kernels for 128 alone), and rows longer than 12 tokens take too long to try them on the model itself"
    assert (about["probe"]["way"], about["probe"]["reason"]) == ("exact", said)
    assert about["probe"]["twin"] == "no twin (kernels for 128 alone)"
    assert about["probe"]["scoring"] == {"head": True, "right_padded": False, "shared": False, "reasons": [said]}
    assert (setup.limits.equal_lengths, setup.head is not None) == (True, True)


@pytest.mark.parametrize("window", [None, 4096])
def test_without_a_window_that_rows_can_pass_short_rows_show_all(monkeypatch: pytest.MonkeyPatch, window: int | None):
    monkeypatch.setattr(trusting, "WORK", 1e6)
    found = capabilities_of(one_size(window))
    assert (found.way, found.on) == ("padded", "weights")


def test_a_model_that_crashes_beyond_its_window_runs_rows_of_one_length():
    class Short(OneSize):
        def __call__(self, inputs: mx.array, *more: Any, **named: Any) -> mx.array:
            if inputs.shape[1] > 20:
                raise ValueError("too long for me")
            return super().__call__(inputs, *more, **named)

    config = GEMMA | {"sliding_window": 12}
    found = capabilities_of(model_of(config, Short(gemma3_text.ModelArgs.from_dict(config))))
    assert (found.way, found.reason) == ("exact", "no twin (kernels for 128 alone), and rows longer than 12 tokens crash: too long for me")

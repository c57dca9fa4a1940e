"""Tests that shared prefixes are used only where a twin and short rows on the weights show that they are right."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.checks import engine_setup
from mlx_bulk.runner.checks.capabilities import capabilities_of, try_twin
from mlx_bulk.runner.checks.engine_setup import expected_setups, fit
from mlx_bulk.runner.checks.padding_probe import Way
from mlx_bulk.runner.checks.prefix_check import prefix_refusal, refused_by_weights
from mlx_bulk.runner.checks.trial import SingleRows
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.twins.tiny_twin import twin
from mlx_lm.models.cache import BatchRotatingKVCache

from ...checkpoints import loaded, write_checkpoint
from ..support.released_configs import CONFIGS, uncomputed
from ..support.tiny import JOINED, PADDED, VOCABULARY, WINDOW, Network, build

ALLOWED = 1e-4
QUICK = ("llama", "gemma3_text", "mixtral", "mamba2")  # a model of each kind of cache, and one with experts


def why_not(network: Network, window: int | None, way: Way = "padded", head: bool = True) -> str:
    return tried(network, window, way, Head(network) if head else None)


def tried(network: Any, window: int | None, way: Way, head: Head | None) -> str:
    """By rows longer than a window, or by short ones as on a model's own weights."""
    if window is None:
        return refused_by_weights(network, VOCABULARY, way, ALLOWED, head)
    return prefix_refusal(SingleRows(network), VOCABULARY, way, window, ALLOWED, head)


@pytest.mark.parametrize("window", [WINDOW, None])
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*PADDED, *JOINED)])
def test_a_right_model_is_found_right(name: str, window: int | None):
    assert why_not(build(name), window, "joined" if name in JOINED else "padded") == ""


class Later:
    """A network that is slightly wrong in calls of several rows and tokens on filled caches, at every second id."""

    def __init__(self, network: Network):
        self.network, self.layers = network, network.layers

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        later = min(tokens.shape) > 1 and not cache[0].empty()
        return self.network(tokens, cache=cache) + (mx.arange(VOCABULARY) % 2 * 0.01 if later else 0.0)


class Forgetful(Later):
    """A network that forgets, in such calls, where its caches end: what stands behind is of other positions."""

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        if min(tokens.shape) > 1 and not cache[0].empty():
            for layer in cache:
                layer.offset = layer.offset - 1
        return self.network(tokens, cache=cache)


class WholeHead(Head):
    """A head whose states are the logits."""

    def __init__(self, network: Any):
        self.network = network

    def states(self, tokens: mx.array, caches: Any) -> mx.array:
        return self.network(tokens, cache=caches)

    def logits(self, states: mx.array) -> mx.array:
        return states

    def product(self, states: mx.array) -> None:
        pass


@pytest.mark.parametrize("window", [WINDOW, None])
def test_a_fault_of_a_prompt_on_top_of_a_prefix_is_found(window: int | None):
    for network, head in ((Later(build("llama")), True), (Forgetful(build("llama")), False), (Forgetful(build("llama")), True)):
        found = tried(network, window, "padded", WholeHead(network) if head else None)
        assert found.startswith("rows on top of a shared prefix change logprobs by ")


def off_by_one(cls: Any, caches: Any) -> Any:
    """A merge that puts rows a position too far once they are longer than the window."""
    found = right(caches)
    if max(cache.offset for cache in caches) > caches[0].max_size:
        found.offset = found.offset + 1
    return found


right = BatchRotatingKVCache.merge


@pytest.mark.slow
def test_a_fault_beyond_a_window_is_found_on_the_twin_and_nothing_is_shared(monkeypatch: pytest.MonkeyPatch):
    assert try_twin(twin(uncomputed(CONFIGS["gemma-3-27b"]), CONFIGS["gemma-3-27b"])).unshared == ""
    monkeypatch.setattr(BatchRotatingKVCache, "merge", classmethod(off_by_one))
    found = try_twin(twin(uncomputed(CONFIGS["gemma-3-27b"]), CONFIGS["gemma-3-27b"]))
    assert found.way == "padded"  # rows that begin with nothing are right
    assert found.unshared.startswith("rows on top of a shared prefix change logprobs by ")
    assert found.unshared.endswith(" of a small random twin")


def test_a_crash_is_no_proof(monkeypatch: pytest.MonkeyPatch):
    def crashing(cls: Any, caches: Any) -> Any:
        if not caches[0].empty():
            raise ValueError("no such merge")
        return right(caches)

    monkeypatch.setattr(BatchRotatingKVCache, "merge", classmethod(crashing))
    assert why_not(build("gemma3_text"), None) == "rows on top of a shared prefix crash: no such merge"


# ---------------------------------------------------------------------------------------------------------- setups


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("stems") / "tiny")


def test_a_run_shares_where_its_model_is_right_and_says_so(checkpoint: Path):
    model = loaded(checkpoint)
    fitted = fit(model, BatchConfig(), LogprobOptions())
    setup, about = fitted.setup, fitted.about
    assert setup.shares_prompts
    assert about["probe"]["prefixes"] == {"shared": True, "reason": ""}
    assert expected_setups([model], BatchConfig(), LogprobOptions())[0].shares_prompts


def test_deterministic_mode_shares_nothing(checkpoint: Path):
    fitted = fit(loaded(checkpoint), BatchConfig(deterministic=True), LogprobOptions())
    setup, about = fitted.setup, fitted.about
    assert not setup.shares_prompts
    assert about["probe"]["prefixes"] == {"shared": False, "reason": "batch.deterministic"}


def test_ways_that_twin_or_weights_refuse_are_not_taken(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    model = loaded(checkpoint)
    assert capabilities_of(model).unshared == ""
    monkeypatch.setattr(engine_setup, "refused_by_weights", lambda *_: "they differ")
    fitted = fit(model, BatchConfig(), LogprobOptions())
    setup, about = fitted.setup, fitted.about
    assert not setup.shares_prompts
    assert about["probe"]["prefixes"] == {"shared": False, "reason": "they differ"}

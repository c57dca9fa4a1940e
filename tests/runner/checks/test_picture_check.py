"""A loaded model is tried on rows with pictures: ways that change logprobs are given up, and a model that fails alone is refused."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.runner.caches.image_blocks import attend_in_blocks
from mlx_bulk.runner.checks.picture_check import tried_with_pictures
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.images import ImageTable
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers import network as network_file
from mlx_bulk.runner.patched_layers.call_context import READER, context_of
from mlx_bulk.runner.scheduler.prefix_tree import Segment
from mlx_bulk.runner.vision.features import FeatureCache
from mlx_bulk.runner.vision.image_embedding import ImageEmbedding, read_pictures_with

from ..support.made_up_pictures import PLACEHOLDER, NoiseTower, shift_features
from ..support.tiny import as_it_came
from ..support.tiny_runs import setup_of

ALLOWED = 1e-4


def reading(family: str = "llama", **more: Any) -> Setup:
    network = as_it_came(family)
    read_pictures_with(network, FeatureCache(NoiseTower()))
    return setup_of(network, images=ImageTable(PLACEHOLDER), shared_prompts=True, **more)


@pytest.mark.parametrize("way", ["padded", *(pytest.param(way, marks=pytest.mark.slow) for way in ("joined", "exact")), "alone"])
def test_a_sound_model_keeps_its_ways_and_its_tower(way: str) -> None:
    setup = reading(way=way)
    before = getattr(setup.model, READER)
    assert tried_with_pictures(setup, ALLOWED, "sound") == setup
    assert getattr(setup.model, READER) is before
    assert before.calls == 0


@pytest.mark.slow
def test_features_that_go_to_a_wrong_row_of_a_batch_let_one_row_run_at_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = reading()
    shift_features(monkeypatch, setup.model)
    found = tried_with_pictures(setup, ALLOWED, "wrong")
    assert (found.limits.rows, found.features.padded, found.features.shared_prompts) == (1, False, False)
    assert "wrong: with pictures rows together had other logprobs than alone; so one row runs at a time" in caplog.text


@pytest.mark.slow
def test_pictures_that_must_not_be_cut_are_fed_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = reading()
    right = ImageEmbedding.__call__

    def lost(self: ImageEmbedding, ids: mx.array) -> mx.array:
        context = context_of(setup.model)
        if (placed := context.pictures) is not None and not any(len(placed.indices) % n == 0 for n in (6, 8, 14)):
            context.pictures = None
        return right(self, ids)

    monkeypatch.setattr(ImageEmbedding, "__call__", lost)
    found = tried_with_pictures(setup, ALLOWED, "uncut")
    assert not found.features.chunked
    assert not found.features.shared_prompts


@pytest.mark.slow
@pytest.mark.parametrize("refused", [True, False])
def test_scoring_that_cuts_pictures_which_see_themselves_both_ways_is_given_up(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """refused: the network's own refusal of such a call stays."""
    setup = reading("gemma3_text", chunked=True)
    attend_in_blocks(setup.model)
    assert tried_with_pictures(setup, ALLOWED, "whole") == setup
    monkeypatch.setattr(Segment, "uncut", lambda self, length: length)
    if not refused:
        monkeypatch.setattr(network_file, "require_whole", lambda parts, shape: None)
    found = tried_with_pictures(setup, ALLOWED, "cut")
    assert (found.features.shared_passages, found.features.chunked, found.limits.rows) == (False, True, setup.limits.rows)


def test_a_model_that_fails_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = reading()

    def broken(self: ImageEmbedding, ids: mx.array) -> mx.array:
        raise ValueError("[broadcast_shapes] of a row alone")

    monkeypatch.setattr(ImageEmbedding, "__call__", broken)
    with pytest.raises(ModelError, match=r"odd cannot read pictures: a row alone fails: \[broadcast_shapes\]"):
        tried_with_pictures(setup, ALLOWED, "odd")
    monkeypatch.setattr(ImageEmbedding, "__call__", lambda self, ids: mx.full((*ids.shape, 64), mx.nan))
    with pytest.raises(ModelError, match="odd cannot read pictures: the logprobs of a row alone are NaN"):
        tried_with_pictures(replace(setup), ALLOWED, "odd")

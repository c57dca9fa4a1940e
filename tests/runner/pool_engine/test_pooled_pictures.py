"""Rows with pictures through the pooler, against the states of each row's whole embeddings, and the trial that is made of them at load."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.caches.image_blocks import MARK
from mlx_bulk.runner.checks.pooling_check import find_picture_batching
from mlx_bulk.runner.core.arrays import Floats
from mlx_bulk.runner.core.errors import DataError, ModelError
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_bulk.runner.core.outcomes import Failure, Pooled
from mlx_bulk.runner.core.requests import PoolRequest, TokenInput
from mlx_bulk.runner.engine.interface import one_window
from mlx_bulk.runner.patched_layers.rope_layers import POSITIONS
from mlx_bulk.runner.pool_engine.pooler import Pooler, pooling_batches
from mlx_bulk.runner.pooling.decoder_body import DecoderBody
from mlx_bulk.runner.pooling.embedding_head import EmbeddingLayers
from mlx_bulk.runner.pooling.spec import EmbeddingHead, PoolingSpec
from mlx_bulk.runner.pooling.vectors import PoolingNetwork
from mlx_bulk.runner.scheduler.pool_batches import owned_inputs
from mlx_bulk.runner.vision.features import FeatureCache, ImageFeatures
from mlx_bulk.runner.vision.image_embedding import ImageEmbedding, read_pictures_with

from ..support.made_up_pictures import PLACEHOLDER, NoiseTower, picture, picture_ids, shift_features
from ..support.pooling_models import pooling_setup_of
from ..support.tiny import VOCABULARY, as_it_came

CLOSE = 1e-5  # of states of size 1, in float32
SPEC = PoolingSpec(EmbeddingHead(("lasttoken",)), 64)


class Bench:
    """A tiny llama that reads made-up pictures, pooled at its last token."""

    def __init__(self) -> None:
        self.network: Any = as_it_came("llama")
        self.tower, self.table = NoiseTower(), ImageTable(PLACEHOLDER)
        read_pictures_with(self.network, FeatureCache(self.tower))
        self.model = PoolingNetwork(DecoderBody(self.network, {}), EmbeddingLayers(EmbeddingHead(("lasttoken",))))

    def truth(self, ids: list[int]) -> Floats:
        """The last state [H] of a row whose embeddings are made here."""
        row = np.array(ids, np.int32)
        embedded = np.array(self.network.model["embed_tokens"](mx.array(self.table.plain(row))))
        for part in self.table.images_in(row):
            embedded[part.indices] = np.array(self.tower.features(part.image).embeddings)[part.offsets]
        plain = mx.array(self.table.plain(row))[None]
        return np.array(self.network.model(plain, input_embeddings=mx.array(embedded)[None])[0, -1])


def test_rows_with_and_without_pictures_share_batches_and_each_picture_is_encoded_once() -> None:
    bench = Bench()
    a, b = picture(bench.table, "a", 6), picture(bench.table, "b", 3)
    rows: list[list[list[int] | PromptImage]] = [[[1, 5], a, [7]], [[1, 2, 3]], [a, [4], b], [b], [[9], a, [7, 8, 9, 10]]]
    ids = [picture_ids(*row) for row in rows]
    requests = [PoolRequest(i, (TokenInput(np.array(one, np.int32)),), images=(a, b)) for i, one in enumerate(ids)]
    setup = pooling_setup_of(bench.model.reading(bench.table))
    found = {one.row: one.values[0] for one in Pooler(setup).run(one_window(requests)) if isinstance(one, Pooled)}
    assert sorted(bench.tower.seen) == ["a", "b"]
    for i, one in enumerate(ids):
        np.testing.assert_allclose(found[i], bench.truth(one), rtol=0, atol=CLOSE)


def test_a_picture_that_changed_since_its_row_was_read_costs_its_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    a, b = picture(bench.table, "a", 6), picture(bench.table, "b", 3)
    made = bench.tower.features

    def features(image: PromptImage) -> ImageFeatures:
        if image is b:
            raise DataError("b.png changed while the run read it")
        return made(image)

    monkeypatch.setattr(bench.tower, "features", features)
    rows: list[tuple[list[int], tuple[PromptImage, ...]]] = [
        (picture_ids([1, 5], a, [7]), (a,)),
        (picture_ids([1], b, [2]), (b,)),
        (picture_ids(a, b), (a, b)),
    ]
    requests = [PoolRequest(i, (TokenInput(np.array(ids, np.int32)),), images=images) for i, (ids, images) in enumerate(rows)]
    outcomes = list(Pooler(pooling_setup_of(bench.model.reading(bench.table))).run(one_window(requests)))
    [done] = [one for one in outcomes if isinstance(one, Pooled)]
    np.testing.assert_allclose(done.values[0], bench.truth(rows[0][0]), rtol=0, atol=CLOSE)
    failed = {one.row: (one.stage, one.message) for one in outcomes if isinstance(one, Failure)}
    assert failed[1] == ("image", "b.png changed while the run read it")
    assert failed[2] == ("image", "picture 2 of 2: b.png changed while the run read it")


@pytest.mark.parametrize("planned", [False, True], ids=["run", "plan"])
@pytest.mark.parametrize("mark", [None, POSITIONS, MARK])
def test_a_row_has_a_fixed_batch_of_its_own_where_a_picture_changes_a_whole_call(mark: str | None, planned: bool) -> None:
    """A plan's setup has no table of pictures, and its model is not made for any."""
    bench = Bench()
    if mark is not None:
        object.__setattr__(bench.network, mark, True)
    model, images = (bench.model, None) if planned else (bench.model.reading(bench.table), bench.table)
    setup = replace(pooling_setup_of(model, static=True), images=images).with_features(any_slot=True)
    requests = [PoolRequest(i, (TokenInput(np.array([1, 2, 3], np.int32)),)) for i in range(3)]
    rows = [batch.rows for batch in pooling_batches(setup, setup.limits, owned_inputs(requests, shared=False))]
    assert rows == ([4] if mark is None else [1, 1, 1])


def test_a_sound_model_is_tried_with_noise_and_keeps_its_tower() -> None:
    bench = Bench()
    assert find_picture_batching(bench.model, VOCABULARY, SPEC, PLACEHOLDER, "sound").way == "padded"
    assert bench.tower.seen == []


def test_features_that_go_to_a_wrong_row_of_a_batch_let_texts_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    shift_features(monkeypatch, bench.network)
    assert find_picture_batching(bench.model, VOCABULARY, SPEC, PLACEHOLDER, "wrong").way == "alone"


def test_a_model_that_fails_on_a_row_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def fails(self: ImageEmbedding, ids: mx.array) -> mx.array:
        raise ValueError("no such layer")

    monkeypatch.setattr(ImageEmbedding, "__call__", fails)
    with pytest.raises(ModelError, match="broken cannot read pictures: a row alone fails: no such layer"):
        find_picture_batching(bench.model, VOCABULARY, SPEC, PLACEHOLDER, "broken")

"""A picture of which no features can be made costs its own rows; the rows beside it have the bytes that they have without it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.errors import DataError, ModelError
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Generated, Outcome, Scored
from mlx_bulk.runner.core.requests import Passage, Sampling, ScoreRequest
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.scoring.reference_logprobs import Finished, Reference
from mlx_bulk.runner.scoring.scorer import Scorer
from mlx_bulk.runner.vision.features import FAILED, FeatureCache, ImageFeatures
from mlx_bulk.runner.vision.image_embedding import read_pictures_with

from ..support.made_up_pictures import PLACEHOLDER, NoiseTower, picture, picture_ids, picture_request
from ..support.tiny import as_it_came
from ..support.tiny_runs import outcomes_of, run, scored_with, setup_of

GREEDY = Sampling(max_tokens=5, temperature=0.0)


class FailingTower(NoiseTower):
    """Makes no features of pictures whose digest begins with ``bad``, and notes how often it was asked for them."""

    def __init__(self, error: Exception | None = None):
        super().__init__()
        self.error = error or ModelError("the vision tower fails on a picture of 6 tokens: no such layer")
        self.bad, self.asked = "bad", 0

    def features(self, image: PromptImage) -> ImageFeatures:
        if image.digest.startswith(self.bad):
            self.asked += 1
            raise self.error
        return super().features(image)


class Bench:
    """A tiny network, and rows of which 1, 3 and 4 hold a picture that its tower cannot read; 0, 2 and 5 do not."""

    def __init__(self, error: Exception | None = None, most_bytes: int = 1 << 30):
        self.network: Any = as_it_came("llama")
        self.tower, self.table = FailingTower(error), ImageTable(PLACEHOLDER)
        self.cache = FeatureCache(self.tower, most_bytes)
        read_pictures_with(self.network, self.cache)
        good, bad, one = picture(self.table, "good", 6), picture(self.table, "bad", 6), picture(self.table, "bad one", 1)
        self.rows: list[list[list[int] | PromptImage]] = [
            [[1, 5], good, [7, 8, 30]],
            [[1, 5], bad, [7, 8, 30]],
            [[1, 2, 3, 4, 5, 6, 7]],
            [[1, 5], good, [3], bad, [9]],
            [[2, 60], one],
            [[1, 5], good, [7, 9]],
        ]

    def setup(self, **more: Any) -> Setup:
        return setup_of(self.network, images=self.table, **more)


def failures(outcomes: Sequence[Outcome]) -> dict[int, Failure]:
    return {one.row: one for one in outcomes if isinstance(one, Failure)}


@pytest.mark.parametrize("more", [{}, {"tokens": 4}, {"way": "joined"}, {"way": "alone"}, {"shared_prompts": True}, {"static": True}])
@pytest.mark.parametrize("most_bytes", [pytest.param(0, marks=pytest.mark.slow), 1 << 30])
def test_other_rows_have_the_bytes_that_they_have_without_such_pictures(more: dict[str, Any], most_bytes: int) -> None:
    bench, wanted = Bench(most_bytes=most_bytes), LogprobOptions(echo=True)
    requests = [picture_request(i, row, GREEDY) for i, row in enumerate(bench.rows)]
    outcomes = outcomes_of(bench.setup(wanted=wanted, **more), requests)
    lost = failures(outcomes)
    assert {(row, one.stage, one.error) for row, one in lost.items()} == {(row, "image", "PictureError") for row in (1, 3, 4)}
    assert lost[1].message == "the vision tower fails on a picture of 6 tokens: no such layer"
    assert lost[3].message.startswith("picture 2 of 2: the vision tower fails")
    assert bench.tower.asked == 2, "a picture that has failed is not tried again while its rows are there"
    done = {one.row: one for one in outcomes if isinstance(one, Generated)}
    assert sorted(done) == [0, 2, 5]
    whole = Bench(most_bytes=most_bytes)
    whole.tower.bad = "none"
    requests = [picture_request(i, row, GREEDY) for i, row in enumerate(whole.rows)]
    for row, one in enumerate(run(whole.setup(wanted=wanted, **more), requests)):
        if row in done:
            assert one.ids.tolist() == done[row].ids.tolist()
            bound = 0.0 if more.get("static") else 1e-5  # else rows that have ended are no longer in the batch
            np.testing.assert_allclose(one.scores.logprobs, done[row].scores.logprobs, rtol=0, atol=bound)


def test_a_row_with_samples_loses_each_of_them() -> None:
    bench = Bench()
    outcomes = outcomes_of(bench.setup(), [picture_request(0, bench.rows[1], GREEDY, 3)])
    assert [(one.sample, one.stage) for one in outcomes if isinstance(one, Failure)] == [(0, "image"), (1, "image"), (2, "image")]


def test_scores_of_other_rows_go_on() -> None:
    bench = Bench(DataError("p.png changed while the run read it"))
    requests: list[ScoreRequest] = []
    for number, row in enumerate(bench.rows):
        ids = np.array(picture_ids(*row, [50, 51]), np.int32)
        images = tuple(part for part in row if isinstance(part, PromptImage))
        requests.append(ScoreRequest(number, (Passage(ids, np.array([len(ids) - 1], np.int32)),), images=images))
    outcomes = scored_with(Scorer(bench.setup(tokens=16)), requests)
    assert [one.row for one in outcomes if isinstance(one, Scored)] == [0, 2, 5]
    assert {(row, one.stage, one.message) for row, one in failures(outcomes).items()} == {
        (row, "image", f"{where}p.png changed while the run read it") for row, where in ((1, ""), (3, "picture 2 of 2: "), (4, ""))
    }


def test_a_reference_that_cannot_read_a_picture_costs_its_rows() -> None:
    policy, second = Bench(), as_it_came("llama")
    tower = FailingTower()
    tower.bad = "good"
    read_pictures_with(second, FeatureCache(tower))
    requests = [picture_request(i, policy.rows[i], GREEDY) for i in (0, 2, 5)]
    finished = [Finished(request, one) for request, one in zip(requests, run(policy.setup(), requests), strict=True)]
    reference = Reference(setup_of(second, images=policy.table), own=False)
    outcomes = list(reference.logprobs(finished, lambda: False))
    assert [one.row for one in outcomes if isinstance(one, Generated)] == [2]
    assert {row: one.stage for row, one in failures(outcomes).items()} == {0: "image", 5: "image"}


def test_a_tower_that_fails_on_every_picture_ends_the_run() -> None:
    bench = Bench()
    bad = [picture(bench.table, f"bad {i}", 2) for i in range(FAILED)]
    requests = [picture_request(i, [[1], image, [2]], GREEDY) for i, image in enumerate(bad)]
    assert len(failures(outcomes_of(bench.setup(), requests[1:]))) == FAILED - 1
    again = Bench()
    again.table = bench.table
    setup = again.setup()
    for call in range(2):  # other pictures of a second call are told of, too
        others = [picture(bench.table, f"bad {call} {i}", 2) for i in range(FAILED)]
        requests = [picture_request(i, [[1], image, [2]], GREEDY) for i, image in enumerate(others)]
        with pytest.raises(ModelError, match=f"it was so for {FAILED} pictures one after another. What was finished is safe"):
            outcomes_of(setup, requests)


def test_pictures_that_were_changed_never_end_the_run() -> None:
    bench = Bench(DataError("gone"))
    bad = [picture(bench.table, f"bad {i}", 2) for i in range(2 * FAILED)]
    assert len(failures(outcomes_of(bench.setup(), [picture_request(i, [[1], image, [2]], GREEDY) for i, image in enumerate(bad)]))) == 32

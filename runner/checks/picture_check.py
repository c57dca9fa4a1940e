"""Tries rows with made-up pictures on a loaded model: each alone, and together in the ways that were found right for rows of text.

The pictures are noise in the place of a tower's features, so no pixels are needed. A way that changes logprobs is not taken. A model
that fails on a row alone is refused.
"""

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from ...kernels.logprobs import score
from ..core.arrays import Floats, Ids
from ..core.errors import ModelError, first_line
from ..core.images import FIRST_IMAGE_ID, ImageTable, PromptImage
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Generated, Scored
from ..core.requests import Generate, Passage, Prompt, Request, Sample, Sampling, ScoreRequest
from ..engine.scorer import Scorer
from ..engine.setup import Setup
from ..layers.call_context import READER
from ..layers.kv_cache import make_caches
from ..layers.network import Network
from ..vision.features import FeatureCache, FeatureMaker, ImageFeatures
from .trial import largest_gap, outcomes_of, random_ids, trial_engine, trial_limits

log = logging.getLogger("mlx_bulk")

GRIDS = ((1, 2, 3), (1, 4, 2))  # of the pictures, in tokens
SPREAD = 0.5  # of the noise: norms come first in a block, so that a picture counts as much as a token whatever the weights
STEPS = 4  # decoded tokens
CALLS = (1 << 30, 11)  # tokens of a call at most: a row in one, and in several that cut a picture
_UNSHARED = {"shared_prompts": False, "shared_passages": False}
_WHOLE = _UNSHARED | {"chunked": False}
_ALIKE = _WHOLE | {"ragged": False}
# What is given up until rows together have the logprobs of rows alone, in words of a warning; each holds all before it.
CAUTIONS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("rows share no prefixes", _UNSHARED),
    ("prompts are fed in one call, and share no prefixes", _WHOLE),
    ("prompts of one length are prefilled together", _ALIKE),
    ("one row runs at a time", _ALIKE | {"padded": False, "right_padded": False}),
)


@dataclass
class _NoiseTower:
    """Makes features of noise in the place of those of ``tower``."""

    tower: FeatureMaker

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def width(self) -> int:
        return self.tower.width

    @property
    def levels(self) -> int:
        return self.tower.levels

    def make_ready(self) -> None: ...

    def features(self, image: PromptImage) -> ImageFeatures:
        shape = (1 + self.levels, image.tokens, self.width)
        noise = mx.array((SPREAD * np.random.default_rng(image.tokens).standard_normal(shape)).astype(np.float32))
        return ImageFeatures(noise[0], tuple(noise[1:]))


def tried_with_pictures(setup: Setup, allowed: float, name: str) -> Setup:
    """Returns the setup, or a more cautious one, in which rows with pictures have the logprobs that each has alone.

    allowed: by how much they may differ. name: of the model, for messages. Raises ModelError where a row alone fails.
    """
    assert setup.images is not None, "a setup of rows with pictures"
    table = ImageTable(setup.images.placeholder)
    with noise_in_place_of_features(setup.model):
        rows = list(_rows(table, setup.vocabulary))
        try:
            alone = [_logprobs(setup.model, table, request.prompt.ids) for request in rows]
        except Exception as error:  # a model file may fail in any way
            raise ModelError(f"model.path: {name} cannot read pictures: a row alone fails: {first_line(error)}") from error
        if not all(np.isfinite(each).all() for each in alone):
            raise ModelError(f"model.path: {name} cannot read pictures: the logprobs of a row alone are NaN or infinite")
        for given_up, changes in (("", {}), *CAUTIONS):
            features = replace(setup.features, **changes)
            rows_at_once = 1 if changes.keys() >= CAUTIONS[-1][1].keys() else setup.limits.rows
            found = replace(setup, features=features, limits=replace(setup.limits, rows=rows_at_once, equal_lengths=not features.padded))
            if _difference(found, table, rows) <= allowed:
                if given_up:
                    log.warning("%s: with pictures rows together had other logprobs than alone; so %s", name, given_up)
                return found
    raise ModelError(f"model.path: {name} cannot read pictures: its logprobs differ even in rows that run one by one")


@contextmanager
def noise_in_place_of_features(network: Any) -> Generator[None]:
    """Within this block the network reads noise in the place of its tower's features; the same of two pictures of one size."""
    before = getattr(network, READER)
    object.__setattr__(network, READER, FeatureCache(_NoiseTower(before.tower)))
    try:
        yield
    finally:
        object.__setattr__(network, READER, before)


def made_up_pictures(table: ImageTable) -> tuple[PromptImage, PromptImage]:
    """Returns two pictures of unlike size, which have no pixels."""
    small, large = (table.register(f"noise {grid}", grid[1] * grid[2], grid, dict) for grid in GRIDS)
    return small, large


def _rows(table: ImageTable, vocabulary: int) -> Iterator[Request]:
    """Yields rows with none, one and two pictures. Two begin alike, picture included; one is cut into several calls."""
    small, large = made_up_pictures(table)
    texts = random_ids(np.random.default_rng(5), vocabulary, (5, 3, 9, 30, 4))
    parts: list[list[Ids | PromptImage]] = [
        [texts[0], small, texts[1]],
        [texts[0], small, texts[4]],
        [texts[2]],
        [texts[1], large, texts[4], small, texts[1]],
        [texts[3], small, texts[0]],
    ]
    for row, own in enumerate(parts):
        ids = np.concatenate([part.ids if isinstance(part, PromptImage) else part for part in own])
        images = tuple(part for part in own if isinstance(part, PromptImage))
        work = Generate(Sampling(max_tokens=STEPS, temperature=0.0), (Sample(0, row),))
        yield Request(row, Prompt("", ids, np.zeros_like(ids), images), work)


def _logprobs(network: Any, table: ImageTable, ids: Ids) -> Floats:
    """Returns the logprobs [T - 1] of a row's tokens after its first, alone and in one call; 0 at those of pictures."""
    logits = Network(network, None, table)(ids[None, :-1], make_caches(network, 1, padded=False))[0]
    words = ids[1:] < FIRST_IMAGE_ID
    return np.where(words, score(logits, np.where(words, ids[1:], 0)).logprobs, np.float32(0.0))


def _difference(setup: Setup, table: ImageTable, rows: list[Request]) -> float:
    """Returns the largest difference of a logprob between rows together and each alone; infinite where that fails."""
    try:
        gaps = [_gap(setup, table, rows, tokens) for tokens in CALLS]
        return max(*gaps, *(_scoring_gap(setup, table, rows, tokens) for tokens in CALLS if setup.features.right_padded))
    except Exception as error:  # a model file may fail in any way
        log.debug("rows with pictures together: %s", first_line(error))
        return float("inf")


def _trial(setup: Setup, table: ImageTable, wanted: LogprobOptions, tokens: int) -> Setup:
    limits = replace(trial_limits(1 if setup.limits.rows == 1 else 3, setup.limits.equal_lengths), tokens=tokens)
    return replace(setup, limits=limits, images=table, wanted=wanted, static=False, kv=None, prefix_cache=None, prefill_tokens=tokens)


def _gap(setup: Setup, table: ImageTable, rows: list[Request], tokens: int) -> float:
    worst = 0.0
    for outcome in outcomes_of(trial_engine(_trial(setup, table, LogprobOptions(), tokens)), rows):
        if not isinstance(outcome, Generated):
            return float("inf")
        ids = np.concatenate([rows[outcome.row].prompt.ids, outcome.ids])
        worst = max(worst, largest_gap(outcome.scores.logprobs, _logprobs(setup.model, table, ids)[-len(outcome.ids) :]))
    return worst


def _scoring_gap(setup: Setup, table: ImageTable, rows: list[Request], tokens: int) -> float:
    """The same of passages: of each row its last tokens, given two tokens more or less."""
    requests = [ScoreRequest(row.row, _passages(row.prompt.ids), images=row.prompt.images) for row in rows]
    worst = 0.0
    for outcome in outcomes_of(Scorer(_trial(setup, table, LogprobOptions(echo=True), tokens)), requests):
        if not isinstance(outcome, Scored):
            return float("inf")
        for passage, scores in zip(requests[outcome.row].passages, outcome.scores, strict=True):
            worst = max(worst, largest_gap(scores.logprobs, _logprobs(setup.model, table, passage.ids)[passage.positions - 1]))
    return worst


def _passages(ids: Ids) -> tuple[Passage, ...]:
    """Returns a row's end as two passages that share all before it."""
    whole = np.arange(len(ids) - 2, len(ids), dtype=np.int32)
    other = ids.copy()
    other[-1] = ids[-2]
    return Passage(ids, whole), Passage(other, whole)

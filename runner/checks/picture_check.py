"""Tries rows with made-up pictures on a loaded model: each alone, and together in the ways that were found right for rows of text.

The pictures are noise in the place of a tower's features, so no pixels are needed. A way that changes logprobs is not taken. A model
that fails on a row alone is refused. Where nobody compared a model type with transformers, real pictures are shown, and mlx-vlm's whole
model judges.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from ...kernels.logprobs import score
from ..core.arrays import Floats, Ids
from ..core.errors import ModelError, first_line
from ..core.images import FIRST_IMAGE_ID, ImageTable, PromptImage, not_compared
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Generated, Scored
from ..core.requests import Generate, Passage, Prompt, Request, Sample, Sampling, ScoreRequest
from ..engine.setup import Setup
from ..layers.kv_cache import make_caches
from ..layers.network import Network
from ..patched_layers.call_context import READER
from ..scoring.scorer import Scorer
from ..vision.features import FeatureCache, FeatureMaker, ImageFeatures
from ..vision.uncompared import UncomparedType
from ..vision.whole_models import WholeModel, open_whole_model
from .padding_probe import PROMISE
from .trial import largest_gap, outcomes_of, random_ids, trial_engine, trial_limits

log = logging.getLogger("mlx_bulk")

GRIDS = ((1, 2, 3), (1, 4, 2))  # of the pictures, in tokens
SPREAD = 0.5  # of the noise: norms come first in a block, so that a picture counts as much as a token whatever the weights
STEPS = 4  # decoded tokens
LENGTHS = (5, 3, 9, 30, 4, 15, 35)  # of the texts in the rows
ROWS = 4  # at once: as many as two prompts with two answers each need to share a call
SEEN = 4  # times as much as rounding may move logprobs, another picture does
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


@dataclass(frozen=True, slots=True)
class _Trial:
    """Rows with pictures, and by what they are judged.

    alone: returns the logprobs [T - 1] of a row's tokens after its first, 0 at those of pictures. calls: tokens of a call at most, tried
    one after the other.
    """

    table: ImageTable
    rows: list[Request]
    alone: Callable[[Ids], Floats]
    calls: tuple[int, ...]


def tried_with_pictures(setup: Setup, allowed: float, name: str, uncompared: UncomparedType | None = None) -> Setup:
    """Returns the setup, or a more cautious one, in which rows with pictures have the logprobs that each has alone.

    allowed: by how much they may differ. name: of the model, for messages. uncompared: the checkpoint of a model type that nobody compared
    with transformers; its rows must have the logprobs of mlx-vlm's whole model. Raises ModelError where a row alone fails.
    """
    assert setup.images is not None, "a setup of rows with pictures"
    table = ImageTable(setup.images.placeholder)
    if uncompared is not None:
        try:
            found = _cautious(setup, allowed, name, _judged_by(open_whole_model(uncompared), setup, allowed, table))
        except ModelError as error:
            raise ModelError(f"model.path: {name} ({uncompared.kind}) cannot read pictures: {error}") from error
        finally:
            mx.clear_cache()  # of a second copy of the weights
        log.warning("%s: %s", name, not_compared(uncompared.kind))
        return found
    with noise_in_place_of_features(setup.model):
        pictures = [(image.ids, image) for image in made_up_pictures(table)]
        rows = list(_rows(pictures, random_ids(np.random.default_rng(5), setup.vocabulary, LENGTHS), {}))
        trial = _Trial(table, rows, lambda ids: _logprobs(setup.model, table, ids), CALLS)
        try:
            alone = [trial.alone(request.prompt.ids) for request in rows]
        except Exception as error:  # a model file may fail in any way
            raise ModelError(f"model.path: {name} cannot read pictures: a row alone fails: {first_line(error)}") from error
        if not all(np.isfinite(each).all() for each in alone):
            raise ModelError(f"model.path: {name} cannot read pictures: the logprobs of a row alone are NaN or infinite")
        try:
            return _cautious(setup, allowed, name, trial)
        except ModelError as error:
            raise ModelError(f"model.path: {name} cannot read pictures: {error}") from error


def _cautious(setup: Setup, allowed: float, name: str, trial: _Trial) -> Setup:
    """Gives up what changes logprobs of the trial's rows. Raises ModelError where they differ in rows that run one by one."""
    for given_up, changes in (("", {}), *CAUTIONS):
        features = replace(setup.features, **changes)
        rows_at_once = 1 if changes.keys() >= CAUTIONS[-1][1].keys() else setup.limits.rows
        found = replace(setup, features=features, limits=replace(setup.limits, rows=rows_at_once, equal_lengths=not features.padded))
        if _difference(found, trial) <= allowed:
            if given_up:
                log.warning("%s: with pictures rows together had other logprobs than alone; so %s", name, given_up)
            return found
    raise ModelError("its logprobs differ even in rows that run one by one")


def _judged_by(whole: WholeModel, setup: Setup, allowed: float, table: ImageTable) -> _Trial:
    """Returns a trial with real pictures, judged by mlx-vlm's ``whole`` model. Raises ModelError where a row alone differs from that."""
    small, large, other = whole.pictures(table)
    rng, words = np.random.default_rng(5), whole.words()
    texts = [rng.choice(words[words < setup.vocabulary], length) for length in LENGTHS]
    rows = list(_rows([small, large], texts, {table.placeholder: -1e4}))  # a placeholder that it writes itself would have no picture
    worst, features = 0.0, getattr(setup.model, READER)
    for ids, images in ((request.prompt.ids, request.prompt.images) for request in rows):
        try:
            theirs, ours = whole.logprobs(ids, table), _logprobs(setup.model, table, ids)
        except ModelError:
            raise
        except Exception as error:  # a model file may fail in any way
            raise ModelError(f"a row alone fails: {first_line(error)}") from error
        if (unread := features.unread(images)) is not None:
            raise ModelError(str(unread))
        if not np.isfinite(theirs).all():
            raise ModelError("mlx-vlm's logprobs of a row alone are NaN or infinite")
        worst = max(worst, largest_gap(ours, theirs))
    if worst > allowed:
        cure = "" if allowed <= PROMISE else "; with model.dtype: float32 rounding counts less"
        raise ModelError(f"a row alone has other logprobs than in mlx-vlm, by {worst:.2g} (allowed {allowed:.2g}){cure}")
    changed = np.concatenate([texts[0], other[0], texts[1]]).astype(np.int32)
    if largest_gap(whole.logprobs(changed, table), whole.logprobs(rows[0].prompt.ids, table)) <= SEEN * allowed:
        raise ModelError("another picture of the same size does not change its logprobs")
    longest = max(len(request.prompt.ids) for request in rows)
    return _Trial(table, rows, lambda ids: whole.logprobs(ids, table), (CALLS[0], max(CALLS[1], longest // 4)))


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


def _rows(pictures: Sequence[tuple[Ids, PromptImage]], texts: Sequence[Ids], bias: dict[int, float]) -> Iterator[Request]:
    """Yields rows with none, one and two pictures. Two begin alike, picture included; one is cut into several calls.

    The last three are long enough for two passages to share what is before them. The last ends where the one before it has a picture.

    pictures: two of unlike size, with the ids that fill their places. texts: of the lengths ``LENGTHS``. bias: of logits.
    """
    small, large = pictures
    parts: list[list[Ids | tuple[Ids, PromptImage]]] = [
        [texts[0], small, texts[1]],
        [texts[0], small, texts[4]],
        [texts[2]],
        [texts[1], large, texts[4], small, texts[5]],
        [texts[3], small, texts[0]],
        [texts[6]],
    ]
    for row, own in enumerate(parts):
        ids = np.concatenate([part[0] if isinstance(part, tuple) else part for part in own]).astype(np.int32)
        images = tuple(part[1] for part in own if isinstance(part, tuple))
        work = Generate(Sampling(max_tokens=STEPS, temperature=0.0, logit_bias=bias), (Sample(0, row),))
        yield Request(row, Prompt("", ids, np.zeros_like(ids), images), work)


def _logprobs(network: Any, table: ImageTable, ids: Ids) -> Floats:
    """Returns the logprobs [T - 1] of a row's tokens after its first, alone and in one call; 0 at those of pictures."""
    logits = Network(network, None, table)(ids[None, :-1], make_caches(network, 1, padded=False))[0]
    words = ids[1:] < FIRST_IMAGE_ID
    return np.where(words, score(logits, np.where(words, ids[1:], 0)).logprobs, np.float32(0.0))


def _difference(setup: Setup, trial: _Trial) -> float:
    """Returns the largest difference of a logprob between rows together and each alone; infinite where that fails."""
    try:
        gaps = [_gap(setup, trial, tokens) for tokens in trial.calls]
        return max(*gaps, *(_scoring_gap(setup, trial, tokens) for tokens in trial.calls if setup.features.right_padded))
    except Exception as error:  # a model file may fail in any way
        log.debug("rows with pictures together: %s", first_line(error))
        return float("inf")


def _trial(setup: Setup, table: ImageTable, wanted: LogprobOptions, tokens: int) -> Setup:
    limits = replace(trial_limits(1 if setup.limits.rows == 1 else ROWS, setup.limits.equal_lengths), tokens=tokens)
    return replace(setup, limits=limits, images=table, wanted=wanted, static=False, kv=None, prefix_cache=None, prefill_tokens=tokens)


def _gap(setup: Setup, trial: _Trial, tokens: int) -> float:
    worst, rows = 0.0, trial.rows
    for outcome in outcomes_of(trial_engine(_trial(setup, trial.table, LogprobOptions(), tokens)), rows):
        if not isinstance(outcome, Generated):
            return float("inf")
        ids = np.concatenate([rows[outcome.row].prompt.ids, outcome.ids])
        worst = max(worst, largest_gap(outcome.scores.logprobs, trial.alone(ids)[-len(outcome.ids) :]))
    return worst


def _scoring_gap(setup: Setup, trial: _Trial, tokens: int) -> float:
    """The same of passages: of each row its last tokens, and others in their place."""
    requests = [ScoreRequest(row.row, _passages(row.prompt.ids), images=row.prompt.images) for row in trial.rows]
    worst = 0.0
    for outcome in outcomes_of(Scorer(_trial(setup, trial.table, LogprobOptions(echo=True), tokens)), requests):
        if not isinstance(outcome, Scored):
            return float("inf")
        for passage, scores in zip(requests[outcome.row].passages, outcome.scores, strict=True):
            worst = max(worst, largest_gap(scores.logprobs, trial.alone(passage.ids)[passage.positions - 1]))
    return worst


def _passages(ids: Ids) -> tuple[Passage, ...]:
    """Returns a row's last two tokens as a passage, and another one, on top of the tokens before them that both share."""
    end = np.arange(len(ids) - 2, len(ids), dtype=np.int32)
    other = ids.copy()
    other[-2:] = ids[-1], ids[-2]
    return Passage(ids, end), Passage(other, end)

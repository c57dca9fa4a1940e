"""Rows with pictures against transformers in float32 on the CPU, each row alone there. Files of both of its dialects."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.caches.image_blocks import uncut
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID, ImageTable, PromptImage
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Passage, Request, Sampling, ScoreRequest
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kv_cache import make_caches, prepare_padding
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import LanguageModel, load_model
from mlx_bulk.runner.scoring.reference_logprobs import Finished, Reference
from numpy.typing import NDArray

from ...checkpoints import PLENTY
from ...vision_checkpoints import VisionModel, write_old_names, write_vision_model
from ...vision_configs import END, FAMILIES, ONLY_NEW, PLACEHOLDER, START, TILE_TOKENS
from ..support.made_up_pictures import PictureTile, picture_ids, picture_request, pictures_of
from ..support.tiny_runs import run, scored, setup_of

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

NAMED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3", "smolvlm", "llava")
FAR = 3e-5  # what is measured is 1e-5
WIDE = ("aya_vision",)  # logprobs spread by 2.0, those of others by 1.0 to 1.3, and rounding with them: mlx's own layers are 2.6e-5 off
GATED = ("qwen3_5", "qwen3_5_moe")
SUMMED = 1e-4  # for gated delta rules, which transformers sums in blocks and we token by token; what is measured is 5e-5. Of a whole
# vocabulary's logprobs there, transformers' own in float32 are up to 1.1e-4 from those in float64
TOKENS = 8  # decoded
Row = list[list[int] | PromptImage | PictureTile]
NO_PLACEHOLDER = {PLACEHOLDER: -1e4}  # transformers takes one that a model writes itself for a picture's
HOT = Sampling(max_tokens=TOKENS, temperature=1.0, logit_bias=NO_PLACEHOLDER)


@dataclass
class Bench:
    """A loaded checkpoint, transformers' model of it, and rows with none, one and two pictures of unlike sizes."""

    made: VisionModel
    model: LanguageModel
    table: ImageTable
    rows: list[Row]

    @property
    def far(self) -> float:
        """By how much logprobs may differ."""
        return SUMMED if self.made.family in GATED else 2 * FAR if self.made.family in WIDE else FAR

    def setup(self, **more: Any) -> Setup:
        return setup_of(self.model.network, images=self.table, **more)

    def requests(self, sampling: Sampling | None = None, samples: int = 1) -> list[Request]:
        greedy = sampling or Sampling(max_tokens=TOKENS, temperature=0.0, logit_bias=NO_PLACEHOLDER)
        return [picture_request(i, row, greedy, samples) for i, row in enumerate(self.rows)]


def places(family: str, image: PromptImage) -> Row:
    """A picture's place in a row, with the marks of its tiles in Idefics 3."""
    if family not in ("idefics3", "smolvlm") or image.tokens == TILE_TOKENS:
        return [[START], image]
    return [
        part for at in range(0, image.tokens, TILE_TOKENS) for part in ([START, 281 + at % 7], PictureTile(image, at, at + TILE_TOKENS))
    ]


def opened(made: VisionModel, folder: Path, table: ImageTable | None = None) -> Bench:
    config = ModelConfig(path=str(folder))
    model = load_model(config, find_checkpoint(config), PLENTY, pictures=True)
    table, rng = table or ImageTable(PLACEHOLDER), np.random.default_rng(0)
    specs = [
        (5, [(2, 3)], 7),
        (3, [(4, 2)], 20),
        (9, [], 11),
        (2, [(1, 1), (3, 2)], 4),
        (12, [(2, 2)], 3),
        (1, [], 2),
        (5, [(2, 3), (2, 3)], 3),
    ]
    rows: list[Row] = []
    for before, sizes, after in specs:
        row: Row = [rng.integers(5, 280, before).tolist()]
        for seed, (height, width) in enumerate(sizes):
            again = sizes[0] == sizes[-1]
            own = made.picture(table, height, width, 0 if again else seed)
            row += [*places(made.family, own), [END, *rng.integers(5, 280, 2).tolist()]]
        rows.append([*row, rng.integers(5, 280, after).tolist()])
    rows.append([*rows[0][:-2], [END, 17, 18]])  # shares the first row's beginning, its picture included
    return Bench(made, model, table, rows)


@pytest.fixture(scope="module", params=FAMILIES, name="bench")
def a_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp(request.param)
    return opened(made := write_vision_model(request.param, folder / "new"), made.folder)


def gaps(bench: Bench, requests: list[Request], setup: Setup) -> list[float]:
    """How far each completion's logprobs, and its echo's, are from transformers' of the whole row in one call."""
    found: list[float] = []
    for outcome in run(setup, requests):
        ids = requests[outcome.row].prompt.ids
        whole = np.concatenate([ids, outcome.ids])
        truth = bench.made.logprobs(whole, bench.table)[np.arange(len(whole) - 1), np.where(whole < FIRST_IMAGE_ID, whole, 0)[1:]]
        words = ids[1:] < FIRST_IMAGE_ID
        found.append(float(np.abs(outcome.scores.logprobs - truth[len(ids) - 1 :]).max()))
        if outcome.echo is not None:
            found.append(float(np.abs(outcome.echo.logprobs - truth[: len(ids) - 1])[words].max(initial=0)))
    return found


def full(logits: mx.array) -> NDArray[np.float64]:
    """Log-softmax [T, V] of logits."""
    x = np.array(logits).astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("bench", [family for family in FAMILIES if family not in GATED], indirect=True)
def test_the_whole_vocabulary_at_every_position(bench: Bench) -> None:
    """Of rows alone in one call, and of padded rows in two calls."""
    rows = [np.array(picture_ids(*row), np.int32) for row in bench.rows]
    lengths, width = [len(row) for row in rows], max(map(len, rows))
    tokens = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    network, body = Network(bench.model.network, None, bench.table), bench.model.network
    caches = make_caches(body, len(rows), padded=True)
    prepare_padding(caches, lengths, width)
    end = uncut(body, tokens, 20)
    calls = [network(tokens[:, :end], caches, lengths=lengths), network(tokens[:, end:], caches, lengths=[n - end for n in lengths])]
    together = mx.concatenate(calls, axis=1)
    for row, ids in enumerate(rows):
        truth, alone = bench.made.logprobs(ids, bench.table), network(ids[None], make_caches(body, 1, padded=False))[0]
        assert truth.std() > 0.5
        for found in (full(alone), full(together[row, : len(ids)])):
            assert np.abs(found - truth).max() <= bench.far


WAYS: dict[str, dict[str, Any]] = {
    "ragged": {},
    "in calls of few tokens": {"tokens": 12},
    "joined": {"way": "joined"},
    "rows of one length": {"way": "exact"},
    "alone": {"way": "alone"},
    "two at a time, join and leave": {"rows": 2, "tokens": 24},
    "shared prefixes": {"shared_prompts": True, "rows": 8},
    "without an echo": {"wanted": LogprobOptions()},
}


def test_no_token_is_certain(bench: Bench) -> None:
    """Where one is, its logprob is 0 whatever a wrong position, mask or feature does."""
    done = run(bench.setup(), bench.requests())
    assert max(float(outcome.scores.logprobs.min()) for outcome in done) < -0.1


@pytest.mark.parametrize("way", WAYS)
def test_completions_and_echo(bench: Bench, way: str) -> None:
    assert max(gaps(bench, bench.requests(), bench.setup(**WAYS[way]))) <= bench.far


def test_samples_of_each_row(bench: Bench) -> None:
    drawn = bench.requests(HOT, samples=3)
    assert max(gaps(bench, drawn, bench.setup())) <= bench.far


@pytest.mark.parametrize("tokens", [12, 64])
def test_scored_passages_on_shared_prefixes(bench: Bench, tokens: int) -> None:
    requests: list[ScoreRequest] = []
    for number, row in enumerate(bench.rows):
        prompt = picture_ids(*row)
        whole = [np.array([*prompt, *answer], np.int32) for answer in ([7], [8, 9], [10, 11, 12])]
        passages = tuple(Passage(ids, np.arange(len(prompt), len(ids), dtype=np.int32)) for ids in whole)
        requests.append(ScoreRequest(number, passages, images=pictures_of(row)))
    for request, outcome in zip(requests, scored(bench.setup(tokens=tokens), requests), strict=True):
        for passage, scores in zip(request.passages, outcome.scores, strict=True):
            truth = bench.made.logprobs(passage.ids, bench.table)[passage.positions - 1, passage.ids[passage.positions]]
            assert np.abs(scores.logprobs - truth).max() <= bench.far


@pytest.mark.parametrize("bench", NAMED, indirect=True)
def test_rollouts_with_another_model_as_their_reference(bench: Bench, tmp_path: Path) -> None:
    """Prompts of unlike lengths share batches of the reference: the shortest ends within the second's picture."""
    second, rng = opened(write_vision_model(bench.made.family, tmp_path, seed=2), tmp_path, bench.table), np.random.default_rng(1)
    rows: list[Row] = []
    for before, sizes, after in [(20, [], 0), (17, [(2, 3)], 10), (12, [(1, 1), (3, 2)], 10), (22, [(2, 2)], 5)]:
        row: Row = [rng.integers(5, 280, before).tolist()]
        for height, width in sizes:
            row += [*places(bench.made.family, bench.made.picture(bench.table, height, width, 3)), [END, 6]]
        rows.append([*row, rng.integers(5, 280, after).tolist()])
    requests = [picture_request(i, row, HOT, 2) for i, row in enumerate(rows)]
    policy = bench.setup(rows=8, wanted=LogprobOptions())
    drawn = [Finished(requests[one.row], one) for one in run(policy, requests)]
    for tokens in (24, 512):
        setup = second.setup(rows=8, tokens=tokens, wanted=LogprobOptions())
        found = [one for one in Reference(setup, own=False).logprobs(drawn, lambda: False) if isinstance(one, Generated)]
        assert len(found) == 2 * len(rows)
        for one in found:
            ids = np.concatenate([requests[one.row].prompt.ids, one.ids])
            at = np.arange(len(ids) - len(one.ids) - 1, len(ids) - 1)
            ours, theirs = (model.logprobs(ids, bench.table)[at, one.ids] for model in (bench.made, second.made))
            assert one.ref_logprobs is not None
            assert np.abs(ours - theirs).max() > 0.1
            assert np.abs(one.scores.logprobs - ours).max() <= bench.far
            assert np.abs(one.ref_logprobs - theirs).max() <= bench.far


def test_the_tower_is_called_once_a_picture(bench: Bench) -> None:
    features = bench.model.features
    assert features is not None
    features.clear()
    before = features.calls
    run(bench.setup(), bench.requests())
    pictures = {image.digest for row in bench.rows for image in pictures_of(row)}
    assert features.calls - before == len(pictures)


def test_names_of_transformers_4(bench: Bench, tmp_path: Path) -> None:
    if bench.made.family in ONLY_NEW:
        pytest.skip("it came with transformers 5")
    old = opened(bench.made, write_old_names(bench.made, tmp_path / "old"))
    assert max(gaps(old, old.requests()[:5], old.setup())) <= bench.far

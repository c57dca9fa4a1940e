"""Rows with pictures in batches, calls and caches of all kinds, against mlx-lm's layers with plainly specified positions and masks."""

from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_bulk.kernels import native
from mlx_bulk.runner.caches.image_blocks import attend_in_blocks
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID, ImageTable, PromptImage
from mlx_bulk.runner.core.kv_quantization import KVQuantization
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Passage, Request, Sample, Sampling, ScoreRequest
from mlx_bulk.runner.engine.prefix_disk_cache import PrefixCache
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kernel_injection import only_inside
from mlx_bulk.runner.layers.kv_cache import make_caches, needs_no_caches
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.patched_layers.deepstack import add_deepstack
from mlx_bulk.runner.patched_layers.rope_layers import Sections, turn_by_sections
from mlx_bulk.runner.scoring.reference_logprobs import Finished, Reference
from mlx_bulk.runner.vision.features import FeatureCache
from mlx_bulk.runner.vision.image_embedding import read_pictures_with
from numpy.typing import NDArray

from ..support import tiny
from ..support.made_up_pictures import PLACEHOLDER, picture_ids, picture_request
from ..support.picture_truth import StackedNoise, picture_truth
from ..support.tiny_runs import multiple_choice, run, scored, setup_of

FLAT = 1e-4  # float32's rounding; a picture's wrong position or mask moves logprobs by more than 0.05
TEXT: dict[str, Any] = {
    "vocab_size": tiny.VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
KINDS: dict[str, tuple[Sections | None, dict[str, Any]]] = {
    "qwen2_vl": (Sections((4, 6, 6)), {"model_type": "qwen2"}),
    "qwen3_vl": (Sections((6, 6, 4), turns=True), {"model_type": "qwen3"}),
    "gemma3": (None, {"model_type": "gemma3_text", "sliding_window": 6, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}),
}
LEVELS = 2
Parts = list[list[int] | PromptImage]


def made(kind: str) -> Any:
    module = import_module(f"mlx_lm.models.{kind}")
    mx.random.seed(0)
    text = TEXT | KINDS[kind][1]
    network = module.Model(module.ModelArgs.from_dict({"model_type": kind, "vocab_size": tiny.VOCABULARY, "text_config": text}))
    network.update(tree_map(lambda w: 3 * w if w.ndim > 1 else w + 0.2 * mx.random.normal(w.shape), network.parameters()))
    mx.eval(network.parameters())
    return network.eval()


class Bench:
    """A tiny network that attends to made-up pictures, the same without anything of ours for the truth, and rows."""

    def __init__(self, kind: str):
        self.kind, (sections, _) = kind, KINDS[kind]
        self.network, self._plain = made(kind), made(kind)
        self.axes = None if sections is None else sections.axes
        self.tower = StackedNoise(64, LEVELS if kind == "qwen3_vl" else 0, 1.0 if sections else 0.5)
        if sections is None:
            attend_in_blocks(self.network)
        else:
            turn_by_sections(self.network, sections)
        add_deepstack(self.network, self.tower.levels)
        self.table = ImageTable(PLACEHOLDER)
        read_pictures_with(self.network, FeatureCache(self.tower))
        a, b, c = (self.table.register(f"{h} {w}", h * w, (1, h, w), dict) for h, w in ((2, 3), (1, 1), (4, 2)))
        self.rows: list[Parts] = [
            [[1, 5], a, [7, 8, 30]],
            [[1, 2, 3, 4, 5, 6, 7, 11, 12]],
            [[1], c, [12], b, [40, 41]],
            [c, a, [3, 9, 9, 9, 4]],
            [[1, 5], a, [7, 9]],
            [[2, 60], b],
        ]
        if kind == "gemma3":  # whose pictures end before the token that is left to the first step
            self.rows[-1] = [[2, 60], b, [3]]

    def setup(self, **more: Any) -> Setup:
        return setup_of(self.network, images=self.table, **more)

    def requests(self, temperature: float = 0.0) -> list[Request]:
        return [picture_request(i, row, Sampling(max_tokens=8, temperature=temperature)) for i, row in enumerate(self.rows)]

    def truth(self, ids: Any) -> NDArray[np.float64]:
        return picture_truth(self._plain, self.table, self.tower, np.array(ids, np.int32), self.axes)

    def check(self, setup: Setup, far: float = FLAT) -> None:
        """Echo and completion of all rows."""
        requests = self.requests()
        for request, outcome in zip(requests, run(setup, requests), strict=True):
            prompt = request.prompt.ids
            ids = np.concatenate([prompt, outcome.ids])
            truth, words = self.truth(ids), np.flatnonzero(prompt[1:] < FIRST_IMAGE_ID)
            at = np.concatenate([words, np.arange(len(prompt) - 1, len(ids) - 1)])
            assert outcome.echo is not None
            found = np.concatenate([outcome.echo.logprobs[words], outcome.scores.logprobs])
            np.testing.assert_allclose(found, truth[at, ids[at + 1]], rtol=0, atol=far)


KERNELS = [False, pytest.param(True, marks=pytest.mark.skipif(native.library() is None, reason="they serve the CPU, with g++"))]


@pytest.fixture(name="bench", params=KINDS)
def a_bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, marks=pytest.mark.slow, id="ragged"),
        pytest.param({"chunked": True, "tokens": 8, "rows": 3}, id="in calls"),
        pytest.param({"way": "exact", "chunked": True, "tokens": 6}, marks=pytest.mark.slow, id="exact"),
        pytest.param({"shared_prompts": True, "chunked": True, "rows": 6}, id="shared"),
    ],
)
def test_completions_and_echo(bench: Bench, more: dict[str, Any], kernels: bool) -> None:
    if kernels:
        with only_inside([bench.network])():
            bench.check(bench.setup(**more))
            plain = bench.kind != "gemma3" or more.get("way") == "exact"  # its layers without a window, on caches of rows of one length
            assert ("block" in context_of(bench.network).used) == plain
    else:
        bench.check(bench.setup(**more))


@pytest.mark.parametrize("kernels", KERNELS)
def test_answers_are_scored_on_shared_prefixes(bench: Bench, kernels: bool) -> None:
    requests: list[ScoreRequest] = []
    for number, row in enumerate(bench.rows):
        prompt = picture_ids(*row)
        whole = [np.array([*prompt, *answer], np.int32) for answer in ([50], [51, 52], [51, 9, 9])]
        passages = tuple(Passage(ids, np.arange(len(prompt), len(ids), dtype=np.int32)) for ids in whole)
        requests.append(ScoreRequest(number, passages))
    if kernels:
        with only_inside([bench.network])():
            assert needs_no_caches(bench.network) == (bench.kind != "gemma3")
            outcomes = scored(bench.setup(chunked=True, tokens=16), requests)
    else:
        outcomes = scored(bench.setup(chunked=True, tokens=16), requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        for passage, scores in zip(request.passages, outcome.scores, strict=True):
            truth = bench.truth(passage.ids)[passage.positions - 1, passage.ids[passage.positions]]
            np.testing.assert_allclose(scores.logprobs, truth, rtol=0, atol=FLAT)


def unlike_lengths(bench: Bench) -> list[Parts]:
    """Prompts that scoring cuts to one length, which may lie within a picture."""
    a, c = bench.rows[0][1], bench.rows[2][1]
    return [[[*range(5, 25)]], [[*range(40, 58)], a, [*range(60, 70)]], [[*range(20, 33)], c, [34, 35], a, [*range(3, 12)]]]


def test_answers_to_prompts_of_unlike_length_are_scored(bench: Bench) -> None:
    prompts = [picture_ids(*row) for row in unlike_lengths(bench)]
    requests = multiple_choice(prompts, [[[50, 3], [51, 52, 9]]] * 3)
    for request, outcome in zip(requests, scored(bench.setup(chunked=True, rows=6, tokens=512), requests), strict=True):
        for passage, scores in zip(request.passages, outcome.scores, strict=True):
            truth = bench.truth(passage.ids)[passage.positions - 1, passage.ids[passage.positions]]
            np.testing.assert_allclose(scores.logprobs, truth, rtol=0, atol=FLAT)


def test_samples_of_prompts_of_unlike_length_have_their_references_logprobs(bench: Bench) -> None:
    bench.rows = unlike_lengths(bench)
    requests = [replace(one, work=replace(one.work, samples=(Sample(0, 0), Sample(1, 1)))) for one in bench.requests(temperature=1.0)]
    setup = bench.setup(chunked=True, rows=6, tokens=512, wanted=LogprobOptions())
    drawn = [Finished(requests[one.row], one) for one in run(setup, requests)]
    found = [one for one in Reference(setup, own=True).logprobs(drawn, lambda: False) if isinstance(one, Generated)]
    assert len(found) == 6
    for one in found:
        ids = np.concatenate([requests[one.row].prompt.ids, one.ids])
        assert one.ref_logprobs is not None
        truth = bench.truth(ids)[-len(one.ids) - 1 : -1][np.arange(len(one.ids)), one.ids]
        np.testing.assert_allclose(one.ref_logprobs, truth, rtol=0, atol=FLAT)


def test_a_call_of_a_part_of_a_picture_is_refused_where_it_sees_itself_both_ways(bench: Bench) -> None:
    row = np.array(picture_ids(*bench.rows[0])[:5], np.int32)
    network = Network(bench.network, None, bench.table)
    if bench.kind == "gemma3":
        with pytest.raises(ValueError, match="a call of the model cuts the picture 2 3: expected all 6 tokens"):
            network(row[None], None)
    else:
        mx.eval(network(row[None], None))


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_rows_bits_do_not_depend_on_the_pictures_of_others(bench: Bench, kernels: bool) -> None:
    words, picture, others = [*range(3, 12)], picture_ids(*bench.rows[0])[:9], [*range(40, 49)]
    found: list[list[mx.array]] = []
    with only_inside([bench.network])() if kernels else nullcontext():
        for mate in (picture, others):
            caches = make_caches(bench.network, 2, padded=True)
            network = Network(bench.network, None, bench.table)
            found.append([network(np.array([words, mate], np.int32), caches)[0], network(mx.array([[5], [6]]), caches)[0]])
            mx.eval(found)
    for one, other in zip(*found, strict=True):
        assert mx.array_equal(one, other)


def test_a_wrong_position_or_mask_would_show(bench: Bench) -> None:
    row = np.array(picture_ids(*bench.rows[0]), np.int32)
    plain = made(bench.kind)
    read_pictures_with(plain, FeatureCache(bench.tower))
    logits = Network(plain, None, bench.table)(row[None], None)[0]
    gap = np.abs(np.array(logits - mx.logsumexp(logits, -1, keepdims=True)) - bench.truth(row)).max(-1)
    assert gap[:2].max() < FLAT or bench.kind == "gemma3"
    assert gap[-1] > 0.05


def test_quantized_keys_stand_beside_positions(bench: Bench) -> None:
    """Eight bits move logprobs by some hundredths; positions that these rows would have as text move them further."""
    bench.check(bench.setup(kv=KVQuantization(8, 32), chunked=True), far=0.1)
    caches = make_caches(bench.network, 2, padded=True, kv=KVQuantization(8, 32))
    assert [type(cache).__name__ for cache in caches].count("RowPositions") == (bench.kind != "gemma3")


def test_prefixes_of_text_are_kept_on_disk_and_those_with_pictures_are_not(bench: Bench, tmp_path: Path) -> None:
    stem = [*range(20, 90)]
    a = bench.rows[0][1]
    bench.rows = [[stem, a, [i, 7, 8]] for i in (1, 2)] + [[stem, [i, 7, 8]] for i in (3, 4)]
    for read in (0, 1):
        kept = PrefixCache.opened(tmp_path, {"weights": bench.kind})
        bench.check(bench.setup(shared_prompts=True, chunked=True, prefix_cache=kept, rows=6, tokens=512))
        assert (kept.read, kept.kept) == (read, 1 - read)


def test_a_run_without_an_echo_has_the_same_tokens(bench: Bench) -> None:
    with_echo, without = (run(bench.setup(wanted=LogprobOptions(echo=echo)), bench.requests()) for echo in (True, False))
    assert [one.ids.tolist() for one in with_echo] == [one.ids.tolist() for one in without]


def test_deterministic_scores_do_not_depend_on_pictures_of_other_rows(bench: Bench) -> None:
    setup, a = bench.setup(chunked=True, tokens=16, rows=2, static=True), bench.rows[0][1]
    text = [[*range(20, 44)]]
    found: set[bytes] = set()
    for other in ([[1, 2, 3, 4, 5], a, [*range(12, 25)]], [[1, 2], [*range(30, 52)]]):
        ids = [np.array(picture_ids(*parts), np.int32) for parts in (text, other)]
        requests = [ScoreRequest(row, (Passage(each, np.arange(20, 24, dtype=np.int32)),)) for row, each in enumerate(ids)]
        found.add(scored(setup, requests)[0].scores[0].logprobs.tobytes())
    assert len(found) == 1

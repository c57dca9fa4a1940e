"""Rows with pictures through the engine and the scorer, against the network's own logits of whole embeddings."""

import copy
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Passage, Request, Sampling, ScoreRequest
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kernel_injection import restore
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers
from mlx_bulk.runner.scoring.reference_logprobs import Finished, Reference
from mlx_bulk.runner.vision.features import FeatureCache
from mlx_bulk.runner.vision.image_embedding import read_pictures_with

from ..support.made_up_pictures import PLACEHOLDER, NoiseTower, picture, picture_ids, picture_request, true_logprobs
from ..support.tiny import as_it_came
from ..support.tiny_runs import run, scored, setup_of

FLAT = 1e-4  # float32's rounding; a picture at a wrong place moves logprobs by more than 1


class Bench:
    """A tiny network that reads made-up pictures, and rows that hold some."""

    def __init__(self, family: str = "llama", most_bytes: int = 1 << 30):
        self.network: Any = as_it_came(family)
        self.tower, self.table = NoiseTower(), ImageTable(PLACEHOLDER)
        self.cache = FeatureCache(self.tower, most_bytes)
        read_pictures_with(self.network, self.cache)
        self.a, self.b, self.c = picture(self.table, "a", 6), picture(self.table, "b", 3), picture(self.table, "c", 11)
        self.rows: list[list[list[int] | PromptImage]] = [
            [[1, 5], self.a, [7, 8, 30]],
            [[1, 2, 3, 4, 5, 6, 7]],
            [[1], self.c, [12], self.b, [40, 41]],
            [self.a, [3], self.a, [4]],
            [[1, 5], self.a, [7, 9]],
            [[2, 60], self.b],
        ]

    def requests(self, sampling: Sampling | None = None, samples: int = 1) -> list[Request]:
        return [picture_request(i, row, sampling or Sampling(max_tokens=8, temperature=0.0), samples) for i, row in enumerate(self.rows)]

    def setup(self, **more: Any) -> Setup:
        return setup_of(self.network, images=self.table, **more)

    def truth(self, ids: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        return true_logprobs(self.network, self.table, NoiseTower(), ids)


@pytest.fixture(name="bench")
def a_bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("more", [{}, {"tokens": 4}, {"way": "joined"}, {"way": "alone"}, {"rows": 2}, {"shared_prompts": True}])
def test_completions_and_echo_have_the_networks_own_logprobs(bench: Bench, more: dict[str, Any]) -> None:
    requests = bench.requests()
    done = run(bench.setup(**more), requests)
    for request, outcome in zip(requests, done, strict=True):
        ids = np.concatenate([request.prompt.ids, outcome.ids])
        truth, words = bench.truth(ids), request.prompt.ids[1:] < 1 << 24
        at, n = np.arange(len(ids) - 1), len(request.prompt.ids)
        assert outcome.echo is not None
        assert np.isnan(outcome.echo.logprobs).tolist() == (~words).tolist()
        mine = np.concatenate([outcome.echo.logprobs[words], outcome.scores.logprobs])
        kept = np.concatenate([words, np.ones(len(outcome.ids), bool)])
        np.testing.assert_allclose(mine, truth[at[kept], ids[1:][kept]], rtol=0, atol=FLAT)
        assert outcome.ids.tolist() == truth[n - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3", "qwen3_moe"])
def test_other_bodies_read_pictures_too(family: str) -> None:
    bench = Bench(family)
    requests = bench.requests()[:3]
    for request, outcome in zip(requests, run(bench.setup(wanted=LogprobOptions()), requests), strict=True):
        ids = np.concatenate([request.prompt.ids, outcome.ids])
        truth = bench.truth(ids)[len(request.prompt.ids) - 1 : -1]
        np.testing.assert_allclose(outcome.scores.logprobs, truth[np.arange(len(truth)), outcome.ids], rtol=0, atol=2e-4)


def test_top_and_ranks_of_the_echo_leave_pictures_out(bench: Bench) -> None:
    (outcome,) = run(bench.setup(wanted=LogprobOptions(echo=True, top=3, stats=True)), bench.requests()[:1])
    assert outcome.echo is not None
    assert outcome.echo.top_logprobs is not None
    assert outcome.echo.ranks is not None
    assert np.isnan(outcome.echo.top_logprobs).all(-1).tolist() == [False] + [True] * 6 + [False] * 3
    assert (outcome.echo.ranks == 0).tolist() == [False] + [True] * 6 + [False] * 3


def test_passages_with_pictures_are_scored_on_shared_prefixes(bench: Bench) -> None:
    answers = [[50], [51, 52], [53, 9, 9]]
    requests: list[ScoreRequest] = []
    for number, row in enumerate(bench.rows):
        prompt = picture_ids(*row)
        passages = [
            Passage(np.array([*prompt, *answer], np.int32), np.arange(len(prompt), len(prompt) + len(answer), dtype=np.int32))
            for answer in answers
        ]
        requests.append(ScoreRequest(number, tuple(passages), images=(bench.a, bench.b, bench.c)))
    for request, outcome in zip(requests, scored(bench.setup(tokens=16), requests), strict=True):
        for passage, scores in zip(request.passages, outcome.scores, strict=True):
            truth = bench.truth(passage.ids)[passage.positions - 1, passage.ids[passage.positions]]
            np.testing.assert_allclose(scores.logprobs, truth, rtol=0, atol=FLAT)


def test_a_hundred_rows_on_five_pictures_make_five_calls_of_the_tower(bench: Bench) -> None:
    pictures = [picture(bench.table, f"shared {i}", 5) for i in range(5)]
    greedy = Sampling(max_tokens=2, temperature=0.0)
    requests = [picture_request(i, [[1], pictures[i % 5], [2, i]], greedy) for i in range(100)]
    run(bench.setup(wanted=LogprobOptions()), requests)
    assert bench.cache.calls == 5


def test_the_bytes_of_kept_features_change_no_result_and_are_bounded() -> None:
    def results(most_bytes: int) -> tuple[list[bytes], FeatureCache]:
        bench = Bench(most_bytes=most_bytes)
        done = run(bench.setup(tokens=4), bench.requests())
        return [one.ids.tobytes() + one.scores.logprobs.tobytes() for one in done], bench.cache

    nothing, none_kept = results(0)
    some, some_kept = results(6 * 64 * 4 + 3 * 64 * 4)
    everything, all_kept = results(1 << 40)
    assert nothing == some == everything
    assert (none_kept.nbytes, some_kept.nbytes) == (0, 9 * 64 * 4)
    assert all_kept.nbytes == (6 + 3 + 11) * 64 * 4
    assert all_kept.calls == 3 < some_kept.calls <= none_kept.calls


def test_samples_of_one_row_share_its_picture(bench: Bench) -> None:
    many = run(bench.setup(), bench.requests(Sampling(max_tokens=4, temperature=1.0), samples=3)[:1])
    alone = [
        run(bench.setup(), [replace(one, work=replace(one.work, samples=(sample,)))])[0]
        for one in bench.requests(Sampling(max_tokens=4, temperature=1.0), samples=3)[:1]
        for sample in one.work.samples
    ]
    assert [one.ids.tolist() for one in many] == [one.ids.tolist() for one in alone]
    assert bench.cache.calls == 1


@pytest.mark.parametrize("tokens", [4, 64])
@pytest.mark.parametrize("own", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_rollouts_and_their_reference_have_the_logprobs_of_scoring(bench: Bench, own: bool, tokens: int) -> None:
    """own: the reference is the policy itself; else another network, which reads the same pictures by its own tower."""
    other = bench if own else Bench()
    if not own:
        other.network.lm_head.weight = other.network.lm_head.weight * 0.5
    requests = bench.requests(Sampling(max_tokens=4, temperature=1.0), samples=2)
    drawn = [Finished(requests[one.row], one) for one in run(bench.setup(wanted=LogprobOptions(), tokens=tokens), requests)]
    referring = setup_of(other.network, images=bench.table, wanted=LogprobOptions(), tokens=tokens)
    found = [one for one in Reference(referring, own=own).logprobs(drawn, lambda: False) if isinstance(one, Generated)]
    assert sorted((one.row, one.index) for one in found) == [(row, index) for row in range(len(requests)) for index in range(2)]
    for one in found:
        prompt = requests[one.row].prompt
        passage = Passage(np.concatenate([prompt.ids, one.ids]), np.arange(len(prompt.ids), len(prompt.ids) + 4, dtype=np.int32))
        asked = ScoreRequest(0, (passage,), images=prompt.images)
        (policy,), (reference,) = scored(bench.setup(), [asked])[0].scores, scored(referring, [asked])[0].scores
        truth = other.truth(passage.ids)[passage.positions - 1, one.ids]
        assert one.ref_logprobs is not None
        np.testing.assert_allclose(one.scores.logprobs, policy.logprobs, rtol=0, atol=FLAT)
        np.testing.assert_allclose(one.ref_logprobs, reference.logprobs, rtol=0, atol=FLAT)
        np.testing.assert_allclose(one.ref_logprobs, truth, rtol=0, atol=FLAT)


def test_penalties_count_words_alone(bench: Bench) -> None:
    rules = Sampling(max_tokens=6, temperature=0.0, repetition_penalty=1.3, dry_multiplier=0.8, dry_allowed_length=1)
    assert [len(one.ids) for one in run(bench.setup(), bench.requests(rules))] == [6] * len(bench.rows)


def test_names_of_parameters_and_a_text_call_stay_as_they_were() -> None:
    plain, bench = as_it_came("llama"), Bench()
    assert [name for name, _ in tree_flatten(bench.network.parameters())] == [name for name, _ in tree_flatten(plain.parameters())]
    tokens = mx.array([[1, 2, PLACEHOLDER, 3]])
    assert mx.array_equal(Network(bench.network)(tokens, None), Network(plain)(tokens, None))


@pytest.mark.cpu_path("it patches the CPU's own layers in and out")
def test_kernels_go_in_and_out_of_a_network_that_reads_pictures(bench: Bench) -> None:
    row = picture_ids(*bench.rows[0])
    truth = bench.truth(row)
    for change in (patch_layers, restore, patch_layers):
        change(bench.network)
        logits = Network(bench.network, Head(bench.network), bench.table)(np.array([row], np.int32), None)[0]
        np.testing.assert_allclose(logits - mx.logsumexp(logits, -1, keepdims=True), truth, rtol=0, atol=FLAT)


def test_a_copy_of_a_network_reads_pictures_by_itself(bench: Bench) -> None:
    row = np.array([picture_ids(*bench.rows[2])], np.int32)
    before = Network(bench.network, None, bench.table)(row, None)
    twin = copy.deepcopy(bench.network)
    twin.model.embed_tokens.weight = twin.model.embed_tokens.weight * 0
    changed = Network(twin, None, bench.table)(row, None)
    assert not mx.allclose(changed, before)
    assert mx.array_equal(Network(bench.network, None, bench.table)(row, None), before)


def test_features_go_through_a_mended_embeddings_own_factor(bench: Bench) -> None:
    row = np.array([picture_ids(*bench.rows[0])], np.int32)
    seen = bench.network.model.embed_tokens
    with context_of(bench.network).reading_logits():
        context_of(bench.network).pictures = bench.cache.placed(bench.table.images_in(row))
        plain = np.array(seen(mx.array(bench.table.plain(row))))[0]
        object.__setattr__(bench.network.model["embed_tokens"], "factor", 1.5)
        scaled = np.array(seen(mx.array(bench.table.plain(row))))[0]
    np.testing.assert_allclose(scaled[2:8], 1.5 * plain[2:8], rtol=1e-6)
    assert np.array_equal(scaled[:2], plain[:2])


def test_a_tied_head_and_its_kernel_read_the_embeddings_weights() -> None:
    bench = Bench("gemma3_text")
    bench.network.tie_word_embeddings = True
    row = np.array([picture_ids(*bench.rows[0])], np.int32)
    logits = Network(bench.network, None, bench.table)(row, None)
    network = Network(bench.network, Head(bench.network), bench.table)
    states = network(row, None, read="states")
    assert mx.allclose(network.logits(states[0]), logits[0], atol=1e-4)


def test_a_network_without_a_token_embedding_is_refused() -> None:
    with pytest.raises(ModelError, match=r"mlx\.nn.*no token embedding was found \(embed_tokens"):
        read_pictures_with(nn.Linear(2, 2), FeatureCache(NoiseTower()))

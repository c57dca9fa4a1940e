"""Tiny random models of many families, a way to run them through the engine, and what is right for each by mlx-lm alone.

Weights are scaled so that log-probabilities spread by more than 1: an error in attention then shows. Tolerances are the
contract's for float32.
"""

import functools
import importlib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_map_with_path
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import (
    Failure,
    Generate,
    Generated,
    Outcome,
    Passage,
    Prompt,
    Request,
    Sample,
    Sampling,
    Scored,
    ScoreRequest,
)
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.engine.scorer import Scorer
from mlx_bulk.runner.engine.setup import BatchFeatures, Setup
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.scheduler.limits import Limits
from mlx_lm.generate import generate_step
from numpy.typing import NDArray

VOCABULARY = 256
WINDOW = 8  # Gemma 3's sliding window
ECHO_TOLERANCE = 1e-4  # against a full forward: only the order of float32 sums differs
DECODE_TOLERANCE, DECODE_MEAN = 2e-4, 3e-5  # against a full forward of the same tokens: other shapes, other kernels
TIE = 1e-4  # two logits so close may change places

Network = Any
Ids = list[int]

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
}
_RECURRENT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "state_size": 16,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
}
_MAMBA2 = {"num_heads": 4, "head_dim": 32, "n_groups": 1, "time_step_limit": [0.0, 100.0], "layer_norm_epsilon": 1e-5, "expand": 2}
_MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_LFM2: dict[str, Any] = {  # half its layers are convolutions with a state, half attend
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 64,
    "block_ff_dim": 128,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "full_attn_idxs": [1, 3],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "qwen3": _BASE,
    "gemma3_text": _BASE | {"query_pre_attn_scalar": 16, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "qwen3_moe": _BASE | _MOE,
    "mixtral": _BASE | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mamba2": _RECURRENT | _MAMBA2 | {"tie_word_embeddings": False},
    "mamba": _RECURRENT,
    "lfm2": _BASE | _LFM2,
    # its window is the whole context: mlx-lm's Gemma 2 knows no smaller one
    "gemma2": _BASE | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
}
SCALES = {"gemma2": 1.5}  # at 3 its logits spread by 6, and a row four times in one call of mlx-lm differs by 1.5e-4 from once
PADDED = ("llama", "qwen3", "gemma3_text", "qwen3_moe", "mixtral", "mamba2", "lfm2")
JOINED = ("mamba",)  # mlx-lm's `mamba` feeds pads to its state
EXACT = ("mamba", "gemma2")  # what is wrong with pads; mlx-lm's `gemma2` crashes on a batch's mask
LENGTHS = (5, 30, 1, 17, 17, 9, 2, 40, 3, 12, 1, 2)


@functools.cache
def build(name: str) -> Network:
    """A model with random weights, the same each time."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    network = module.Model(module.ModelArgs.from_dict({**CONFIGS[name], "model_type": name}))
    scale = SCALES.get(name, 3.0)
    network.update(tree_map_with_path(lambda key, w: w * (scale if "weight" in key and w.ndim == 2 else 1.0), network.parameters()))
    mx.eval(network.parameters())
    return network


def prompts_of(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]


def request(row: int, prompt: Ids, sampling: Sampling, seeds: Sequence[int] = (0,)) -> Request:
    ids = np.array(prompt, np.int32)
    return Request(row, Prompt("", ids, np.zeros_like(ids)), Generate(sampling, tuple(Sample(i, s) for i, s in enumerate(seeds))))


def greedy(prompts: Sequence[Ids], max_tokens: int = 10) -> list[Request]:
    """Requests of unlike lengths to generate, so that rows leave at different steps."""
    return [request(i, p, Sampling(max_tokens=max_tokens + i % 3, temperature=0.0)) for i, p in enumerate(prompts)]


def setup_of(
    network: Network, way: str = "padded", rows: int = 4, tokens: int = 64, wanted: LogprobOptions | None = None, **more: Any
) -> Setup:
    """A setup in which the probes have found all that ``more`` does not say otherwise."""
    limits = Limits(1 if way == "alone" else rows, tokens, 1e12, 1.0, 1.0, equal_lengths=way not in ("padded", "joined"))
    vocabulary = getattr(network, "vocabulary", VOCABULARY)
    names = {field.name for field in fields(BatchFeatures)}
    features = BatchFeatures(not limits.equal_lengths, ragged=way == "padded", right_padded=True, shared_passages=True)
    head = Head(network) if isinstance(network, nn.Module) else None
    setup = Setup(network, vocabulary, limits, wanted or LogprobOptions(echo=True), features, head=head)
    setup = setup.with_features(**{name: value for name, value in more.items() if name in names})
    return replace(setup, **{name: value for name, value in more.items() if name not in names})


def engine_of(setup: Setup, eos: Sequence[int] = ()) -> Engine:
    def no_stopper(sampling: Sampling) -> Any:
        raise AssertionError(f"there is a stop string: {sampling.stop}")

    return Engine(setup, frozenset(eos), no_stopper)


def outcomes_of(setup: Setup, requests: list[Request], eos: Sequence[int] = ()) -> list[Outcome]:
    """Everything the engine gives for ``requests`` (one window of the backlog), by row and sample."""
    windows = iter([requests])
    found = engine_of(setup, eos).run(lambda wait: next(windows, None))
    return sorted(found, key=lambda o: (o.row, o.sample or 0 if isinstance(o, Failure) else o.index))


def run(setup: Setup, requests: list[Request], eos: Sequence[int] = ()) -> list[Generated]:
    """As ``outcomes_of``, where no row may fail."""
    outcomes = outcomes_of(setup, requests, eos)
    done = [o for o in outcomes if isinstance(o, Generated)]
    assert len(done) == len(outcomes), [o for o in outcomes if not isinstance(o, Generated)]
    return done


def passage(ids: Ids, first: int = 1) -> Passage:
    """A passage of which the tokens from the ``first`` on are scored."""
    return Passage(np.array(ids, np.int32), np.arange(first, len(ids), dtype=np.int32))


def documents(texts: Sequence[Ids]) -> list[ScoreRequest]:
    """A request a text, of which each token but the first is scored."""
    return [ScoreRequest(i, (passage(ids),)) for i, ids in enumerate(texts)]


def multiple_choice(prompts: Sequence[Ids], choices: Sequence[Sequence[Ids]]) -> list[ScoreRequest]:
    """A request a prompt, a passage a choice."""
    return [
        ScoreRequest(i, tuple(passage([*prompt, *choice], len(prompt)) for choice in own))
        for i, (prompt, own) in enumerate(zip(prompts, choices, strict=True))
    ]


def scored_with(scorer: Scorer, requests: list[ScoreRequest]) -> list[Outcome]:
    """Everything the scorer gives for ``requests`` (one window), by row."""
    windows = iter([requests])
    return sorted(scorer.run(lambda wait: next(windows, None)), key=lambda outcome: outcome.row)


def scored(setup: Setup, requests: list[ScoreRequest], reference: Setup | None = None) -> list[Scored]:
    """As ``scored_with``, where no row may fail."""
    outcomes = scored_with(Scorer(setup, reference), requests)
    done = [o for o in outcomes if isinstance(o, Scored)]
    assert [o.row for o in done] == sorted(r.row for r in requests), [o for o in outcomes if not isinstance(o, Scored)]
    return done


def log_probabilities(network: Network, ids: Ids) -> NDArray[np.float64]:
    """The naive truth: one full forward of ``ids`` [T] without caches, log_softmax in float64, [T, V]."""
    x = np.array(network(mx.array([ids]))[0].astype(mx.float32)).astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def assert_scores_are_naive(network: Network, requests: Sequence[ScoreRequest], outcomes: Sequence[Scored]) -> None:
    """Each scored token's logprob is that of a full forward of its passage."""
    rows: list[NDArray[np.float64]] = []
    for asked, outcome in zip(requests, outcomes, strict=True):
        for part, scores in zip(asked.passages, outcome.scores, strict=True):
            rows.append(log_probabilities(network, part.ids.tolist())[part.positions - 1])
            truth = rows[-1][np.arange(len(part.positions)), part.ids[part.positions]]
            np.testing.assert_allclose(scores.logprobs, truth, rtol=0, atol=ECHO_TOLERANCE)
    assert np.concatenate(rows).std() > 1  # else a wrong target would hide within the tolerance


def assert_greedy_as_alone(network: Network, prompts: Sequence[Ids], outcomes: Sequence[Generated]) -> None:
    """Each row's tokens are those of mlx-lm on the row alone, up to the first near-tie; at most a tenth of the rows may have one."""
    ties = 0
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        ids = outcome.ids.tolist()
        alone = [int(token) for token, _ in generate_step(mx.array(prompt), network, max_tokens=len(ids))]
        if ids != alone:
            at = next(i for i, (a, b) in enumerate(zip(ids, alone, strict=True)) if a != b)
            here = log_probabilities(network, prompt + ids[:at])[-1]
            assert abs(here[ids[at]] - here[alone[at]]) < TIE, f"row {outcome.row}, token {at}: {ids[at]}, alone {alone[at]}"
            ties += 1
    assert ties <= len(prompts) // 10


def assert_echo_is_naive(network: Network, prompts: Sequence[Ids], outcomes: Sequence[Generated]) -> None:
    """Each prompt token's logprob is that of a full forward."""
    rows: list[NDArray[np.float64]] = []
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.echo is not None
        rows.append(log_probabilities(network, prompt))
        truth = rows[-1][np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(outcome.echo.logprobs, truth, rtol=0, atol=ECHO_TOLERANCE)
    assert np.concatenate(rows).std() > 1  # else a wrong target would hide within the tolerance


def assert_decode_is_echo(network: Network, prompts: Sequence[Ids], outcomes: Sequence[Generated]) -> None:
    """Each generated token's logprob is that of a full forward of prompt and completion."""
    differences: list[float] = []
    rows: list[NDArray[np.float64]] = []
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        whole = prompt + outcome.ids.tolist()
        truth = log_probabilities(network, whole)[len(prompt) - 1 : -1]
        rows.append(truth)
        differences += (outcome.scores.logprobs - truth[np.arange(len(truth)), outcome.ids]).tolist()
    assert np.abs(differences).max() <= DECODE_TOLERANCE
    assert np.abs(differences).mean() <= DECODE_MEAN
    assert np.concatenate(rows).std() > 1


def assert_same(left: Sequence[Generated], right: Sequence[Generated]) -> None:
    """Two runs of the same requests agree: tokens up to a near-tie of logprobs, logprobs within 1e-4."""
    for a, b in zip(left, right, strict=True):
        assert (a.row, a.sample) == (b.row, b.sample)
        differ = np.flatnonzero(a.ids[: len(b.ids)] != b.ids[: len(a.ids)])
        same = int(differ[0]) if len(differ) else len(a.ids)
        if len(differ):
            assert abs(a.scores.logprobs[same] - b.scores.logprobs[same]) < TIE, f"row {a.row}, token {same}"
        else:
            assert len(a.ids) == len(b.ids)
        np.testing.assert_allclose(a.scores.logprobs[:same], b.scores.logprobs[:same], rtol=0, atol=1e-4)
        np.testing.assert_allclose(a.sampled_logprobs[:same], b.sampled_logprobs[:same], rtol=0, atol=1e-4)
        assert_same_scores(a.echo, b.echo)


def assert_same_scores(a: Scores | None, b: Scores | None) -> None:
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-4)


class Chain:
    """A model whose next-token logits depend on the newest token alone: ``table`` [V, V]. It needs no cache.

    What the engine does with logits can be stated exactly with it.
    """

    def __init__(self, table: NDArray[np.float32]):
        self.table = mx.array(table)
        self.vocabulary = table.shape[1]

    def make_cache(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.table[tokens]


def random_chain(vocabulary: int, seed: int = 0, spread: float = 2.0) -> Chain:
    return Chain(np.random.default_rng(seed).normal(0, spread, (vocabulary, vocabulary)).astype(np.float32))

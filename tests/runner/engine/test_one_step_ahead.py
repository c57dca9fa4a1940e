"""Tests decoding one step ahead on the path of Metal and CUDA: the records are those of decoding step by step."""

import copy
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_map
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated, Outcome
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.engine import decode_batch
from mlx_bulk.runner.engine.decode_batch import DecodeBatch
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.scheduler.limits import Limits

from ..support.small_memory import Tight
from ..support.tiny import VOCABULARY, build, prompts_of
from ..support.tiny_runs import engine_of, outcomes_of, request, run, setup_of
from ..vision.test_picture_rows import Bench

WANTED = LogprobOptions(echo=True, top=3, stats=True, tempered=True, kept=True)
SAMPLINGS = {
    "greedy": Sampling(max_tokens=9, temperature=0.0),
    "sampled": Sampling(max_tokens=9, temperature=0.8, top_p=0.9),
    "top_k": Sampling(max_tokens=9, temperature=1.3, top_k=7),
    "penalties": Sampling(max_tokens=9, temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.2),
    "dry": Sampling(max_tokens=9, temperature=0.0, dry_multiplier=0.8, dry_allowed_length=1),
    "at least": Sampling(max_tokens=9, temperature=0.9, min_tokens=4, stop_token_ids=(3, 5, 8)),
    "presence": Sampling(max_tokens=9, temperature=0.8, presence_penalty=0.5, min_p=0.02, typical_p=0.95, logit_bias={7: 2.0, 11: -3.0}),
    "xtc": Sampling(max_tokens=9, temperature=0.9, xtc_probability=0.5, xtc_threshold=0.05),
}
QUICK = ("greedy", "sampled", "penalties")  # one without a draw, one drawn on the device, one that needs the tokens on the host
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SAMPLINGS]


@pytest.fixture
def generic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU draws and scores by mlx's operations, as Metal and CUDA do."""
    for module in (draw, logprobs):
        monkeypatch.setattr(module, "on_cpu_path", lambda: False)


def asked(sampling: Sampling, samples: int = 2) -> list[Request]:
    """Requests whose rows end at unlike steps, with several samples each."""
    rows = enumerate(prompts_of())
    return [request(i, ids, replace(sampling, max_tokens=1 + (5 * i) % 11), seeds=[10 * i + k for k in range(samples)]) for i, ids in rows]


def figures(outcome: Outcome) -> list[Any]:
    assert isinstance(outcome, Generated), outcome
    held = [outcome.ids, outcome.sampled_logprobs, outcome.tempered_logprobs, outcome.finish_reason, outcome.stop_reason]
    for scores in (outcome.scores, outcome.echo):
        held += [] if scores is None else [getattr(scores, name) for name in scores.__slots__]
    return [*held, *(outcome.kept_ids or ())]


def assert_same(setup: Setup, requests: list[Request], eos: tuple[int, ...] = (), atol: float = 0.0) -> None:
    here, ahead = (outcomes_of(replace(setup, ahead=on), requests, eos) for on in (False, True))
    assert len(here) == len(ahead) == sum(len(r.samples) for r in requests)
    assert_figures_are_the_same(here, ahead, atol)


def assert_figures_are_the_same(here: list[Outcome], ahead: list[Outcome], atol: float = 0.0) -> None:
    for one, other in zip(here, ahead, strict=True):
        assert (one.row, figures(one)[3:5]) == (other.row, figures(other)[3:5])
        for mine, theirs in zip(figures(one), figures(other), strict=True):
            if isinstance(mine, np.ndarray):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol if mine.dtype == np.float32 else 0)


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("name", NAMES)
def test_static_batches_give_the_same_bits(name: str):
    """Their rows stay together, so that each step has the same shape."""
    assert_same(setup_of(build("llama"), wanted=WANTED, static=True), asked(SAMPLINGS[name]), eos=(4, 9))


@pytest.mark.usefixtures("generic")
def test_static_batches_of_rows_with_pictures_give_the_same_bits():
    pictures = Bench()
    assert_same(pictures.setup(wanted=WANTED, static=True), pictures.requests(SAMPLINGS["sampled"], 2), eos=(4, 9))


@pytest.mark.slow
@pytest.mark.usefixtures("generic")
def test_policies_between_groups_give_the_same_bits():
    """Another policy samples the second window; then the model itself again."""
    found: list[list[Outcome]] = []
    for ahead in (False, True):
        network: Any = copy.deepcopy(build("llama"))  # whose weights change
        engine, own = engine_of(replace(setup_of(network, wanted=WANTED, static=True), ahead=ahead), (4, 9)), network.parameters()
        other = tree_map(lambda weights: weights * 1.1, own)
        found.append([])
        for policy in (own, other, own):
            network.update(policy)
            engine.renew()
            windows = iter([asked(SAMPLINGS["sampled"])[:6]])
            done = engine.run(lambda wait, its=windows: next(its, None))
            found[-1] += sorted(done, key=lambda one: (one.row, one.index))  # pyright: ignore[reportAttributeAccessIssue]
    (here, ahead), third = found, len(found[0]) // 3
    assert_figures_are_the_same(here, ahead)
    assert_figures_are_the_same(here[:third], here[2 * third :])
    assert not np.array_equal(figures(here[0])[5], figures(here[third])[5])


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("way", ["padded", *(pytest.param(way, marks=pytest.mark.slow) for way in ("exact", "alone"))])
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_leave_and_join_give_the_same(name: str, way: str):
    """Rows leave a step later, and so a product has other rows beside them: the last bits may differ, as they do between batch sizes."""
    assert_same(setup_of(build("llama"), way, wanted=WANTED), asked(SAMPLINGS[name]), eos=(4, 9), atol=1e-4)


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("name", ["gemma3_text", "mamba2"])
def test_windows_and_recurrent_states_give_the_same(name: str):
    assert_same(setup_of(build(name), wanted=WANTED), asked(SAMPLINGS["sampled"]), eos=(4, 9), atol=1e-4)


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize(
    ("layers", "name", "expected"),
    [
        (1, "greedy", ["draw", *["draw", "read"] * 3, "read"]),
        (4, "greedy", ["draw", *["half", "read", "draw"] * 3, "read"]),  # the host reads while the device computes the first half
        (4, "penalties", ["draw", "read"] * 4),
    ],
)
def test_a_step_is_sent_before_the_one_before_is_read(monkeypatch: pytest.MonkeyPatch, layers: int, name: str, expected: list[str]):
    events: list[str] = []
    launch, send_half = decode_batch.launch, DecodeBatch._send_half  # pyright: ignore[reportPrivateUsage]

    def launching(*arguments: Any) -> draw.Launched:
        launched = launch(*arguments)
        events.append("draw")
        return draw.Launched(launched.ids, lambda: (events.append("read"), launched.read())[1])

    def sending(batch: DecodeBatch) -> bool:
        sent = send_half(batch)
        events.extend(["half"] * sent)
        return sent

    monkeypatch.setattr(decode_batch, "launch", launching)
    monkeypatch.setattr(DecodeBatch, "_send_half", sending)
    engine = engine_of(replace(setup_of(Shallow(layers), wanted=LogprobOptions()), ahead=True))
    windows = iter([[request(0, [1, 2, 3], replace(SAMPLINGS[name], max_tokens=4))]])
    assert len(list(engine.run(lambda wait: next(windows, None)))) == 1
    assert events == expected  # 4 steps for 4 tokens: a row at its limit takes no further one


@pytest.mark.slow
@pytest.mark.usefixtures("generic")
def test_memory_that_runs_out_in_flight_loses_no_row_and_repeats_none(monkeypatch: pytest.MonkeyPatch):
    truth = outcomes_of(setup_of(build("llama")), asked(SAMPLINGS["sampled"]))
    launch, calls = decode_batch.launch, iter(range(1000))

    def tight(*arguments: Any) -> draw.Launched:
        if next(calls) in (3, 20):
            raise RuntimeError("[malloc] Unable to allocate 1000 bytes.")
        return launch(*arguments)

    monkeypatch.setattr(decode_batch, "launch", tight)
    found = outcomes_of(replace(setup_of(build("llama")), ahead=True), asked(SAMPLINGS["sampled"]))
    assert [(one.row, figures(one)[0].tolist()) for one in found] == [(one.row, figures(one)[0].tolist()) for one in truth]


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("others", [0, 1])
def test_memory_that_runs_out_in_a_step_of_rows_that_have_ended_costs_no_row(monkeypatch: pytest.MonkeyPatch, others: int):
    """When the stop id is read the next step is under way, and fails: all its rows have ended, or all but one, which was not alone."""
    asked = [request(i, [5, 6], Sampling(max_tokens=9, temperature=0.0, ignore_eos=bool(i))) for i in range(1 + others)]
    truth = run(setup_of(build("llama")), asked[:1])[0].ids.tolist()
    end = truth.index(truth[2])
    launch, calls = decode_batch.launch, iter(range(100))

    def short(*arguments: Any) -> draw.Launched:
        launched, call = launch(*arguments), next(calls)

        def read() -> Any:
            if call == end + 1:
                raise RuntimeError("[malloc] Unable to allocate 1000 bytes.")
            return launched.read()

        return draw.Launched(launched.ids, read)

    monkeypatch.setattr(decode_batch, "launch", short)
    found = outcomes_of(replace(setup_of(build("llama")), ahead=True), asked, eos=[truth[end]])
    assert next(calls) > end + 2 * others
    assert [figures(one)[0].tolist() for one in found] == [truth[: end + 1], truth][: 1 + others]


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("limit", [1760.0, 1e12])
def test_rows_that_have_ended_do_not_make_the_caches_outgrow_their_limit(limit: float):
    """A row with a long prompt ends at once. Until others end too it stays, and the caches grow as wide as its prompt and their tokens."""
    calls: list[int] = []
    network = Tight(build("llama"), lambda rows, width, cached: bool(calls.append(rows * cached)))
    setup = replace(setup_of(network, rows=16, tokens=2048, head=None, wanted=LogprobOptions()), ahead=True)
    rows = [request(i, ids, Sampling(100 if i else 1, 0.0, ignore_eos=True)) for i, ids in enumerate(prompts_of([90] + [2] * 15))]
    assert len(outcomes_of(replace(setup, limits=Limits(16, 2048, limit, 1.0, 0.0)), rows)) == 16
    assert 16 * 102 <= max(calls) <= limit  # a row can have 102 tokens
    assert limit < 1e12 or max(calls) > 16 * 180  # where there is room, caches are not copied for one row


class Shallow:
    """So few operations that mlx would send a whole step ahead: a token's row, read by attention with all before it, and a head."""

    def __init__(self, layers: int = 1):
        self.embed = nn.Embedding(VOCABULARY, 4 * 64)
        self.layers = [nn.Identity()] * layers

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        x = self.embed(tokens)
        for own in cache:
            q = x.reshape(*tokens.shape, 4, 64).swapaxes(1, 2)
            keys, values = own.update_and_fetch(q, q)
            x = mx.fast.scaled_dot_product_attention(q, keys, values, scale=0.1).swapaxes(1, 2).reshape(x.shape)
        return self.embed.as_linear(x)


@pytest.mark.usefixtures("generic")
@pytest.mark.parametrize("layers", [1, 4])
def test_a_step_ahead_does_not_make_mlx_copy_large_caches(monkeypatch: pytest.MonkeyPatch, layers: int):
    """What ten steps take in memory beside what is there before, over the bytes of the caches: sent too early, they take 2."""
    rows = [request(i, [1 + (i + j) % 200 for j in range(513)], Sampling(max_tokens=24, temperature=0.0)) for i in range(8)]
    mx.random.seed(3)
    setup = setup_of(Shallow(layers), rows=8, tokens=8192, wanted=LogprobOptions(logprobs=False))
    steps, memory, bare = iter(range(100)), list[float](), DecodeBatch.step

    def step(batch: DecodeBatch, own: Setup) -> None:
        bare(batch, own)
        at = next(steps)
        if at in (5, 15):
            caches: Any = batch._caches  # pyright: ignore[reportPrivateUsage]
            mx.eval([(cache.keys, cache.values) for cache in caches])
            held = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)
            memory.append((mx.get_active_memory() if at == 5 else mx.get_peak_memory()) / held)
            mx.reset_peak_memory()

    monkeypatch.setattr(decode_batch, "COPIED_BYTES", 0)
    monkeypatch.setattr(DecodeBatch, "step", step)
    outcomes_of(replace(setup, ahead=True), rows)
    before, peak = memory
    assert peak < before + 0.1

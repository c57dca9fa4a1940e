"""Tests that the filters of Metal and CUDA, which sort no row, keep what sorting keeps.

A sum of float32 decides where a set ends, so it may end elsewhere only within 1e-5 of the mass: by blocks no sum adds more than some
hundred terms in turn, each rounded by 6e-8. All else is exact: the order, ties, top-k, min-p.
"""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels.sampling import cut, token_filters, typical_set
from mlx_bulk.kernels.sampling.parameters import Parameters
from mlx_bulk.runner.core.requests import Sampling
from numpy.typing import NDArray

from .samplers import parameters

pytestmark = pytest.mark.compiles  # as the filters are on GPUs
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
NEAR = 1e-5
FILTERS = [
    Sampling(temperature=0.0), Sampling(), Sampling(top_k=1), Sampling(top_k=20, top_p=0.95), Sampling(top_k=511, min_p=0.01),
    Sampling(top_k=600), Sampling(top_k=900, top_p=0.9, min_p=1e-3), Sampling(top_k=10**6, top_p=0.5), Sampling(top_p=0.95),
    Sampling(top_p=0.01), Sampling(top_p=1 - 2.0**-20), Sampling(top_p=0.8, min_p=0.05), Sampling(min_p=0.05), Sampling(min_p=1.0),
]  # fmt: skip


def ends(weights: Floats, share: float, k: int) -> tuple[int, int]:
    """How many of sorted tokens the share of the first k's mass may keep, at least and at most."""
    mass: Doubles = np.cumsum(weights[:k], dtype=np.float64)
    least, most = ((mass < float(np.float32(share)) * mass[-1] * f - mass[-1] * d).sum() + 1 for f, d in ((1, NEAR), (1, -NEAR)))
    return int(min(least, k)), int(min(most, k))


def assert_kept(kept: NDArray[np.bool_], z: Floats, s: Sampling) -> None:
    """The kept ids are the first of the sorted ones, as many as top-k, top-p and min-p say."""
    order = np.argsort(-z, kind="stable")
    weights = np.exp(z[order])
    k = min(s.top_k or len(z), len(z))
    least, most = (k, k) if s.top_p == 1 else ends(weights, s.top_p, k)
    with np.errstate(divide="ignore"):
        likely = int((z >= np.array(mx.log(mx.array(s.min_p, mx.float32)))).sum())
    possible = int((z > -np.inf).sum())
    count = int(kept.sum())
    assert min(least, likely, possible) <= count <= min(most, likely, possible)
    assert set(np.flatnonzero(kept).tolist()) == set(order[:count].tolist())


@st.composite
def batches(draw: st.DrawFn) -> tuple[Floats, list[Sampling]]:
    """z [B, V] with row maximum 0, from flat to steep, with ties and -inf; each row's filters."""
    v = draw(st.sampled_from([1, 2, 17, 256, 300, 700, 1500]))
    rows = draw(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(0, 1, (len(rows), v)) * 10.0 ** rng.integers(-4, 5, (len(rows), 1))
    for row in x:
        if rng.random() < 0.4:
            row[:] = np.round(row / np.ptp(row) * 5 if v > 1 else row)
        row[rng.random(v) < rng.choice([0.0, 0.5, 0.99])] = -np.inf
        row[rng.integers(v)] = 9
    x = x.astype(np.float32)
    return x - x.max(axis=1, keepdims=True), rows


def filtered(z: Floats, p: Parameters) -> Floats:
    return np.array(token_filters.reference(mx.array(z), p))


@pytest.mark.parametrize("sizes", [(2048, 16, 32), (64, 8, 4)])
@settings(max_examples=60, deadline=None)
@given(batches())
def test_rows_of_unlike_kinds_keep_what_sorting_keeps(sizes: tuple[int, int, int], batch: tuple[Floats, list[Sampling]]):
    z, rows = batch
    p = parameters(rows, np.zeros(len(rows)))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("BLOCK", "GROUP", "PROBES"), sizes, strict=True):
            patch.setattr(cut, name, value)
        found = filtered(z, p)
    for row, mine, s in zip(z, found, rows, strict=True):
        kept = mine > -np.inf
        np.testing.assert_array_equal(mine[kept], row[kept])
        if s.temperature:
            assert_kept(kept, row, s)
        else:
            np.testing.assert_array_equal(mine, row)


@pytest.mark.parametrize("v", [50_257, 151_936])
def test_a_large_vocabulary_keeps_what_sorting_keeps(v: int):
    rng = np.random.default_rng(v)
    x = rng.normal(0, 1, (len(FILTERS), v)) * rng.choice([0.3, 1.0, 3.0], (len(FILTERS), 1))
    x[::3] = np.round(x[::3] * 8) / 8  # thousands of equals at each cut
    z = (x - x.max(axis=1, keepdims=True)).astype(np.float32)
    found = filtered(z, parameters(FILTERS, np.zeros(len(FILTERS))))
    for row, mine, s in zip(z, found, FILTERS, strict=True):
        if s.temperature:
            assert_kept(mine > -np.inf, row, s)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
@pytest.mark.parametrize("v", [300, 5000, 151_936])
def test_a_typical_set_is_the_tokens_nearest_to_the_entropy(v: int, share: float):
    """Of rounded logits thousands are level, on both sides of the mean. 1e-4: the mean is rounded too, and moves each distance."""
    rng = np.random.default_rng(v)
    x = rng.normal(0, 1.5, (4, v))
    x[1], x[2, rng.random(v) < 0.9], x[3] = np.round(x[1] * 2) / 2, -np.inf, 0
    z = (x - x.max(axis=1, keepdims=True)).astype(np.float32)
    found = np.array(typical_set.reference(mx.array(z), np.full(4, share, np.float32)))
    for row, kept in zip(z, found, strict=True):
        e = np.exp(row.astype(np.float64))
        there = row > -np.inf
        distance = np.abs(np.where(there, row, np.inf) - (e[there] * row[there]).sum() / e.sum())
        mass = e[kept].sum() / e.sum()
        assert not kept[~there].any()
        assert distance[kept].max() <= distance[there & ~kept].min(initial=np.inf) + 1e-4
        furthest = kept & (distance >= distance[kept].max() - 1e-4)
        assert share - NEAR <= mass
        assert mass - e[np.flatnonzero(furthest)[-1]] / e.sum() < share + NEAR
    assert np.flatnonzero(found[3]).tolist() == list(range(int(np.ceil(np.float32(share) * np.float32(v)))))


@settings(max_examples=40, deadline=None)
@given(batches())
def test_a_rows_set_does_not_depend_on_the_other_rows(batch: tuple[Floats, list[Sampling]]):
    z, rows = batch
    together = filtered(z, parameters(rows, np.zeros(len(rows))))
    for i, s in enumerate(rows):
        if s.temperature:
            np.testing.assert_array_equal(together[i], filtered(z[i : i + 1], parameters([s], [0.0]))[0])


@pytest.mark.parametrize("s", [s for s in FILTERS if s.temperature] + [Sampling(typical_p=0.5)])
@pytest.mark.parametrize("v", [5, 3000])
def test_rows_of_nan_or_of_minus_infinity_spare_the_others(s: Sampling, v: int):
    z = np.random.default_rng(v).normal(0, 3, (4, v)).astype(np.float32)
    z -= z.max(axis=1, keepdims=True)
    z[1], z[2] = np.nan, -np.inf
    found = filtered(z, parameters([s] * 4, np.zeros(4)))
    np.testing.assert_array_equal(found[[0, 3]], filtered(z[[0, 3]], parameters([s] * 2, np.zeros(2))))
    assert not (found[1:3] > -np.inf).any()


@pytest.mark.parametrize("s", [*FILTERS[2:], Sampling(typical_p=0.9), Sampling(typical_p=0.9, top_k=20)])
def test_no_filter_sorts_a_row_or_reads_one_on_the_host(monkeypatch: pytest.MonkeyPatch, s: Sampling):
    """mx.compile traces the filters on arrays without values: any read of one is an error."""
    v, widths = 100_000, []
    for name in ("sort", "argsort"):
        own: Any = getattr(mx, name)
        monkeypatch.setattr(mx, name, lambda x, axis=-1, own=own: widths.append(x.shape[axis]) or own(x, axis=axis))
    for name in ("partition", "argpartition", "topk"):
        monkeypatch.setattr(mx, name, lambda *_, **__: pytest.fail("it sorts rows on Metal and CUDA"))
    p = parameters([s, s], np.zeros(2))
    x = mx.random.normal((2, v))
    z = x - x.max(axis=-1, keepdims=True)
    mx.compile(lambda z: token_filters.reference(z, p))(z)  # traced, and not evaluated: g++ would take half a minute
    left = token_filters.reference(z, p)
    assert 0 < (np.array(left) > -np.inf).sum() < 2 * v
    assert max(widths, default=0) <= v // 10

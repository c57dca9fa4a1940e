"""Tests the random streams of rollouts: all samples differ, and each can be drawn again alone by its seed.

On a model whose 64 tokens are all as likely as each other, two streams that were one would show at once: their texts are equal.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..jobs.support.bench import ROWS, Bench, Record
from ..jobs.support.rollout_runs import roll
from .test_score_closed_forms import rewritten

TOKENS, LENGTH = 64, 8
FAIR = {"top_k": TOKENS, "max_tokens": LENGTH, "ignore_eos": True, "seed": 3}  # equal logits: top_k keeps the ids below 64


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rewritten(tmp_path_factory.mktemp("uniform") / "model", "lm_head")


def drawn(records: list[Record]) -> list[tuple[int, ...]]:
    return [tuple(record["completion_ids"]) for record in records]


def test_no_two_samples_of_two_rounds_are_alike_on_a_uniform_model_of_64_tokens(tmp_path: Path, uniform: Path):
    done = roll(Bench(tmp_path, uniform), sampling={**FAIR, "n": 16}, rounds=2)
    assert done.code == 0, done.stderr
    completions = drawn(done.records)
    assert len(completions) == 2 * 16 * len(ROWS)
    assert len(set(completions)) == len(completions)  # by chance two of 160 are alike once in 2e10 runs
    assert len({record["seed"] for record in done.records}) == len(completions)
    # Nor does one stream trail another: no token is more often equal at a place than chance has it, within and across rounds.
    ids = np.array(completions)
    equal = (ids[:, None] == ids[None]).mean(axis=(0, 1)) - 1 / len(ids)
    assert equal == pytest.approx(1 / TOKENS, abs=0.02)
    counts = Counter(ids.ravel().tolist())
    assert max(counts) < TOKENS
    assert sum((counts[token] - ids.size / TOKENS) ** 2 for token in range(TOKENS)) / (ids.size / TOKENS) < 120  # chi², 63: 1 in 2e5
    for record in done.records:
        assert record["sampled_logprobs"] == pytest.approx([-np.log(TOKENS)] * LENGTH, abs=1e-5)


def test_a_sample_is_drawn_again_alone_by_its_seed(tmp_path: Path, uniform: Path):
    bench = Bench(tmp_path, uniform)
    records = roll(bench, sampling=FAIR, rounds=2).records
    chosen = records[3::7]
    assert {record["round"] for record in chosen} == {0, 1}
    rows = [{"q": record["prompt"], "seed": record["seed"]} for record in chosen]
    alone = bench.run(
        *("--output", str(tmp_path / "alone")),
        rows=rows,
        sampling={**FAIR, "temperature": 1.0, "n": 1, "columns": {"seed": "seed"}},
    )
    assert (alone.code, drawn(alone.records)) == (0, drawn(chosen))


def test_rows_that_bring_a_seed_have_other_streams_in_each_round(tmp_path: Path, uniform: Path):
    rows = [{"q": "One.", "s": 40}, {"q": "Two.", "s": 1000}]
    records = roll(Bench(tmp_path, uniform), rows=rows, sampling={**FAIR, "n": 3, "columns": {"seed": "s"}}, rounds=2).records
    assert [record["seed"] for record in records] == [40, 41, 42, 1000, 1001, 1002, 43, 44, 45, 1003, 1004, 1005]
    assert len(set(drawn(records))) == len(records)


def test_a_round_is_the_same_whether_or_not_others_follow(bench: Bench):
    settings: dict[str, Any] = {"batch": {"deterministic": True, "rows": 4, "rows_per_shard": 2}}
    one = roll(bench, **settings)
    both = roll(bench, "--output", str(bench.root / "both"), rounds=2, **settings)
    assert (one.code, both.code) == (0, 0)
    assert both.records[: len(one.records)] == one.records
    assert {record["round"] for record in both.records} == {0, 1}

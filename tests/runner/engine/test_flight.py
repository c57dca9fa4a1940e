"""Tests that the engine reports its rows before it takes new ones, so that the supervisor knows them at a crash."""

from typing import Any

import pytest
from mlx_bulk.runner.engine import engine as engines
from mlx_bulk.runner.scoring import scorer as scorers
from mlx_bulk.runner.scoring.scorer import Scorer

from ..support.score_calls import ragged_choices, setup
from ..support.tiny import build, prompts_of
from ..support.tiny_runs import documents, engine_of, greedy, scored_with, setup_of


def test_the_engine_tells_all_rows_of_its_batch_before_it_prefills(monkeypatch: pytest.MonkeyPatch):
    told: list[set[int]] = []
    given: list[set[int]] = []
    prefill = engines.prefill_by_calls

    def prefilled(setup: Any, requests: Any, prefixes: Any) -> Any:
        given.append({request.row for request in requests})
        assert given[-1] <= told[-1]
        return prefill(setup, requests, prefixes)

    monkeypatch.setattr(engines, "prefill_by_calls", prefilled)
    engine = engine_of(setup_of(build("llama"), rows=4))
    engine.progress.note_in_flight = lambda rows: told.append(set(rows))
    requests = greedy(prompts_of())
    windows = iter([requests, None])
    ended = set[int]()
    for outcome in engine.run(lambda wait: next(windows)):
        assert outcome.row in told[-1]
        ended.add(outcome.row)
    assert ended == set().union(*given) == {request.row for request in requests}
    assert all(len(rows) <= 4 for rows in told)
    assert any(given[i] < told[i] for i in range(len(told)))  # a group that joins rows which decode


@pytest.mark.parametrize("shared", [False, True])
def test_the_scorer_tells_the_rows_of_each_batch(monkeypatch: pytest.MonkeyPatch, shared: bool):
    told: list[set[int]] = []
    read = scorers.read_scores

    def reading(*arguments: Any) -> Any:
        called.append(told[-1])
        return read(*arguments)

    called: list[set[int]] = []
    monkeypatch.setattr(scorers, "read_scores", reading)
    scorer = Scorer(setup("llama", rows=4, right_padded=True, shared_passages=shared))
    scorer.progress.note_in_flight = lambda rows: told.append(set(rows))
    requests = ragged_choices() if shared else documents(prompts_of((9, 4, 30, 12, 7, 5)))
    for outcome in scored_with(scorer, requests):
        assert any(outcome.row in rows for rows in told)
    assert set().union(*called) == {request.row for request in requests}

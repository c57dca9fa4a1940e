"""A model for lm-eval whose answers are kept: it computes those that are missing, and loads its weights for these alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.outcomes import Outcome

pytestmark = pytest.mark.oracle


class Kept:
    """Answers in memory; ``known`` by place, for every call."""

    def __init__(self, known: Mapping[int, Any]):
        self.known, self.added = known, dict[int, Any]()
        self.infos: list[Mapping[str, Any]] = []

    def begin(self, requests: Sequence[Any]) -> Mapping[int, Any]:
        return self.known

    def loaded(self, info: Mapping[str, Any]) -> None:
        self.infos.append(info)

    def add(self, place: int, outcome: Outcome, answer: Any) -> None:
        self.added[place] = answer

    def stopped(self) -> bool:
        return False

    def model_info(self) -> dict[str, Any] | None:
        return {"model_dtype": "as before"}


def lm(model: Path, answers: Kept | None) -> Any:
    from mlx_bulk.jobs.harness import BulkLM

    kind: Any = BulkLM
    return kind(answers=answers, pretrained=str(model), batch_size=2)


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]  # pyright: ignore[reportArgumentType]


CALLS = {
    "loglikelihood": [("The king", " is"), ("The king", " is dead"), ("Now is", " the winter")],
    "loglikelihood_rolling": [("The king is dead.",), ("",), ("Enter a messenger.",)],
    "generate_until": [("The king", {"max_gen_toks": 4, "until": ["\n"]})] * 3,
}


@pytest.mark.parametrize("kind", CALLS)
def test_only_missing_answers_are_computed_and_all_have_their_places(model: Path, kind: str):
    requests = instances(kind, *CALLS[kind])
    expected = getattr(lm(model, None), kind)(requests)
    kept = Kept({0: expected[0]})
    found = getattr(lm(model, kept), kind)(requests)
    if kind == "generate_until":
        assert found == expected
    else:  # float32: which rows share a batch changes the order of sums
        assert np.ravel(found) == pytest.approx(np.ravel(expected), rel=1e-5)
    assert sorted(kept.added) == [1, 2]


@pytest.mark.parametrize("kind", CALLS)
def test_no_weights_are_loaded_where_all_answers_are_known(model: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr("mlx_bulk.jobs.harness.model.load_models", None)
    known: dict[int, Any] = {place: (-1.5, True) if kind == "loglikelihood" else place for place in range(3)}
    kept = Kept(known)
    ours = lm(model, kept)
    assert getattr(ours, kind)(instances(kind, *CALLS[kind])) == list(known.values())
    assert (kept.added, kept.infos) == ({}, [])
    assert ours.get_model_info() == {"model_dtype": "as before"}

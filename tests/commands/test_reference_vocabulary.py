"""Tests a reference model with logits of another width: padding is left out, missing tokens are refused."""

from pathlib import Path

import pytest

from ..checkpoints import LLAMA, VOCABULARY, write_checkpoint
from ..jobs.support.bench import Bench, Done

TEXT = "The king is dead, long live the king."


def _against(bench: Bench, tmp_path: Path, width: int) -> Done:
    reference = write_checkpoint(tmp_path / "reference", LLAMA | {"vocab_size": width})
    return bench.score(rows=[{"t": TEXT}], score={"text": "{{ t }}", "reference": str(reference)})


def test_a_padded_vocabulary_is_compared_over_the_tokens_of_both(bench: Bench, tmp_path: Path) -> None:
    done = _against(bench, tmp_path, VOCABULARY + 64)
    assert done.code == 0, done.stderr
    assert all(kl > 0 for kl in done.records[0]["kls"][1:])


def test_a_vocabulary_that_lacks_tokens_is_refused_before_anything_runs(bench: Bench, tmp_path: Path) -> None:
    done = _against(bench, tmp_path, VOCABULARY - 64)
    assert done.code == 5
    assert f"score.reference: found a vocabulary of {VOCABULARY - 64} ids, the model's has {VOCABULARY}" in done.stderr
    assert not list((done.output / "results").glob("part-*"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, write_checkpoint(tmp_path / "model"))

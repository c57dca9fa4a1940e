"""Tests that a checkpoint saved by transformers gives transformers' logprobs through our loader."""

from pathlib import Path

import pytest
from mlx_bulk.runner.core.errors import ModelError

from .counterparts import COUNTERPARTS, DIFFERENT, NOT_LOADED, write_counterpart
from .entries import EVERY, loaded
from .table import against_transformers

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-4  # float32 on both sides, logprobs of size 10: only the order of sums differs
FEW = ("llama", "deepseek_v3", "mamba2", "qwen3_next", "gpt_oss")


def test_at_least_25_architectures_have_a_counterpart():
    assert len(COUNTERPARTS) >= 25
    assert set(FEW) <= COUNTERPARTS.keys()


@pytest.mark.parametrize("name", COUNTERPARTS if EVERY else FEW)
def test_logprobs_are_those_of_transformers(name: str):
    assert against_transformers(name) <= TOLERANCE


@pytest.mark.parametrize("name", DIFFERENT if EVERY else ("glm",))
def test_architectures_that_the_docs_call_different_still_differ(name: str):
    assert against_transformers(name, DIFFERENT[name][0]) > TOLERANCE


@pytest.mark.parametrize("name", NOT_LOADED if EVERY else ("gpt2",))
def test_architectures_that_the_docs_call_unloadable_still_are(name: str, tmp_path: Path):
    write_counterpart(name, tmp_path, NOT_LOADED[name][0])
    with pytest.raises(ModelError):
        loaded(tmp_path)

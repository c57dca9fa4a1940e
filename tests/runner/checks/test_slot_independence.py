"""Tests the checks of what a row's bits depend on in a batch of deterministic mode: the other rows' tokens, its own slot."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels.cpu.numpy_blas import wheel_library
from mlx_bulk.runner.checks.slot_independence import slots_alike, slots_independent

from ..support.score_calls import TEXTS, as_bytes
from ..support.tiny import VOCABULARY, build
from ..support.tiny_runs import documents, scored, setup_of
from .test_padding_probe import Mixing

TESTS = Path(__file__).parents[2]


class Slotted:
    """A model that rounds otherwise in each slot of a batch, as some products of a BLAS do."""

    def __init__(self, network: Any):
        self.network, self.layers = network, network.layers

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        slots = mx.arange(tokens.shape[0])[:, None, None]
        logits = self.network(tokens, cache=cache)
        return logits + 1e-5 * slots * mx.sin(mx.arange(logits.shape[-1]))


@pytest.mark.parametrize("rows", [2, 3, 6, 16])
def test_slots_are_independent_where_bits_do_not_depend_on_other_rows(rows: int):
    assert slots_independent(build("llama"), VOCABULARY, rows)
    assert not slots_independent(Mixing(build("llama"), 1e-3), VOCABULARY, rows)


@pytest.mark.parametrize("rows", [2, 3, 32])
def test_a_slot_that_shows_in_the_bits_is_found(rows: int):
    assert not slots_alike(setup_of(Slotted(build("llama")), rows=rows, head=None, static=True))
    assert slots_alike(setup_of(Slotted(build("llama")), rows=1, head=None, static=True))


def test_passages_are_scored_one_at_a_time_where_the_slot_shows():
    of = setup_of(Slotted(build("llama")), head=None, static=True)
    assert (of.fixed_rows, of.with_features(any_slot=False).fixed_rows) == (4, 1)
    asked = documents(TEXTS)
    shuffled = [asked[i] for i in np.random.default_rng(0).permutation(len(asked))]
    assert as_bytes(scored(of, asked)) != as_bytes(scored(of, shuffled))
    of = of.with_features(any_slot=False)
    assert as_bytes(scored(of, asked)) == as_bytes(scored(of, shuffled))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or wheel_library() is None, reason="NumPy's wheel has no such kernels here")
@pytest.mark.parametrize("core", ["Haswell", "SkylakeX"])
def test_deterministic_mode_holds_with_the_kernels_of_other_processors(core: str):
    """OpenBLAS's Haswell kernels, which AMD's processors use too, sum some rows of a product in another way than the others."""
    if core == "SkylakeX" and "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    files = [TESTS / "runner" / "checks" / "test_scorer_static.py", TESTS / "commands" / "test_score_batches.py"]
    told = {**os.environ, "OPENBLAS_CORETYPE": core, "MLX_BULK_BLAS": "numpy"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *files]
    ran = subprocess.run(command, cwd=TESTS.parent, env=told, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:]

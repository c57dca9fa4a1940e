"""Samplers as functions of logits, and the settings of sampling that each of them is tried with."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.kernels.sampling import draw as sampling
from mlx_bulk.kernels.sampling.dry import DryRule, Repetition
from mlx_bulk.kernels.sampling.logits_processors import Edits
from mlx_bulk.kernels.sampling.parameters import Parameters
from mlx_bulk.runner.core.requests import Sampling
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Sampler = Callable[[Floats, Parameters], tuple[NDArray[np.int32], Floats]]
LAST = float(1 - 2.0**-24)  # the largest uniform there is
PLAIN = Sampling()


def by_specification(x: Floats, p: Parameters) -> tuple[NDArray[np.int32], Floats]:
    ids, under, *_ = sampling.reference(mx.array(x), p)
    return np.array(ids), np.array(under)


def by_library(x: Floats, p: Parameters) -> tuple[NDArray[np.int32], Floats]:
    drawn = sampling.on_cpu(x, p)
    return drawn.ids, drawn.sampled


def by_numpy(x: Floats, p: Parameters) -> tuple[NDArray[np.int32], Floats]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        return by_library(x, p)


REFERENCE = pytest.param(by_specification, id="reference")
LIBRARY = pytest.param(by_library, id="library", marks=pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++"))
SAMPLERS = [REFERENCE, pytest.param(by_numpy, id="numpy"), LIBRARY]


def edits_of(s: Sampling, rows: int, prompt: list[int], completion: list[int], eos: list[int]) -> Edits:
    """One row's edits, as the engine states them, for each of ``rows`` equal rows."""
    masked = sorted((set() if s.ignore_eos else set(eos)) | set(s.stop_token_ids)) if len(completion) < s.min_tokens else []
    changed = [*masked, *s.logit_bias]
    add = [*([-np.inf] * len(masked)), *s.logit_bias.values()]

    def flat(ids: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return np.repeat(np.arange(rows, dtype=np.int32), len(ids)), np.tile(np.array(ids, np.int32), rows)

    breaking = DryRule(s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_range, frozenset())
    repeated, lost = Repetition(breaking, [*prompt, *completion]).penalties() if s.dry_multiplier else ([], [])
    penalties = *flat([*prompt, *completion]), *flat(completion), *flat(list(repeated)), np.tile(np.array(lost, np.float32), rows)
    return Edits(*flat(changed), np.tile(np.array(add, np.float32), rows), *penalties)


def uniforms(n: int, seed: int) -> Floats:
    return (np.random.Philox(key=seed).random_raw(n) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


LOGITS = np.array([1.5, -0.3, 2.0, 0.0, 0.7, -2.5, 2.0, 1.1, -0.8, 0.2, -1.2, 0.9], np.float32)
PROMPT, COMPLETION, EOS = [0, 2, 5], [4, 4, 7, 3, 4], [6]
VARIANTS = {
    "plain": PLAIN,
    "hot": Sampling(temperature=2.5),
    "cold": Sampling(temperature=0.4),
    "top_k": Sampling(top_k=4),
    "top_k through a tie": Sampling(top_k=1),
    "top_p": Sampling(top_p=0.7),
    "min_p": Sampling(min_p=0.2),
    "typical_p": Sampling(typical_p=0.4),
    "typical_p of most": Sampling(typical_p=0.95, temperature=1.5),
    "xtc": Sampling(xtc_probability=1.0, xtc_threshold=0.12),
    "xtc at the least": Sampling(xtc_probability=0.5, xtc_threshold=0.02),
    "xtc without a pair": Sampling(xtc_probability=1.0, xtc_threshold=0.5),
    "xtc of what min_p left": Sampling(xtc_probability=1.0, xtc_threshold=0.2, min_p=0.2),
    "all filters": Sampling(temperature=1.4, top_k=10, top_p=0.95, min_p=0.05, typical_p=0.8, xtc_probability=0.9, xtc_threshold=0.15),
    "filters combined": Sampling(temperature=1.4, top_k=9, top_p=0.85, min_p=0.15),
    "bias": Sampling(logit_bias={1: 2.5, 2: -1.5, 6: -100.0}),
    "repetition": Sampling(repetition_penalty=1.6),
    "repetition below one": Sampling(repetition_penalty=0.5),
    "presence": Sampling(presence_penalty=1.2),
    "frequency": Sampling(frequency_penalty=0.6),
    "dry": Sampling(dry_multiplier=0.8, dry_allowed_length=1),
    "dry in a range": Sampling(dry_multiplier=2.0, dry_allowed_length=1, dry_range=4, dry_base=1.2),
    "min_tokens": Sampling(min_tokens=6, stop_token_ids=(2, 9)),
    "min_tokens, eos ignored": Sampling(min_tokens=6, stop_token_ids=(2,), ignore_eos=True),
    "min_tokens reached": Sampling(min_tokens=5, stop_token_ids=(2, 9)),
    "everything": Sampling(
        temperature=0.8, top_k=8, top_p=0.9, min_p=0.05, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3,
        dry_multiplier=0.5, dry_allowed_length=1,
        logit_bias={0: 0.7, 10: 3.0}, stop_token_ids=(7,), min_tokens=9,
    ),
}  # fmt: skip

"""Tests that joined projections leave the logits of every architecture as they are."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.layers.trial_calls import run_alone
from mlx_bulk.runner.patched_layers.joined_projections import has_joined, join_projections

from . import networks
from .configs import CONFIGS
from .entries import NAMES, parameters
from .trial import prompts

# Their layers have one projection for all, or projections of other names; Phi-3-small has them both, and no projection twice.
NOTHING_TO_JOIN = {
    "dbrx",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "mamba",
    "mamba2",
    "nanochat",
    "openelm",
    "phi3",
    "phi3small",
    "phixtral",
    "plamo2",
    "plamo3",
    "qwen",
    "rwkv7",
    "talkie",
}


@pytest.mark.parametrize("name", parameters(NAMES))
def test_logits_of_prefill_and_decode_steps_stay(name: str):
    network = networks.build(name, CONFIGS[name])
    ids = np.array(prompts()[1], np.int32)

    def called() -> mx.array:
        return run_alone(Network(network), [ids])

    truth = np.array(called())
    join_projections(network, called)
    assert has_joined(network) == (name not in NOTHING_TO_JOIN)
    spread = truth[np.isfinite(truth)].std()  # Phi-3-small's dummy tokens have none
    np.testing.assert_allclose(np.array(called()), truth, rtol=0, atol=1e-4 * spread)

"""Tests every architecture: a batch gives each row what the row gives alone, in the way that the probes chose.

By default a core of architectures is tried; MLX_BULK_ZOO=1 tries all. Bounds are the contract's for float32.
"""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from ..runner.support.naive_truth import DECODE_TOLERANCE, ECHO_TOLERANCE
from ..runner.support.tiny_runs import documents
from . import networks
from .configs import CONFIGS
from .entries import (
    CHANGED_BY_LOADING,
    CORE,
    DECODES_OTHERWISE,
    EVERY,
    NAMES,
    NOT_QUANTIZED,
    QUANTIZED,
    checkpoint,
    entry,
    loaded,
    parameters,
)
from .trial import TEXTS, Alone, choices, forced, generating, in_chunks, prompts, scoring, small

pytestmark = pytest.mark.compiles

by_name = pytest.mark.parametrize("name", parameters(NAMES))


def test_the_core_is_a_part_of_the_zoo():
    assert set(CORE) <= CONFIGS.keys()
    assert len(CORE) >= 20


@by_name
def test_a_checkpoint_that_was_saved_is_loaded_as_it_was(name: str, tmp_path_factory: pytest.TempPathFactory):
    model = entry(name).model
    again = loaded(networks.save(model.network, CONFIGS[name], tmp_path_factory.mktemp("again") / name))
    before, after = (dict(tree_flatten(m.network.parameters())) for m in (model, again))
    assert before.keys() == after.keys()
    # Equal but for what a loader does to any checkpoint: Baichuan's head is normalised each time.
    assert all(mx.allclose(before[key].astype(mx.float32), after[key].astype(mx.float32), rtol=1e-6, atol=1e-7).item() for key in before)


@by_name
def test_logprobs_of_a_loaded_checkpoint_are_those_of_what_was_built(name: str):
    built = Alone(networks.build(name, CONFIGS[name]))
    gaps = [np.abs(built.whole(ids) - entry(name).alone.whole(ids)).max() for ids in prompts()[:2]]
    assert max(gaps) <= ECHO_TOLERANCE or name in CHANGED_BY_LOADING


@by_name
def test_logprobs_spread(name: str):
    assert np.concatenate([entry(name).alone.whole(ids) for ids in prompts()]).std() > 1  # else an error would hide in the bounds


@by_name
def test_generated_tokens_and_echoes_are_those_of_the_row_alone(name: str):
    found = generating(small(entry(name).setup), entry(name).alone)
    assert found.alone <= ECHO_TOLERANCE
    assert found.echo <= ECHO_TOLERANCE
    assert found.whole <= DECODE_TOLERANCE or name in DECODES_OTHERWISE


@by_name
def test_prefill_in_chunks_changes_nothing(name: str):
    found = generating(in_chunks(entry(name).setup), entry(name).alone)
    assert found.batched <= ECHO_TOLERANCE
    assert found.whole <= DECODE_TOLERANCE or name in DECODES_OTHERWISE


@by_name
def test_scores_are_those_of_one_call(name: str):
    setup, alone = small(entry(name).setup), entry(name).alone
    assert scoring(setup, alone, documents(prompts(TEXTS))) <= ECHO_TOLERANCE
    assert scoring(setup, alone, choices()) <= ECHO_TOLERANCE


@by_name
def test_ways_that_the_probes_reject_are_wrong(name: str):
    found, setup = entry(name), entry(name).setup
    way = found.about["way"]
    taken = {
        "padded": way == "padded",
        "joined": way in ("padded", "joined"),
        "exact": way != "alone",
        "chunked": setup.features.chunked,
        "right_padded": setup.features.right_padded,
        "shared": setup.features.shared_passages,
    }
    for shortcut, cost in forced(setup, found.model.network).items():
        assert taken[shortcut] or cost() > ECHO_TOLERANCE, shortcut


@pytest.mark.parametrize("bits", [8, 4] if EVERY else [4])
@pytest.mark.parametrize("name", parameters(QUANTIZED, slow=("deepseek_v3", "qwen3_next", "gpt_oss", "mamba2")))
def test_quantized_weights_give_a_batch_what_they_give_a_row_alone(name: str, bits: int):
    if name in NOT_QUANTIZED:
        pytest.skip(NOT_QUANTIZED[name])
    found = entry(name, bits)
    assert any(key.endswith(".scales") for key, _ in tree_flatten(found.model.network.parameters()))
    for setup in (small(found.setup), in_chunks(found.setup)):
        assert generating(setup, found.alone).batched <= ECHO_TOLERANCE
    for asked in (documents(prompts(TEXTS)), choices()):
        assert scoring(small(found.setup), found.alone, asked) <= ECHO_TOLERANCE
    ids = prompts()[1]
    whole = loaded(checkpoint(name, bits)).network
    np.testing.assert_allclose(Alone(whole).whole(ids), found.alone.whole(ids), rtol=0, atol=ECHO_TOLERANCE)

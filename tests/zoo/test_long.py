"""Tests rows longer than a sliding window or a RoPE scaling: a batch gives what each row gives alone."""

import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.twins.tiny_config import window_lengths

from ..runner.support.naive_truth import DECODE_TOLERANCE, ECHO_TOLERANCE
from ..runner.support.tiny_runs import documents
from .configs import CONFIGS
from .entries import DECODES_OTHERWISE, EVERY, entry, parameters
from .ropes import ROPES, WIDE
from .trial import TEXTS, choices, generating, in_chunks, prompts, requests, scoring, small
from .windows import WINDOW

pytestmark = pytest.mark.compiles

# What decoding past the border begins at: before it, at it, a little behind, far behind it.
LENGTHS = (3, WINDOW - 1, WINDOW, WINDOW + 1, 50, 20)
TOKENS = (30, 4, 12, 20, 9, 15)
WINDOWED = tuple(name for name in CONFIGS if any(window_lengths(CONFIGS[name])))
SOME = ("gemma3_text", "gpt_oss", "iquestloopcoder", "llama4")
LONG = ("llama", "mamba2", "qwen3_next", "gemma3_text wide")
ROUNDS = ("deepseek_v41",)  # activations to few bits: models.md has what comes of it
ROPED = ("llama dynamic", "llama yarn", "phi3 longrope")

# A cached key keeps the rotation that was right for the tokens then known: what comes of it depends on the calls.
BY_CALL = tuple(name for name in ROPES if name.endswith("dynamic"))


@pytest.mark.parametrize("name", parameters(WINDOWED if EVERY else SOME, slow=SOME[1:]))
def test_rows_grow_across_the_border_of_the_window_and_far_beyond(name: str):
    assert name in WINDOWED
    found = generating(small(entry(name).setup), entry(name).alone, requests(LENGTHS, TOKENS))
    assert found.batched <= ECHO_TOLERANCE
    assert found.whole <= DECODE_TOLERANCE or name in DECODES_OTHERWISE


@pytest.mark.parametrize("name", parameters([*CONFIGS, *WIDE] if EVERY else LONG, slow=("mamba2", "qwen3_next", "gemma3_text wide")))
def test_rows_grow_across_what_caches_grow_by(name: str):
    """Of 256 tokens: also with a window that a cache has grown to only in its second step."""
    found, alone = entry(name), entry(name).alone
    together = generating(small(found.setup), alone, requests((250, 7, 300), (12, 30, 5)))
    assert together.batched <= ECHO_TOLERANCE or name in ROUNDS
    assert together.whole <= DECODE_TOLERANCE or name in {*DECODES_OTHERWISE, *ROUNDS}
    assert scoring(small(found.setup), alone, documents(prompts((300, 9, 270)))) <= ECHO_TOLERANCE or name in ROUNDS


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("llama", False),
        ("llama dynamic", True),
        *(pytest.param(name, True, marks=() if EVERY else pytest.mark.slow) for name in DECODES_OTHERWISE),
    ],
)
def test_who_runs_a_model_whose_logprobs_depend_on_its_calls_is_told(name: str, told: bool, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("WARNING", "mlx_bulk"):
        fit(entry(name).model, BatchConfig(), LogprobOptions())
    assert ("depend on the calls in which a text is fed (chunks: logprobs change by" in caplog.text) is told


@pytest.mark.parametrize("name", parameters(ROPES if EVERY else ROPED, slow=ROPED[1:]))
def test_scaled_positions_count_from_each_rows_start(name: str):
    found, alone = entry(name), entry(name).alone
    assert found.about["way"] == ("exact" if name in BY_CALL else "padded"), found.about["reason"]
    together = generating(small(found.setup), alone)
    assert together.batched <= ECHO_TOLERANCE
    assert together.whole <= DECODE_TOLERANCE or name in BY_CALL
    assert generating(in_chunks(found.setup), alone).batched <= ECHO_TOLERANCE
    for asked in (documents(prompts(TEXTS)), choices()):
        assert scoring(small(found.setup), alone, asked) <= ECHO_TOLERANCE

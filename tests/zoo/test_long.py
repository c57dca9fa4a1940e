"""Rows longer than a sliding window, or than what a scaling of positions begins at: a batch gives what each row gets alone."""

import pytest

from ..runner.tiny import DECODE_TOLERANCE, ECHO_TOLERANCE, documents
from .configs import CONFIGS
from .entries import EVERY, entry
from .ropes import ROPES
from .trial import TEXTS, choices, generating, in_chunks, prompts, requests, scoring, small
from .windows import WINDOW

# What decoding past the border begins at: before it, at it, a little behind, far behind it.
LENGTHS = (3, WINDOW - 1, WINDOW, WINDOW + 1, 50, 20)
TOKENS = (30, 4, 12, 20, 9, 15)
WINDOWED = ("gemma3_text", "gpt_oss", "iquestloopcoder", "llama4")
MORE = ("afmoe", "cohere2", "exaone4", "gemma4_text", "laguna", "mimo_v2_flash", "olmo3", "recurrent_gemma", "spark2_5", "step3p5")
ROPED = ("llama dynamic", "llama yarn", "phi3 longrope")

# A cached key keeps the rotation that was right for the tokens then known: what comes of it depends on the calls.
BY_CALL = tuple(name for name in ROPES if name.endswith("dynamic"))


@pytest.mark.parametrize("name", WINDOWED + MORE if EVERY else WINDOWED)
def test_rows_grow_across_the_border_of_the_window_and_far_beyond(name: str):
    assert name in CONFIGS
    found = generating(small(entry(name).setup), entry(name).alone, requests(LENGTHS, TOKENS))
    assert found.batched <= ECHO_TOLERANCE
    assert found.whole <= DECODE_TOLERANCE


@pytest.mark.parametrize("name", ROPES if EVERY else ROPED)
def test_scaled_positions_are_each_row_s_own(name: str):
    found, alone = entry(name), entry(name).alone
    assert found.about["way"] == ("exact" if name in BY_CALL else "padded"), found.about["reason"]
    together = generating(small(found.setup), alone)
    assert together.batched <= ECHO_TOLERANCE
    assert together.whole <= DECODE_TOLERANCE or name in BY_CALL
    assert generating(in_chunks(found.setup), alone).batched <= ECHO_TOLERANCE
    for asked in (documents(prompts(TEXTS)), choices()):
        assert scoring(small(found.setup), alone, asked) <= ECHO_TOLERANCE

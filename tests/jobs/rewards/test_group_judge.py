"""From rows and outcomes to what TRL's reward functions are given: strings for texts, messages for chats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.jobs.rewards.functions import find_functions
from mlx_bulk.jobs.rewards.group_judge import GroupJudge
from mlx_bulk.jobs.rewards.pool import RewardPool
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Row, Sample, Sampling
from mlx_bulk.runner.templates.prompt_templates import Chat, Rendered, Text

from ..support.reward_ratings import named, written

ECHO = """
def f(prompts, completions, completion_ids, q):
    raise ValueError(repr([prompts, completions, completion_ids, q]))
"""


def outcome(ids: list[int], index: int) -> Generated:
    logprobs = np.zeros(len(ids), np.float32)
    return Generated(0, Sample(index, 7), np.array(ids, np.int32), Scores(logprobs), logprobs, "stop", None, None)


def told(folder: Path, rendered: Rendered, row: dict[str, Any] | None = None) -> Any:
    """Returns the arguments that a function gets for two completions of a row, "<3>" and "<4 5>"; its columns are ``row``."""
    pool = RewardPool(find_functions(named(f"{written(folder, ECHO)}:f")), 1)
    judge = GroupJudge(
        pool,
        lambda row: rendered,
        lambda request, outcome: {"role": "assistant", "content": f"<{' '.join(map(str, outcome.ids))}>"},
        columns=["q"],
    )
    request = Request(0, Prompt("p", np.array([1], np.int32), np.array([0], np.int32)), Generate(Sampling(), (Sample(0, 7), Sample(1, 8))))
    try:
        found = judge.rate(Row(0, "0", {"q": "Why?"} if row is None else row), request, [outcome([3], 0), outcome([4, 5], 1)]).result(60)
    finally:
        judge.close()
    error = found.errors["f"][0]
    assert error is not None
    return eval(error.removeprefix("exception: ValueError: ").removesuffix(" (rewards.py, line 3)"))


def test_a_text_is_a_string(tmp_path: Path):
    assert told(tmp_path, Text("Why?")) == [["Why?"] * 2, ["<3>", "<4 5>"], [[3], [4, 5]], ["Why?"] * 2]


def test_a_row_that_lacks_a_column_gives_none(tmp_path: Path):
    assert told(tmp_path, Text("Why?"), {})[-1] == [None] * 2


@pytest.mark.parametrize("prefill", [None, "Because"])
def test_a_chat_is_its_messages_and_a_prefill_the_turn_that_is_gone_on_with(tmp_path: Path, prefill: str | None):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    turns = [*messages, {"role": "assistant", "content": "Because"}] if prefill else messages
    completions = [[{"role": "assistant", "content": text}] for text in ("<3>", "<4 5>")]
    assert told(tmp_path, Chat(messages, prefill)) == [[turns] * 2, completions, [[3], [4, 5]], ["Why?"] * 2]

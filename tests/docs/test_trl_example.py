"""The example for TRL on the page about rollouts, over the records of two rounds with groups left out."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .pages import ROOT, blocks

N = 2


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's example defines. Row 1 was left out in round 0, row 3 in both; rows 0 and 2 have one prompt."""
    prompts = {0: "a", 1: "b", 2: "a", 3: "c"}
    kept = [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    rows = [
        {
            "group_id": f"{turn}-{row}",
            "prompt": prompts[row],
            "prompt_ids": [row],
            "completion_ids": [turn, row, n],
        }
        | {"logprobs": [0.0] * 3, "env_mask": [1] * 3, "reward": 0.5}
        for turn, row in kept
        for n in range(N)
    ]
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.Table.from_pylist(rows), "trl.parquet")
    page = (ROOT / "docs" / "rollouts.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    text = next(block.text for block in blocks(page) if "def rollout_func" in block.text)
    exec(text[: text.index("batch = ")], names)  # what the page shows for its own run comes last
    return names


def test_each_group_comes_once_and_whole_in_the_order_of_rounds(example: dict[str, Any]):
    prompts = [row["prompt"] for row in example["dataset"]]
    assert prompts == ["a", "a", "a", "b", "a"]
    batches = [example["rollout_func"]([prompt] * N, None) for prompt in prompts]
    found = [batch["completion_ids"] for batch in batches]
    assert found == [[[turn, row, n] for n in range(N)] for turn, row in [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]]
    assert example["reward_func"](**{**batches[0], "prompts": prompts}) == [0.5] * N


def test_a_step_may_hold_several_groups_of_a_prompt(example: dict[str, Any]):
    found = example["rollout_func"](["a"] * 2 * N + ["b"] * N, None)["completion_ids"]
    assert [(turn, row) for turn, row, _ in found] == [(0, 0)] * N + [(0, 2)] * N + [(1, 1)] * N


def test_a_used_up_or_unknown_prompt_is_reported(example: dict[str, Any]):
    example["rollout_func"](["b"] * N, None)
    for prompt in ("b", "c"):
        with pytest.raises(LookupError, match=f"used up: '{prompt}'"):
            example["rollout_func"]([prompt] * N, None)

"""Tests what a reward model reads of a completion: its own template with the row's tools, one BOS, and reasons for what it cannot read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.configs.rewards import RewardConfig
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.jobs.rewards.rated_text import rated_input
from mlx_bulk.runner.core.images import ImageTable
from mlx_bulk.runner.core.requests import Generate, Prompt, PromptChat, Request, Sample, Sampling, TokenInput
from mlx_bulk.runner.models.reward_checkpoint import RewardModel, find_reward_model

from ...checkpoints import BOS
from ...reward_checkpoints import write_reward_model

TEMPLATE = """{{ bos_token }}{% if tools %}[tools]{{ tools[0].name }}{% endif %}{% for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls or [] %}<{{ call.function.name }}>{% endfor %}{% endfor %}"""
USER = {"role": "user", "content": "Why?"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RewardModel:
    folder: Path = write_reward_model(tmp_path_factory.mktemp("models") / "rater", max_position_embeddings=60)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return find_reward_model(RewardConfig(model=ModelConfig(path=str(folder))), "rewards[0].model", chats=True)


def asked(text: str, chat: PromptChat | None = None) -> Request:
    none = np.zeros(0, np.int32)
    return Request(0, Prompt(text, none, none), Generate(Sampling(), (Sample(0, 0),), chat=chat))


def read(model: RewardModel, request: Request, turn: dict[str, Any]) -> str:
    found = rated_input(model, request, {"role": "assistant", **turn})
    assert isinstance(found, TokenInput), found
    return str(model.tokenizer.hf.decode(found.ids))


def test_a_chat_has_the_rows_tools_its_prefill_and_one_bos(model: RewardModel):
    chat = PromptChat((USER,), "Well, ", {"tools": [{"name": "look_up"}]})
    call = {"type": "function", "function": {"name": "look_up", "arguments": {}}}
    bos = model.tokenizer.hf.bos_token
    text = read(model, asked("not read", chat), {"content": "so", "tool_calls": [call]})
    assert text == f"{bos}[tools]look_up[user]Why?[assistant]Well, so<look_up>"
    found = rated_input(model, asked("", chat), {"role": "assistant", "content": "so"})
    assert isinstance(found, TokenInput)
    assert found.ids.tolist().count(BOS) == 1


def test_a_text_is_followed_by_the_completion_without_special_tokens(model: RewardModel):
    assert read(model, asked("Why? "), {"content": "So."}) == "Why? So."


@pytest.mark.parametrize(
    ("request_", "content", "reason"),
    [
        (asked(""), "", "empty: prompt and completion have no token together; expected a text"),
        (asked("a b c d e f g h" * 10), "", "too_long: prompt and completion have "),
        (
            asked("", PromptChat(({"role": "system", "content": "x"}, USER), "", {})),
            "So.",
            "template: the chat template refuses the messages",
        ),
    ],
    ids=["empty", "long", "refused"],
)
def test_what_cannot_be_read_says_why(model: RewardModel, request_: Request, content: str, reason: str):
    found = rated_input(model, request_, {"role": "assistant", "content": content})
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_a_prompt_with_pictures_is_not_rated_by_its_text_alone(model: RewardModel):
    image = ImageTable(7).register("one", 1, (1, 1, 1), dict)
    request = asked("Why? <image>")
    request = replace(request, prompt=replace(request.prompt, images=(image,)))
    found = rated_input(model, request, {"role": "assistant", "content": "so"})
    assert found == "pictures: reward models read text alone, and the prompt has pictures; rate such rows with a function"

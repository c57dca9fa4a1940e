"""Rates the outcomes of a row: turns its prompt and completions into a group, as texts or chats, and hands it to a pool.

Implements ``Judge`` of runner/pipeline/job.py.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ...runner.core.outcomes import Generated
from ...runner.core.requests import Request, Row
from ...runner.pipeline.job import Ratings
from ...runner.text.prompt_templates import Chat, Message, Rendered
from .pool import Group, RewardPool


@dataclass(slots=True, frozen=True)
class GroupJudge:
    """Rates groups in a pool.

    render: makes a row's prompt. read: returns a completion as the assistant's turn: its answer, and its calls of tools.
    """

    pool: RewardPool
    render: Callable[[Row], Rendered]
    read: Callable[[Request, Generated], Message]

    def rate(self, row: Row, request: Request, outcomes: Sequence[Generated]) -> "Future[Ratings]":
        """Returns the future ratings of a row's outcomes, in their order."""
        prompt = self.render(row)
        turns = [self.read(request, outcome) for outcome in outcomes]
        return self.pool.rate(
            Group(
                prompt=_turns(prompt) if isinstance(prompt, Chat) else prompt.text,
                completions=[[turn] for turn in turns] if isinstance(prompt, Chat) else [turn["content"] for turn in turns],
                completion_ids=[outcome.ids.tolist() for outcome in outcomes],
                columns=row.columns,
            )
        )

    def close(self) -> None:
        """Ends all worker processes at once. Groups not rated yet stay unrated."""
        self.pool.close()


def _turns(chat: Chat) -> list[Message]:
    """Returns the messages. A prefill becomes an assistant's turn that the completion continues, as in TRL's prompts."""
    return [*chat.messages, *([{"role": "assistant", "content": chat.prefill}] if chat.prefill else [])]

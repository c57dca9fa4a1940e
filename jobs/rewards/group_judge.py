"""Rates the outcomes of a row: has the reward functions rate them as texts or chats, and adds what reward models gave each.

Implements ``Judge`` of runner/pipeline/job.py.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ...configs.rewards import RewardConfig
from ...runner.core.outcomes import Generated
from ...runner.core.requests import Request, Row
from ...runner.pipeline.job import Ratings
from ...runner.templates.chat_messages import Message
from ...runner.templates.prompt_templates import Chat, Rendered
from .pool import Group, RewardPool, storable
from .reward_failures import RewardFailures


@dataclass(slots=True, frozen=True)
class GroupJudge:
    """Rates groups.

    pool: calls the functions; None where all rewards are models'. render: makes a row's prompt. read: returns a completion as the
    assistant's turn: its answer, and its calls of tools. rewards: those of the config, in its order. failures: counts those of models.
    columns: names of the input's columns; where a row lacks one, functions get None for it.
    """

    pool: RewardPool | None
    render: Callable[[Row], Rendered]
    read: Callable[[Request, Generated], Message]
    rewards: Sequence[RewardConfig] = ()
    failures: RewardFailures = field(default_factory=RewardFailures)
    columns: Collection[str] = ()

    def rate(self, row: Row, request: Request, outcomes: Sequence[Generated]) -> "Future[Ratings]":
        """Returns the future ratings of a row's outcomes, in their order. Raises DataError where a model's ``on_error`` ends the run."""
        given = self._of_models(outcomes)
        if self.pool is not None:
            functions = self._of_functions(self.pool, row, request, outcomes)
            return _then(functions, lambda ratings: self._joined(ratings, given)) if given.rewards else functions
        ratings: Future[Ratings] = Future()
        ratings.set_result(given)
        return ratings

    def close(self) -> None:
        """Ends all worker processes at once. Groups not rated yet stay unrated."""
        if self.pool is not None:
            self.pool.close()

    def _of_functions(self, pool: RewardPool, row: Row, request: Request, outcomes: Sequence[Generated]) -> "Future[Ratings]":
        prompt = self.render(row)
        turns = [self.read(request, outcome) for outcome in outcomes]
        return pool.rate(
            Group(
                prompt=_turns(prompt) if isinstance(prompt, Chat) else prompt.text,
                completions=[[turn] for turn in turns] if isinstance(prompt, Chat) else [turn["content"] for turn in turns],
                completion_ids=[outcome.ids.tolist() for outcome in outcomes],
                columns={**dict.fromkeys(self.columns), **row.columns},
            )
        )

    def _of_models(self, outcomes: Sequence[Generated]) -> Ratings:
        """Returns what the reward models gave the outcomes before they were handed over."""
        ratings = Ratings({}, {})
        models = [(number, reward) for number, reward in enumerate(self.rewards) if reward.model is not None]
        for place, (number, reward) in enumerate(models):
            given = [outcome.ratings[place] for outcome in outcomes]
            ratings.rewards[reward.label] = [each.reward for each in given]
            ratings.errors[reward.label] = [storable(each.reason) for each in given]
            self.failures.count(f"rewards[{number}]", reward, ratings.errors[reward.label])
        return ratings

    def _joined(self, functions: Ratings, models: Ratings) -> Ratings:
        rewards, errors = functions.rewards | models.rewards, functions.errors | models.errors
        labels = [reward.label for reward in self.rewards]
        return Ratings({label: rewards[label] for label in labels}, {label: errors[label] for label in labels})


def _then(first: "Future[Ratings]", change: Callable[[Ratings], Ratings]) -> "Future[Ratings]":
    """Returns the future of what ``change`` makes of the first one's result. An error stays the error."""
    changed: Future[Ratings] = Future()

    def arrived(done: "Future[Ratings]") -> None:
        if (error := done.exception()) is not None:
            changed.set_exception(error)
        else:
            changed.set_result(change(done.result()))

    first.add_done_callback(arrived)
    return changed


def _turns(chat: Chat) -> list[Message]:
    """Returns the messages. A prefill becomes an assistant's turn that the completion continues, as in TRL's prompts."""
    return [*chat.messages, *([{"role": "assistant", "content": chat.prefill}] if chat.prefill else [])]

"""Ends reasoning after a budget of tokens, and keeps a grammar out of it: a guide around the guide of a grammar, if there is one.

    prompt … <think> │ Let me see. Two and │ Time is up. </think> \n\n │ {"answer": 4}
                     │ budget, counted     │ forced, one id a step    │ the grammar

Follows the text of the tokens with mlx-lm's state machine. Without a budget and without a grammar nobody needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Ids
from ..core.grammar_spec import GrammarSpec
from ..core.guide import Guidance, Guide

_Phase = Literal["before", "within", "behind", "after"]
_MOST_BLANKS = 4  # tokens of blanks between the end of reasoning and the text of a grammar


@dataclass(frozen=True)
class ThinkingGuidance:
    """What a row's reasoning is held to; implements ``runner.core.guide.Guidance``.

    begins, ends: the marks. tool: what begins and ends a call of a tool; None where that is unknown. budget: most tokens; None is no
    limit. message, closing: token ids that are forced at the end; the message only where reasoning is cut short the first time.
    opening: ids of the beginning mark, empty where the prompt says whether there is reasoning. open: the prompt began it. blanks: ids of
    tokens that are blank. stops: EOS and stop ids. vocabulary: ids are below it. text: of a token. inner: the grammar's guidance.
    """

    begins: str
    ends: str
    tool: tuple[str, str | None] | None
    budget: int | None
    message: tuple[int, ...]
    closing: tuple[int, ...]
    opening: tuple[int, ...]
    open: bool
    blanks: frozenset[int]
    stops: frozenset[int]
    vocabulary: int
    text: Callable[[int], str]
    inner: Guidance | None = None

    @property
    def grammar(self) -> GrammarSpec | None:
        """The grammar behind the reasoning; None without one."""
        return None if self.inner is None else self.inner.grammar

    def start(self) -> "ThinkingGuide":
        """Returns a guide for one completion, at its beginning."""
        return ThinkingGuide(self)

    def forced(self, ids: Ids) -> NDArray[np.bool_]:
        """Returns which of a completion's ids were forced [N], by following it again."""
        found = np.zeros(len(ids), np.bool_)
        if self.budget is None:
            return found
        guide = self.start()
        for at, token in enumerate(ids.tolist()):
            found[at] = guide.is_forced
            guide.push(token)
        return found

    @cached_property
    def machine(self) -> Any:
        """mlx-lm's machine, which tells by the text of tokens whether they are reasoning, a call of a tool, or neither."""
        from mlx_lm.generate import TextStateMachine

        edges = {"normal": [(self.begins, "reasoning")], "reasoning": [(self.ends, "normal")], "tool": list[tuple[str, str]]()}
        if self.tool is not None:
            for state in ("normal", "reasoning"):
                edges[state].append((self.tool[0], "tool"))
            edges["tool"] += [(self.tool[1], "normal")] if self.tool[1] else []
        return TextStateMachine(edges)


class ThinkingGuide:
    """Follows one completion; implements ``runner.core.guide.Guide``.

    With a grammar there are phases: before (reasoning may begin, or the grammar's text), within the reasoning, behind it (blanks may come),
    and after, where the grammar alone counts and marks of reasoning are text like any other.
    """

    def __init__(self, guidance: ThinkingGuidance):
        self._of = guidance
        self._grammar: Guide | None = guidance.inner.start() if guidance.inner is not None else None
        self._machine = guidance.machine.make_state("reasoning" if guidance.open else "normal")
        self._phase: Literal["before", "within", "behind", "after"] = (
            "within" if guidance.open else "before" if guidance.opening else "after"
        )
        self._begun, self._blanks = 0, 0  # ids of the beginning mark, and blanks behind the end
        self._used, self._cut, self._queue = 0, False, list[int]()
        self._force_end()

    @property
    def error(self) -> str | None:
        """Why the guide cannot go on; None while it can."""
        return None if self._grammar is None else self._grammar.error

    @property
    def complete(self) -> bool | None:
        """True when the text behind the reasoning is a whole text of the grammar; None without a grammar."""
        if self._grammar is None:
            return None
        return self._phase != "within" and not self._begun and bool(self._grammar.complete)

    @property
    def is_forced(self) -> bool:
        """True when only one id may come next, to end the reasoning."""
        return bool(self._queue)

    def fill(self, into: NDArray[np.int32]) -> bool:
        """Writes which ids may come next to ``into``, as ``Guide.fill`` says. Returns False where any may."""
        if self._queue or self._begun:
            into[:] = 0
            _allow(into, self._queue[0] if self._queue else self._of.opening[self._begun])
            return True
        if self._grammar is None:
            return False
        if self._phase == "within":
            _allow_all(into, self._of.vocabulary)
            for token in self._of.stops:
                _forbid(into, token)
            return True
        masked = self._grammar.fill(into)
        if masked and self._phase == "before":
            _allow(into, self._of.opening[0])
        if masked and self._phase == "behind" and self._blanks < _MOST_BLANKS:
            for token in self._of.blanks:
                _allow(into, token)
        return masked

    def push(self, token: int) -> None:
        """Takes the token that was drawn."""
        forced = bool(self._queue)
        if forced:
            self._queue.pop(0)
        if self._of.inner is not None and self._phase != "within":
            self._push_grammar(token)
            if self._phase in ("behind", "after"):
                return
        before = self._machine[0]
        self._machine, _ = self._of.machine.split(self._machine, self._of.text(token))
        now = self._machine[0]
        if now == "normal" and self._phase == "within" and not self._queue:
            self._phase = "behind"
        if before == now == "reasoning" and not forced:
            self._used += 1
        self._force_end()

    def _push_grammar(self, token: int) -> None:
        """Gives a token to the grammar, unless it begins reasoning or stands between reasoning and the grammar's text."""
        opening = self._of.opening
        if self._phase == "before" and token == opening[self._begun] and (self._begun or not self._grammar_takes(token)):
            self._begun = (self._begun + 1) % len(opening)
            self._phase = "before" if self._begun else "within"
        elif self._phase == "behind" and token in self._of.blanks and self._blanks < _MOST_BLANKS and not self._grammar_takes(token):
            self._blanks += 1
        else:
            self._phase = "after"
            if self._grammar is not None:
                self._grammar.push(token)

    def _grammar_takes(self, token: int) -> bool:
        if self._grammar is None:
            return False
        mask = np.zeros((self._of.vocabulary + 31) // 32, np.int32)
        return not self._grammar.fill(mask) or bool((int(mask[token // 32]) >> token % 32) & 1)

    def _force_end(self) -> None:
        """Fills the queue of forced ids once the budget is used up, unless a call of a tool is open."""
        budget = self._of.budget
        if budget is None or self._queue or self._machine[0] != "reasoning" or self._used < budget:
            return
        self._queue = [*(() if self._cut else self._of.message), *self._of.closing]
        self._cut = True


def _allow(into: NDArray[np.int32], token: int) -> None:
    into.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


def _forbid(into: NDArray[np.int32], token: int) -> None:
    into.view(np.uint32)[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)


def _allow_all(into: NDArray[np.int32], vocabulary: int) -> None:
    into[:] = -1
    if vocabulary % 32:
        into.view(np.uint32)[vocabulary // 32] = np.uint32((1 << vocabulary % 32) - 1)

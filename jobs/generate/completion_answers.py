"""Joins a job to what reads its completions: which columns there are, how a row is read, and what ends its reasoning."""

import json
import logging
from collections.abc import Callable
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...configs.errors import ConfigError
from ...configs.schema import GenerateConfig
from ...runner.answers.answer import Answer, AnswerReader
from ...runner.answers.call_grammar import JSON_CALLS, call_grammar, why_no_call_grammar
from ...runner.answers.completion_text import CompletionText
from ...runner.answers.reasoning_marks import ReasoningMarks, find_reasoning_marks
from ...runner.answers.sections import Marks, find_sections, literal
from ...runner.answers.thinking_guide import ThinkingGuidance
from ...runner.answers.tool_format import ToolFormat, find_tool_format
from ...runner.answers.tools import ToolChoice, tool_names
from ...runner.core.errors import RowError
from ...runner.core.grammar_spec import GrammarSpec
from ...runner.core.guide import Guidance
from ...runner.core.outcomes import Generated
from ...runner.core.requests import Prompt, Reading, Request, Row, Sampling
from ...runner.pipeline.job import Parts
from ...runner.templates.chat_messages import Message
from ...runner.templates.prompt_templates import Chat
from .completion_columns import AnswerColumns
from .row_settings import RowReader, RowSettings

log = logging.getLogger("mlx_bulk")

_SOMETHING = "\u2039what a user says\u203a"
_BLANKS = ("\n", "\n\n", "\n\n\n")  # what may stand between reasoning and a grammar's text: content is without newlines there


class CompletionAnswers:
    """Reads the completions of one run."""

    def __init__(self, parts: Parts, rows: RowReader):
        """Raises ConfigError where the config asks for what the model has not: marks of reasoning, or a parser."""
        assert isinstance(parts.config, GenerateConfig)
        self._parts, self._rows, self._config = parts, rows, parts.config
        self.marks: ReasoningMarks | None = find_reasoning_marks(self._config.reasoning.marks, parts.tokenizer)
        self.format: ToolFormat | None = find_tool_format(self._config.tools.parser, parts.tokenizer)
        self._assumed = self.format is None and self._config.tools.parser == "auto" and self._config.data.format == "openai"
        if self._assumed:  # a request that must call a tool is answered, whatever the model knows of tools
            self.format = find_tool_format(JSON_CALLS, parts.tokenizer)
        if rows.budgets and self.marks is None and self._config.reasoning.budget is not None:
            cure = "set reasoning.marks to what begins and ends it, or remove the budget"
            raise ConfigError(f"reasoning.budget: the model's chat template has no marks of reasoning that are known; {cure}")
        if self._config.prompt.tool_choice not in ("none", "auto") and (problem := why_no_call_grammar(self.format)):
            raise ConfigError(f"prompt.tool_choice: {problem}")

    def warn(self) -> None:
        """Says what may surprise: calls that are not read, and reasoning that leaves no room for an answer."""
        if self.columns.tools and self._assumed:
            log.warning("no parser is known for the model's chat template: calls are read by %s; tools.parser can name another", JSON_CALLS)
        if self.columns.tools and self.format is None:
            cause = "tools.parser is none" if self._config.tools.parser == "none" else "no parser is known for the model's chat template"
            log.warning("calls of tools are not read and stay in the content: %s; tools.parser can name one", cause)
        if self._rows.guided and self.columns.reasoning and not self._rows.budgets and self._may_reason:
            log.warning(
                "the model may reason before it answers, and its grammar holds the answer alone: a completion whose reasoning takes all of "
                "max_tokens has none; set reasoning.budget"
            )

    @property
    def _may_reason(self) -> bool:
        """True unless the chat template, with the config's variables, says that there is no reasoning."""
        if self.marks is None:
            return False
        found = find_sections(self._opening("{}", {}) or "", [literal("reasoning", self.marks.begins, self.marks.ends)])
        return not any(section.kind == "reasoning" and section.closed for section in found[-2:])

    @cached_property
    def columns(self) -> AnswerColumns:
        """The columns of the parts of a completion. They follow from config, rows and checkpoint alone."""
        given = isinstance(self._config.reasoning.marks, list)
        chats = self._config.prompt.sources != ["text"]
        reasoning = self._reader.splits and self._config.reasoning.marks != "none" and (chats or given)
        return AnswerColumns(
            reasoning=reasoning,
            forced=reasoning and self._rows.budgets,
            tools=self._rows.tools or self._config.tools.parse == "always",
            grammar=self._rows.guided,
        )

    @cached_property
    def _reader(self) -> AnswerReader:
        marks: Marks | None = None if self.marks is None else literal("reasoning", self.marks.begins, self.marks.ends)
        return AnswerReader(marks, self.format)

    # ------------------------------------------------------------------------------------------------- before it is drawn

    def reading(self, asked: RowSettings, prompt: Prompt) -> Reading:
        """Returns how the completions of a row are read."""
        chat = isinstance(asked.prompt, Chat)
        reasoning = self.columns.reasoning and (chat or isinstance(self._config.reasoning.marks, list))
        shown = bool(asked.tools) and asked.tool_choice.mode != "none"
        calls = self.columns.tools and self.format is not None and (shown or self._config.tools.parse == "always")
        if not reasoning and not calls:
            return Reading()
        prefill = (asked.prompt.prefill or "") if isinstance(asked.prompt, Chat) else ""
        return Reading(
            turn=self._turn(prompt.text, prefill, asked.template_args if chat else None),
            reasoning=reasoning,
            calls=calls,
            tools=tuple(asked.tools or ()) if shown else (),
            names=asked.tool_choice.names,
            single=not asked.parallel_tool_calls,
        )

    def _turn(self, prompt: str, prefill: str, variables: dict[str, Any] | None) -> str:
        """Returns the end of a prompt that belongs to the assistant's turn.

        It is what the chat template puts behind a user's words. Where a prompt ends otherwise, it is the reasoning that is open there.
        """
        opening = None if variables is None else self._opening(json.dumps(variables, sort_keys=True, default=str), variables)
        if opening is not None and prompt[: len(prompt) - len(prefill)].endswith(opening):
            return prompt[len(prompt) - len(prefill) - len(opening) :]
        if self.marks is not None and (at := prompt.rfind(self.marks.begins)) > prompt.rfind(self.marks.ends):
            return prompt[at:]
        return prefill

    @cached_property
    def _opening(self) -> Callable[[str, dict[str, Any]], str | None]:
        """The function from a chat template's variables (also as text, to remember them by) to what it puts behind a user's words."""
        known: dict[str, str | None] = {}

        def opening(key: str, variables: dict[str, Any]) -> str | None:
            if key not in known:
                try:
                    text = self._parts.tokenizer.chat_text([{"role": "user", "content": _SOMETHING}], "", variables)
                    known[key] = text.rpartition(_SOMETHING)[2] if _SOMETHING in text else None
                except RowError:  # a template that wants more than one message
                    known[key] = None
            return known[key]

        return opening

    @property
    def configured_call(self) -> GrammarSpec | None:
        """The grammar of the calls that the config requires of all rows; None where it requires none, or where rows bring their tools."""
        prompt = self._config.prompt
        choice = ToolChoice.of(prompt.tool_choice)
        if not isinstance(prompt.tools, list) or choice.mode != "required" or self.format is None:
            return None
        return call_grammar(self.format, list(prompt.tools), choice, not prompt.parallel_tool_calls, self._encode)

    def call_spec(self, asked: RowSettings) -> GrammarSpec | None:
        """Returns the grammar of a row that must call a tool; None for others. Raises RowError where that can not be asked for."""
        if asked.tool_choice.mode != "required" or not asked.tools:
            return None
        if asked.structured is not None:
            raise RowError("grammar", "this row must call a tool and has a grammar of its own; expected one of the two")
        if problem := why_no_call_grammar(self.format):
            raise RowError("grammar", problem, "unsupported_tool_choice")
        names = tool_names(asked.tools)
        if missing := [name for name in asked.tool_choice.names if name not in names]:
            raise RowError("grammar", f"this row must call the tool {missing[0]!r}; expected one of its tools: {', '.join(names)}")
        assert self.format is not None, "it has a call grammar"
        return call_grammar(self.format, asked.tools, asked.tool_choice, not asked.parallel_tool_calls, self._encode)

    def guidance(self, asked: RowSettings, reading: Reading, sampling: Sampling, grammar: Guidance | None) -> Guidance | None:
        """Returns the guidance of a row: the ``grammar``'s, with the row's reasoning before it. Raises RowError."""
        if asked.thinking_budget is not None and self.marks is None:
            raise RowError("reasoning", "this row limits its reasoning, and the model has no marks of reasoning that are known")
        if self.marks is None or not reading.reasoning or (asked.thinking_budget is None and grammar is None):
            return grammar
        turn = find_sections(reading.turn, [literal("reasoning", self.marks.begins, self.marks.ends)])
        before = [section for section in turn if section.kind == "reasoning"]
        encode = self._encode
        tool = None if self.format is None or self.format.begins is None or not reading.calls else (self.format.begins, self.format.ends)
        return ThinkingGuidance(
            begins=self.marks.begins,
            ends=self.marks.ends,
            tool=tool,
            budget=asked.thinking_budget,
            message=encode(self._config.reasoning.message or ""),
            closing=(*encode(self.marks.ends), *encode(self.marks.after)),
            opening=() if before else encode(self.marks.begins),
            open=bool(before) and not before[-1].closed,
            blanks=self._blanks,
            stops=frozenset(self._parts.eos) | frozenset(sampling.stop_token_ids),
            vocabulary=self._parts.vocabulary,
            text=self._token_text,
            inner=grammar,
        )

    @cached_property
    def _encode(self) -> Callable[[str], tuple[int, ...]]:
        return cache(lambda text: tuple(self._parts.tokenizer.encode_text(text).ids.tolist()) if text else ())

    @cached_property
    def _token_text(self) -> Callable[[int], str]:
        return cache(lambda token: self._parts.tokenizer.token_bytes(token).decode("utf-8", "replace"))

    @cached_property
    def _blanks(self) -> frozenset[int]:
        ids = [self._encode(text) for text in _BLANKS]
        return frozenset(each[0] for each in ids if len(each) == 1)

    # -------------------------------------------------------------------------------------------------- after it is drawn

    def answer(self, request: Request, outcome: Generated, length: int) -> Answer:
        """Returns the parts of a completion. length: of its text as the record has it, in code points."""
        return self._reader.read(CompletionText.of(self._parts.tokenizer, request.work.sampling, outcome, length), request.work.reading)

    def forced(self, request: Request, outcome: Generated) -> NDArray[np.bool_]:
        """Returns which of a completion's tokens were forced, to end its reasoning [N]."""
        guidance = request.work.guidance
        return guidance.forced(outcome.ids) if isinstance(guidance, ThinkingGuidance) else np.zeros(len(outcome.ids), np.bool_)

    def turn(self, request: Request, outcome: Generated, completion: str) -> Message:
        """Returns a completion as the assistant's turn of a chat: its content, and its calls if it has any."""
        if request.work.reading == Reading():
            return {"role": "assistant", "content": completion}
        answer = self.answer(request, outcome, len(completion))
        calls = [{"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in answer.calls]
        return {"role": "assistant", "content": answer.content or "", **({"tool_calls": calls} if calls else {})}

    def values(self, row: Row, request: Request, outcome: Generated, completion: str) -> dict[str, Any]:
        """Returns the values of the parts' columns."""
        if not (self.columns.reasoning or self.columns.tools):
            return {}
        reading = request.work.reading
        answer = self.answer(request, outcome, len(completion)) if reading != Reading() else Answer(content=completion)
        calls = [
            {"id": call.id or _call_id(row, outcome.index, at), "name": call.name, "arguments": call.arguments}
            for at, call in enumerate(answer.calls)
        ]
        return {
            "reasoning": answer.reasoning,
            "reasoning_tokens": answer.reasoning_tokens if reading.reasoning else None,
            "reasoning_forced": bool(self.forced(request, outcome).any()) if reading.reasoning else None,
            "content": answer.content,
            "tool_calls": calls if reading.calls else None,
            "tool_error": answer.error,
        }


def _call_id(row: Row, sample: int, at: int) -> str:
    """Returns an id that the same call has in every session."""
    return "call_" + blake2b(json.dumps([row.key, row.round, sample, at]).encode(), digest_size=12).hexdigest()

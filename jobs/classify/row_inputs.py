"""Turns a row into the inputs of a classifier, by what the row brings: a prompt, a pair, a query with documents, or a preference.

prompt       one text or chat                      1 input
pair         query, document                       1 input
documents    query, documents [n]                  n inputs, in the documents' order
preference   prompt, chosen, rejected              2 inputs: chosen, rejected
"""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from ...configs.classify import ClassifyConfig
from ...configs.explain import shown
from ...runner.core.errors import RowError
from ...runner.core.requests import TokenInput
from ...runner.data.column_paths import lookup, require_column
from ...runner.templates.chat_messages import Columns, Message, read_messages
from ...runner.templates.prompt_templates import Chat, Rendered, Text, compile_prompt, compile_template
from ..score.choices import read_choices
from .input_encoder import InputEncoder
from .pair_format import PairFormat

Inputs = tuple[tuple[TokenInput, ...], int]  # and how many of them were cut
Answer = str | list[Message]


def check_inputs(config: ClassifyConfig, columns: Collection[str]) -> None:
    """Parses the templates, and checks that ``columns``, if there are any, hold those that they read. Raises as ``Kind.check``."""
    classify = config.classify
    if config.prompt.sources:
        compile_prompt(config.prompt, columns)
    for name in ("query", "document", "completion"):
        if (template := getattr(classify, name)) is not None:
            compile_template(template, f"classify.{name}", columns)
    for name in ("documents", "chosen", "rejected"):
        if (path := getattr(classify, name)) is not None:
            require_column(columns, path, f"classify.{name}")


class RowInputs:
    """Makes inputs of rows. variables: the chat template's own for chats that are not pairs."""

    def __init__(
        self, config: ClassifyConfig, columns: Collection[str], encoder: InputEncoder, pairs: PairFormat | None, variables: dict[str, Any]
    ):
        self._encoder, self._pairs, self._variables = encoder, pairs, variables
        forms = {"prompt": self._prompt, "pair": self._pair, "documents": self._documents, "preference": self._preference}
        self.of: Callable[[Columns], Inputs] = forms[config.classify.form](config, columns)

    def _prompt(self, config: ClassifyConfig, columns: Collection[str]) -> Callable[[Columns], Inputs]:
        prompt, template = compile_prompt(config.prompt, columns), config.classify.completion
        if template is None:
            return lambda row: _inputs([self._rendered(prompt(row))])
        completion = compile_template(template, "classify.completion", columns)
        return lambda row: _inputs([self._rendered(_answered(prompt(row), completion(row), "classify.completion"))])

    def _pair(self, config: ClassifyConfig, columns: Collection[str]) -> Callable[[Columns], Inputs]:
        query = compile_template(config.classify.query or "", "classify.query", columns)
        document = compile_template(config.classify.document or "", "classify.document", columns)
        return lambda row: _inputs([self._paired(query(row), document(row))])

    def _documents(self, config: ClassifyConfig, columns: Collection[str]) -> Callable[[Columns], Inputs]:
        query, path = compile_template(config.classify.query or "", "classify.query", columns), config.classify.documents or ""

        def inputs(row: Columns) -> Inputs:
            first = query(row)
            return _inputs([self._paired(first, document) for document in read_documents(row, path)])

        return inputs

    def _preference(self, config: ClassifyConfig, columns: Collection[str]) -> Callable[[Columns], Inputs]:
        prompt = compile_prompt(config.prompt, columns) if config.prompt.sources else lambda _: None
        sides = [(f"classify.{name}", getattr(config.classify, name)) for name in ("chosen", "rejected")]

        def inputs(row: Columns) -> Inputs:
            before = prompt(row)
            return _inputs([self._compared(_answered(before, _answer(row, path, option), option), option) for option, path in sides])

        return inputs

    def _compared(self, rendered: Rendered, option: str) -> tuple[TokenInput, bool]:
        if isinstance(rendered, Chat) and not self._encoder.takes_chats:  # the column's own messages: no setting told of them before
            cure = "set prompt.chat_template, or give texts"
            raise RowError("template", f"{option}: found messages, and the model's tokenizer has no chat template; {cure}")
        return self._rendered(rendered)

    def _rendered(self, rendered: Rendered) -> tuple[TokenInput, bool]:
        if isinstance(rendered, Text):
            return self._encoder.text(rendered.text)
        return self._encoder.chat(rendered.messages, self._variables, rendered.prefill or "")

    def _paired(self, query: str, document: str) -> tuple[TokenInput, bool]:
        assert self._pairs is not None, "a form with pairs has a format"
        return self._pairs.encode(self._encoder, query, document)


def read_documents(row: Columns, path: str) -> tuple[str, ...]:
    """Returns a row's documents. Raises RowError."""
    return read_choices(row, path, "classify.documents", "document")


def _inputs(encoded: list[tuple[TokenInput, bool]]) -> Inputs:
    return tuple(each for each, _ in encoded), sum(cut for _, cut in encoded)


def _answer(row: Columns, path: str, option: str) -> Answer:
    """Returns an answer: messages, also as JSON text of them, or a text. Raises RowError."""
    value = lookup(row, path)
    if isinstance(value, str) and not _is_chat(value):
        return value
    if not isinstance(value, str | list) or not value:
        raise RowError("template", f"{option}: {path!r} holds {shown(value)}; expected a text, or a list of messages ({{role, content}})")
    return read_messages(row, path)


def _is_chat(text: str) -> bool:
    """Returns True for the JSON text of messages, as CSV holds them."""
    if text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            return bool(value) and isinstance(value, list) and all(isinstance(each, dict) and "role" in each for each in value)
    return False


def _answered(prompt: Rendered | None, answer: Answer, option: str) -> Rendered:
    """Returns a prompt with its answer: texts one after the other, or a chat that ends with the assistant's turn. Raises RowError."""
    if isinstance(prompt, Chat):
        turns = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        return Chat([*prompt.messages, *turns])
    if isinstance(answer, str):
        return Text(answer if prompt is None else prompt.text + answer)
    if prompt is not None:
        raise RowError("template", f"{option}: found messages behind prompt.text; give turns before them by prompt.messages or prompt.user")
    return Chat(answer)

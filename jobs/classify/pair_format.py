"""How a model reads a query and a document: by the tokenizer's pair template, or as a chat.

roles        a chat template that knows the roles query and document, as sentence-transformers' rerankers have
judge        any other chat model: the words of Qwen3-Reranker in a user turn, answered by one of two tokens
tokenizer    [CLS] query [SEP] document [SEP], or what else the tokenizer makes of two texts
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from ...runner.core.errors import RowError
from ...runner.core.requests import TokenInput
from ...runner.templates.chat_messages import Message
from ...runner.text.tokenizer import Tokenizer
from .input_encoder import InputEncoder

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"  # Qwen3-Reranker's own
_MARKS = ("first-text-4711", "second-text-4712")  # no template writes them by itself
_JUDGE = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "


@dataclass(slots=True, frozen=True)
class PairFormat:
    """A format of pairs.

    instruction: None where nothing is asked. variables: the chat template's. parts: contents are lists of parts. system: the template
    shows a system turn. words: what a judge answers.
    """

    kind: Literal["roles", "judge", "tokenizer"]
    instruction: str | None = None
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    parts: bool = False
    system: bool = True
    words: tuple[str, str] = ("yes", "no")

    def encode(self, encoder: InputEncoder, query: str, document: str) -> tuple[TokenInput, bool]:
        """Encodes a pair, and says whether it was cut. Raises RowError."""
        if self.kind == "tokenizer":
            return encoder.pair((self.instruction or "") + query, document)
        return encoder.chat(self.messages(query, document), self.variables, pair=True)

    def messages(self, query: str, document: str) -> list[Message]:
        """Returns the pair as the chat that the model's template takes."""
        if self.kind == "roles":
            turns = [("system", self.instruction)] if self.instruction is not None else []
            return [_message(role, text, self.parts) for role, text in [*turns, ("query", query), ("document", document)]]
        asked = f"<Instruct>: {self.instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        task = f'{_JUDGE}"{self.words[0]}" or "{self.words[1]}".'
        turns = [("system", task), ("user", asked)] if self.system else [("user", f"{task}\n\n{asked}")]
        return [_message(role, text, parts=False) for role, text in turns]


def roles_in_template(tokenizer: Tokenizer, variables: dict[str, Any], *, named: bool) -> Literal["no", "texts", "parts"]:
    """Says whether the chat template shows the turns of the roles query and document, and in which form their contents are.

    named: a template counts that names both roles, and none that shows whatever role there is.
    """
    if not tokenizer.has_chat_template or (named and not all(role in tokenizer.template_text for role in ("query", "document"))):
        return "no"
    for form in ("texts", "parts"):
        messages = [_message(role, mark, form == "parts") for role, mark in zip(("query", "document"), _MARKS, strict=True)]
        with suppress(RowError):
            text = tokenizer.messages_text(messages, **variables)
            if all(mark in text for mark in _MARKS):
                return form
    return "no"


def shows_system_turn(tokenizer: Tokenizer, variables: dict[str, Any]) -> bool:
    """Returns False for a chat template that refuses or leaves out a system turn, as Gemma's does."""
    chat = [_message(role, mark, parts=False) for role, mark in zip(("system", "user"), _MARKS, strict=True)]
    with suppress(RowError):
        return _MARKS[0] in tokenizer.messages_text(chat, **variables)
    return False


def _message(role: str, text: str, parts: bool) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}] if parts else text}

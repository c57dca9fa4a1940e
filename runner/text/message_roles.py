"""Finds chat messages whose role a chat template does not know: a misspelt role, or one whose messages the template leaves out.

A template that writes any role as it stands, as ChatML's does, makes a prompt of a misspelt one that the model has never seen; one that
asks for each role by its name drops the message without a word. Knows no tokens.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..core.errors import RowError

log = logging.getLogger("mlx_bulk")

ROLES = ("system", "developer", "user", "assistant", "tool")
_USUAL = ("system", "user", "assistant")  # a template that leaves such a message out means to
_MARK = "mlxbulkroleprobe"
_ALIKE = 0.7  # as difflib counts: "usr" and "asistant" are, "human" is not
_MOST = 1000  # roles that are remembered
_WARNED = 10  # roles that a warning names

Messages = list[dict[str, Any]]


@dataclass(slots=True)
class MessageRoles:
    """The roles of one chat template. mentions: whether the template holds a text. render: messages -> text, or RowError."""

    mentions: Callable[[str], bool]
    render: Callable[[Messages], str]
    _faults: dict[str, str | None] = field(default_factory=dict[str, str | None])
    _warned: int = 0

    def names(self, role: str) -> bool:
        """Returns whether the template holds the role in quotes."""
        return any(self.mentions(f"{quote}{role}{quote}") for quote in ("'", '"'))

    def require_known(self, messages: Messages) -> None:
        """Raises RowError for a message whose role the template does not know. A role that it only passes on gets a warning, once."""
        for index, message in enumerate(messages):
            role = message.get("role")
            if role in _USUAL or not isinstance(role, str):
                continue
            if role not in self._faults and len(self._faults) < _MOST:
                self._faults[role] = self._fault(role)
            if (fault := self._faults.get(role)) is not None:
                raise RowError("template", f"message {index + 1} of the chat has the role {role!r}, {fault}")

    def _fault(self, role: str) -> str | None:
        if self.names(role):
            return None
        plain, texts = role.strip().lower(), self._texts(role)
        kept = any(_MARK in text for text in texts if text is not None)
        if kept and plain != role and texts == self._texts(plain):
            return None  # the template does not tell capitals from small letters
        if role not in ROLES and plain.isalpha() and (near := get_close_matches(plain, ROLES, n=1, cutoff=_ALIKE)):
            return f"which the chat template does not know; did you mean {near[0]}?"
        if not kept and any(text is not None for text in texts):
            return f"and the chat template leaves such messages out; expected one of {', '.join(ROLES)}, or another that it names"
        if kept and role not in ROLES and self._warned < _WARNED:
            self._warned += 1
            log.warning("messages have the role %r, which the chat template does not know and writes as it stands", role)
        return None

    def _texts(self, role: str) -> list[str | None]:
        """Returns the texts of some chats with a message of this role; None for each that the template refuses."""
        found: list[str | None] = []
        for chat in _chats(role):
            try:
                found.append(self.render(chat))
            except (RowError, ValueError):  # ValueError: there are several templates, and none is for plain chats
                found.append(None)
        return found


def _chats(role: str) -> Iterator[Messages]:
    """Yields chats with a message of this role at their end, their beginning and in between; contents are texts, and lists of parts."""
    for content in (lambda text: text, lambda text: [{"type": "text", "text": text}]):
        user, one = {"role": "user", "content": content("Hi")}, {"role": role, "content": content(_MARK)}
        yield from ([user, one], [one, user], [user, one, user])

"""Tells roles of chat messages that a chat template does not know: a misspelt role, or one whose messages the template leaves out.

A template that writes any role as it stands, as ChatML's does, makes a prompt of a misspelt one that the model has never seen; one that
asks for each role by its name drops the message without a word. Knows no tokens.
"""

import logging
from collections.abc import Callable
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

Messages = list[dict[str, Any]]


@dataclass(slots=True)
class MessageRoles:
    """The roles of one chat template. mentions: whether it holds a text. render: messages -> text, or RowError."""

    mentions: Callable[[str], bool]
    render: Callable[[Messages], str]
    _faults: dict[str, str | None] = field(default_factory=dict[str, str | None])

    def require_known(self, messages: Messages) -> None:
        """Raises RowError for a message whose role the template does not know. A role that it only passes on is told once."""
        for index, message in enumerate(messages):
            role = message.get("role")
            if role in _USUAL or not isinstance(role, str):
                continue
            if role not in self._faults and len(self._faults) < _MOST:
                self._faults[role] = self._fault(role)
            if (fault := self._faults.get(role)) is not None:
                raise RowError("template", f"message {index + 1} of the chat has the role {role!r}, {fault}")

    def _fault(self, role: str) -> str | None:
        if any(self.mentions(f"{quote}{role}{quote}") for quote in ("'", '"')):
            return None
        near = get_close_matches(role.strip().lower(), ROLES, n=1, cutoff=_ALIKE)
        if role not in ROLES and near and role.strip().isalpha():  # "user1" may be one of several
            return f"which the chat template does not know; did you mean {near[0]}?"
        kept = self._keeps(role)
        if kept is False:
            return f"and the chat template leaves such messages out; expected one of {', '.join(ROLES)}, or another that it names"
        if kept and role not in ROLES:
            log.warning("messages have the role %r, which the chat template does not know and writes as it stands", role)
        return None

    def _keeps(self, role: str) -> bool | None:
        """Returns whether a message of this role gets into the text; None where the template refuses each chat that is tried."""
        user, one = {"role": "user", "content": "Hi"}, {"role": role, "content": _MARK}
        found: bool | None = None
        for chat in ([user, one], [one, user], [user, one, user]):
            try:
                found = _MARK in self.render(chat)
            except (RowError, ValueError):  # ValueError: there are several templates, and none is for plain chats
                continue
            if found:
                break
        return found

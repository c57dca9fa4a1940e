"""The tools of a row: read from its columns, and which of them a completion may or must call."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from ...configs.answers import NamedTool, distinct_tools
from ..core.errors import RowError
from ..data.column_paths import lookup

Tool = dict[str, Any]


@dataclass(slots=True, frozen=True)
class ToolChoice:
    """What a completion may call. none: the tools are not shown. required: at least one is called.

    names: only these tools may be called; empty for all that the row has.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] = ()

    @staticmethod
    def of(setting: str | NamedTool) -> "ToolChoice":
        """Returns the choice that a config's ``prompt.tool_choice`` stands for."""
        if isinstance(setting, NamedTool):
            return ToolChoice("required", (setting.name,))
        assert setting in ("none", "auto", "required"), setting
        return ToolChoice(setting)


ANY_TOOL = ToolChoice()


def tool_names(tools: list[Tool]) -> list[str]:
    """Returns the names of tools in the form of chat templates."""
    return [tool["function"]["name"] for tool in tools]


def read_tools(columns: dict[str, Any], path: str) -> list[Tool] | None:
    """Returns the tools at ``path`` in a row: a list, or JSON text of one; None where the row has none.

    Keys whose value is null are dropped, since a table gives each struct the keys of all others. Raises RowError.
    """
    found = lookup(columns, path)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise RowError("template", f"prompt.tools: the column {path!r} is text, but not the JSON of a list of tools: {error}") from None
    if found is None or found == []:
        return None
    if not isinstance(found, list):
        raise RowError("template", f"prompt.tools: the column {path!r} holds {type(found).__name__}; expected a list of tools")
    try:
        return distinct_tools([_without_nulls(tool) for tool in found])
    except ValueError as error:
        raise RowError("template", f"prompt.tools: the column {path!r}: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value

"""The tools of a request, and which of them may or must be called. Both spellings: that of chats, and the flat one of responses."""

from dataclasses import dataclass
from typing import Any, Literal

from ...configs.explain import shown
from ...runner.answers.tools import Tool, ToolChoice, tool_names
from .refusal import RequestRefused

Mode = Literal["none", "auto", "required"]

MODES: tuple[Mode, ...] = ("none", "auto", "required")
_EXPECTED = "none, auto, required, or {type: function} with the name of one"


@dataclass(slots=True, frozen=True)
class ToolUse:
    """The tools that the model sees, as chat templates read them, and which of them may or must be called."""

    tools: list[Tool]
    choice: ToolChoice


def tool_use(tools: list[Tool] | None, choice: str | dict[str, Any] | None, flat: bool) -> ToolUse | None:
    """Returns what a request says of tools, None where it says nothing. flat: as responses write them. Raises RequestRefused."""
    if not tools and choice in (None, "none", "auto"):
        return None
    functions = [_function(tool, f"tools[{index}]", flat) for index, tool in enumerate(tools or [])]
    names = tool_names(functions)
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise RequestRefused("tools", "invalid_value", f"found two functions of the name {shown(twice)}; expected distinct names")
    if choice is None or isinstance(choice, str):
        mode = _mode(choice or "auto")
        if mode is None:
            raise _wrong(choice)
        if mode == "required" and not functions:
            raise RequestRefused("tool_choice", "invalid_value", "found required without tools; give tools, or leave it out")
        return ToolUse(functions, ToolChoice(mode))
    if choice.get("type") == "function":
        return ToolUse(functions, ToolChoice("required", (_named(choice, names, flat),)))
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, functions, flat)
    raise _wrong(choice)


def _mode(value: object) -> Mode | None:
    modes: dict[object, Mode] = {mode: mode for mode in MODES}
    return modes.get(value) if isinstance(value, str) else None


def _wrong(choice: object) -> RequestRefused:
    return RequestRefused("tool_choice", "unsupported_value", f"found {shown(choice)}; expected {_EXPECTED}")


def _function(tool: Tool, where: str, flat: bool) -> Tool:
    if tool.get("type") != "function":
        found = f"found {shown(tool.get('type'))}; expected function: no other tool runs here"
        raise RequestRefused(f"{where}.type", "unsupported_value", found)
    function, place = (tool, where) if flat else (tool.get("function"), f"{where}.function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestRefused(f"{place}.name", "missing_required_parameter", f"found {shown(function)}; expected a function with a name")
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise RequestRefused(f"{place}.parameters", "invalid_value", f"found {shown(parameters)}; expected a schema")
    kept = {name: value for name, value in function.items() if value is not None and not (flat and name == "type")}
    return {"type": "function", "function": kept}


def _named(choice: object, names: list[str], flat: bool) -> str:
    """Returns the name that a choice gives. Raises RequestRefused where it is no tool's."""
    named = choice if flat else choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if name not in names:
        there = ", ".join(names) or "there is none"
        raise RequestRefused("tool_choice", "invalid_value", f"found {shown(name)}; expected the name of one of tools: {there}")
    return str(name)


def _allowed(choice: dict[str, Any], functions: list[Tool], flat: bool) -> ToolUse:
    """Returns what an ``allowed_tools`` choice says: all tools are shown, and some of them may be called."""
    allowed = choice if flat else choice.get("allowed_tools")
    mode = _mode(allowed.get("mode")) if isinstance(allowed, dict) else None
    if mode in (None, "none") or not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list) or not allowed["tools"]:
        raise RequestRefused("tool_choice", "invalid_value", f"found {shown(choice)}; expected mode (auto or required) and tools")
    names = [_named(tool, tool_names(functions), flat) for tool in allowed["tools"]]
    return ToolUse(functions, ToolChoice(mode, tuple(dict.fromkeys(names))))

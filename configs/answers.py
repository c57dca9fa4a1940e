"""The settings of what a finished text is read for: tool calls and reasoning. Knows no parser and no marks."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from .fields import CountOrZero, Expected, Flag, Name, Section, TextOrNull, contradiction


class _Function(BaseModel):
    """The part of a tool that every chat template reads; anything else in it passes through."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None


def as_tool(value: object) -> dict[str, Any]:
    """Returns a tool as chat templates take it: {type: function, function: {name, description, parameters}}.

    A function may stand there without the mapping around it. Raises ValueError that says what is wrong.
    """
    if not isinstance(value, dict):
        raise contradiction("", "found a tool that is no mapping; expected {type: function, function: {name, description, parameters}}")
    found: dict[str, Any] = value if "function" in value else {"function": {k: v for k, v in value.items() if k != "type"}}
    if value.get("type", "function") != "function":
        raise contradiction("", f"found a tool of the type {value['type']!r}; expected function")
    try:
        _Function.model_validate(found["function"])
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(step) for step in ("function", *problem["loc"]))
        message = f"found a tool with a wrong {place} ({problem['msg'].lower()}); expected {{name, description, parameters}}"
        raise contradiction("", message) from None
    return {"type": "function", **found}


def distinct_tools(values: list[Any]) -> list[dict[str, Any]]:
    """Returns tools as chat templates take them. Raises ValueError for one that is none, or a name that stands twice."""
    tools = [as_tool(value) for value in values]
    names = [tool["function"]["name"] for tool in tools]
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise contradiction("", f"found two tools of the name {twice!r}; expected a name of its own for each")
    return tools


class NamedTool(Section):
    """The one tool that must be called."""

    name: Name = Field(description="Name of the tool.")


Tools = Annotated[
    Annotated[list[dict[str, JsonValue]], Field(min_length=1), AfterValidator(distinct_tools)] | Name | None,
    Expected("a list of tools, each {type: function, function: {name, description, parameters}} with a name of its own; a column; or null"),
]
ToolRule = Annotated[
    Literal["none", "auto", "required"] | NamedTool, Expected("none, auto, required, or a mapping with the name of the tool to call")
]


class ToolsConfig(Section):
    """How calls of tools are read from a completion."""

    parser: Name = Field(
        default="auto",
        description="auto: the checkpoint's response template, else mlx-lm's parser for its chat template; none; or a parser's name.",
    )
    parse: Literal["auto", "always"] = Field(
        default="auto", description="auto: calls are read where the row has tools; always: in every completion."
    )


class ReasoningConfig(Section):
    """How reasoning is split from the answer, and how long it may be."""

    budget: Annotated[CountOrZero | None, Expected("a whole number of tokens of at least 0, or null")] = Field(
        default=None, description="Most tokens of reasoning; after them its end is forced. 0 ends it at once; null is no limit."
    )
    message: TextOrNull = Field(default=None, description="Text that is put before an end that is forced.")
    strip: Flag = Field(default=False, description="Leave the column reasoning out of the records.")
    marks: Annotated[
        Literal["auto", "none"] | Annotated[list[Name], Field(min_length=2, max_length=2)],
        Expected("auto, none, or a list of two strings: what begins reasoning and what ends it"),
    ] = Field(default="auto", description="What begins and ends reasoning; auto: a known pair that the chat template mentions.")

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.message is not None and self.budget is None:
            raise contradiction("message", "expected null, since reasoning.budget is null and no end is forced; set reasoning.budget")
        if isinstance(self.marks, list) and self.marks[0] == self.marks[1]:
            raise contradiction("marks", f"expected two different strings, not {self.marks[0]!r} twice")
        if self.marks == "none":
            for key, off in (("budget", None), ("strip", False)):
                if getattr(self, key) != off:
                    raise contradiction(key, f"expected {'null' if off is None else 'false'}, since reasoning.marks is none; remove one")
        return self

"""The settings of structured output: the grammar that completions are held to. Knows no library of grammars and opens no file."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from .fields import Expected, Name, NameOrNull, Section, contradiction, json_values

KINDS = ("json_schema", "regex", "choice", "grammar")

JsonSchema = Annotated[
    Annotated[dict[str, JsonValue], AfterValidator(json_values)] | Annotated[str, Field(min_length=1)] | None,
    Expected("a JSON schema as a mapping, the path of a .json file that holds one, or null"),
]
Choices = Annotated[Annotated[list[str], Field(min_length=1)] | None, Expected("a list of strings, at least one, or null")]


class StructuredConfig(Section):
    """The grammar that completions are held to. At most one of json_schema, regex, choice, grammar and column is set."""

    json_schema: JsonSchema = Field(default=None, description="JSON schema of each completion: a mapping, or the path of a .json file.")
    regex: NameOrNull = Field(default=None, description="Regular expression for a whole completion, in Rust's syntax: no lookaround.")
    choice: Choices = Field(default=None, description="Texts of which each completion is one.")
    grammar: NameOrNull = Field(default=None, description="Grammar in llguidance's variant of Lark; its rule start is a whole completion.")
    column: NameOrNull = Field(
        default=None, description="Column with a row's own: a mapping such as {choice: [yes, no]}, or a JSON schema; null is none."
    )
    whitespace: Annotated[Name, Expected("bounded, flexible, compact, or a regular expression")] = Field(
        default="bounded",
        description="Blanks between the parts of JSON: bounded is up to 8 blanks or newlines, flexible any, compact none; or a pattern.",
    )
    unsupported: Literal["error", "relax"] = Field(
        default="error",
        description="A schema with what cannot be enforced is an error; relax leaves that out, and checks the finished text instead.",
    )

    @property
    def sources(self) -> list[str]:
        """The names of those settings that are set and give a grammar."""
        return [name for name in (*KINDS, "column") if getattr(self, name) is not None]

    @property
    def used(self) -> bool:
        """True where completions may be held to a grammar."""
        return bool(self.sources)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        expected = f"expected at most one of {', '.join(KINDS)}, column"
        if len(self.sources) > 1:
            raise contradiction("", f"found {' and '.join(self.sources)}; {expected}")
        for name in ("whitespace", "unsupported"):
            if not self.used and getattr(self, name) != type(self).model_fields[name].default:
                raise contradiction(name, f"expected nothing, since there is no grammar; {expected}, or remove it")
        return self

"""What a text must be, before anyone has compiled it: a JSON schema, a regular expression, a choice of texts, or a grammar."""

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "choice", "grammar", "calls"]


@dataclass(slots=True, frozen=True)
class GrammarSpec:
    """A grammar as a row or the config gives it. Two that are equal need one compilation.

    text: the schema or the list of choices as JSON, else the expression or the Lark grammar itself; of calls a Lark grammar, made of the
    tools' parameters. whitespace: between the parts of JSON: bounded, flexible, compact or a pattern. relaxed: what cannot be enforced is
    left out, and the finished text is checked.
    """

    kind: GrammarKind
    text: str
    whitespace: str = "bounded"
    relaxed: bool = False

"""The text that llguidance compiles, and its errors in a user's words."""

import json
import re
from dataclasses import replace
from typing import Any

import llguidance

from ..core.grammar_spec import GrammarSpec

LARGEST = 4_000_000  # bytes of a grammar

NAMES = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "choice": "list of choices",
    "grammar": "Lark grammar",
    "calls": "set of tools",
}
BLANKS: dict[str, dict[str, Any]] = {
    "bounded": {"whitespace_pattern": r"[ \n]{1,8}"},
    "flexible": {},
    "compact": {"whitespace_flexible": False},
}
OPTIONS = "x-guidance"  # llguidance takes its options from this key of a schema


def grammar_text(spec: GrammarSpec, leading_blank: bool) -> str:
    """Returns the grammar as llguidance takes it. ``leading_blank``: one blank may come first, as the tokenizer puts it there.

    Raises ValueError for a schema that cannot be parsed.
    """
    match spec.kind:
        case "json_schema":
            schema: dict[str, Any] = {name: value for name, value in json.loads(spec.text).items() if name != OPTIONS}
            options: Any = {**BLANKS.get(spec.whitespace, {"whitespace_pattern": spec.whitespace}), "lenient": spec.relaxed}
            text = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=options)
        case "choice":
            text = llguidance.grammar_from("choice", spec.text)
        case "regex":
            text = llguidance.LLMatcher.grammar_from_regex(spec.text)
        case "grammar" | "calls":
            text = spec.text
    return _after_a_blank(text) if leading_blank else text


def _after_a_blank(text: str) -> str:
    first = {"lark_grammar": 'start: " "? @text'}
    inner = json.loads(text)["grammars"][0] if text.startswith('{"grammars"') else {"lark_grammar": text}
    return json.dumps({"grammars": [first, {**inner, "name": "text"}]})


def too_large(spec: GrammarSpec) -> str | None:
    """Says that a grammar has too much text to be compiled; None where it has not."""
    size = len(spec.text.encode("utf-8", "surrogatepass"))
    if size <= LARGEST:
        return None
    return f"the {NAMES[spec.kind]} has {size / 1e6:.1f} MB of text; expected at most {LARGEST / 1e6:.0f} MB"


def why_refused(spec: GrammarSpec, error: str) -> str:
    """Returns the message for a grammar that cannot be compiled. ``error``: what llguidance says of it."""
    if spec.kind == "calls":
        said = _without_place(reason(error))
        return f"calls of these tools cannot be enforced: {said}; change their parameters, or set tool_choice: auto"
    cure = "change it, or set structured.unsupported: relax" if _relaxable(spec) else "change it"
    return f"this {NAMES[spec.kind]} cannot be enforced: {reason(error)}; {cure}"


def _relaxable(spec: GrammarSpec) -> bool:
    """Returns whether a refused schema can be compiled without what cannot be enforced."""
    if spec.kind != "json_schema" or spec.relaxed:
        return False
    try:
        return not llguidance.LLMatcher.validate_grammar(grammar_text(replace(spec, relaxed=True), leading_blank=False))
    except ValueError:
        return False


def _without_place(said: str) -> str:
    """Returns an error without its place in a grammar that the user did not write."""
    return re.sub(r"^at \d+\(\d+\): ", "", said)


def why_empty(spec: GrammarSpec) -> str:
    """Returns the message for a grammar that no text fulfils."""
    circle = " (a $ref leads back to itself before any text)" if '"$ref"' in spec.text else ""
    return f"no text fulfils this {NAMES[spec.kind]}{circle}; change it"


def reason(error: str) -> str:
    """Returns an error of llguidance as one line: without its state, its own options and drawings of the place."""
    said = error.partition("<state>")[0].strip()
    lines = [line for line in said.splitlines() if line.strip()]
    final = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    first = lines[0].strip() if lines else "the parser stopped"
    if final is not None and "invalid regex" in first:
        return f"invalid regex: {final}"
    line = final or first
    return line.partition(". Enable '")[0][:500]

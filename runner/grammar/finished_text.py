"""Checks a finished text against its JSON schema, where the grammar leaves out what it cannot enforce."""

import json
from collections.abc import Callable

from ..core.errors import first_line
from ..core.grammar_spec import GrammarSpec


def schema_check(spec: GrammarSpec) -> Callable[[str], bool]:
    """Returns the function that says whether a text fulfils a JSON schema. Raises ValueError for a schema that is none.

    References to other documents are never fetched; a text that needs one fulfils nothing.
    """
    from jsonschema import FormatChecker
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    schema = json.loads(spec.text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(first_line(error, None)) from error
    validator = kind(schema, registry=EMPTY_REGISTRY, format_checker=FormatChecker())

    def fulfils(text: str) -> bool:
        try:
            return validator.is_valid(json.loads(text))
        except Exception:  # no JSON, a reference that leads nowhere, a pattern that Python's re does not know
            return False

    return fulfils

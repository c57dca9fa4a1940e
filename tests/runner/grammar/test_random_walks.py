"""Tests that whatever a model without a mind draws under a schema is JSON, and fulfils the schema."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from jsonschema.validators import Draft202012Validator, validator_for
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Sampling

from ...checkpoints import VOCABULARY
from ..support.guided import ENDS, demo_grammars, schema
from ..support.small_tokenizers import demo
from ..support.tiny import Chain
from ..support.tiny_runs import outcomes_of, request, setup_of

TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "integer"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "anything": {},
    "any object": {"type": "object"},
    "flag": {"type": "boolean"},
    "small number": {"type": "integer", "minimum": -3, "maximum": 120},
    "fraction": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "short text": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "date": {"type": "string", "format": "date"},
    "address": {"type": "string", "format": "ipv4"},
    "id": {"type": "string", "format": "uuid"},
    "enum": {"enum": ["a", 1, None, [True], {"b": 2}]},
    "const": {"const": {"é": ["🙂", 'a "b"\n']}},
    "list": {"type": "array", "items": NUMBER, "minItems": 1, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [TEXT, NUMBER], "items": False, "minItems": 2},
    "closed": {"type": "object", "properties": {"a": TEXT, "b": NUMBER}, "required": ["b"], "additionalProperties": False},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "either": {"anyOf": [{"type": "object", "properties": {"x": NUMBER}, "required": ["x"]}, {"type": "null"}]},
    "kinds": {"oneOf": [{"properties": {"k": {"const": k}, "v": v}, "required": ["k", "v"]} for k, v in (("s", TEXT), ("n", NUMBER))]},
    "both": {"allOf": [{"properties": {"a": NUMBER}, "required": ["a"]}, {"properties": {"b": TEXT}, "required": ["b"]}], "type": "object"},
    "tree": {"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}}},
    "nullable": {"type": ["string", "null"], "maxLength": 3},
}
SCHEMAS["kinds"]["oneOf"] = [{"type": "object", **one} for one in SCHEMAS["kinds"]["oneOf"]]
SCHEMAS["tree"]["$defs"]["node"]["type"] = "object"


def mindless() -> Chain:
    """A model with random preferences, of which what closes a text is likelier: most texts end."""
    table = np.random.default_rng(7).normal(0, 1.5, (VOCABULARY, VOCABULARY)).astype(np.float32)
    texts = [demo().token_bytes(token) for token in range(VOCABULARY)]
    closing = [
        5 * (text != b"" and set(text) <= set(b'"}],:{[0123456789')) + 2 * (len(text) == 1) - 4 * (not text.strip()) for text in texts
    ]
    table += np.array(closing, np.float32)
    table[:, sorted(ENDS)] += 8
    return Chain(table)


def test_whole_texts_are_json_that_fulfils_the_schema() -> None:
    specs = {name: schema(value) for name, value in SCHEMAS.items()}
    guidance = [demo_grammars().compiled(spec) for spec in specs.values()]
    sampling = Sampling(max_tokens=80, temperature=1.5)
    plain = [request(i, [5 + i], sampling, range(3 * i, 3 * i + 3)) for i in range(len(specs))]
    asked = [replace(one, work=replace(one.work, guidance=guidance[one.row])) for one in plain]
    outcomes = outcomes_of(setup_of(mindless(), rows=32, tokens=512), asked, sorted(ENDS))
    names, whole = list(specs), 0
    for outcome in outcomes:
        assert isinstance(outcome, Generated), outcome
        assert outcome.grammar_complete or outcome.finish_reason == "length"
        if outcome.grammar_complete:
            whole += 1
            name, text = names[outcome.row], demo().decode(outcome.ids)
            kind = validator_for(SCHEMAS[name], default=Draft202012Validator)
            kind(SCHEMAS[name], format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))
    assert whole > 0.7 * len(outcomes)

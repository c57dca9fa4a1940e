"""Checks a config's grammar against the model before a run begins."""

from typing import TYPE_CHECKING

from ...configs.errors import ConfigError
from ...configs.structured import StructuredConfig
from ...runner.grammar.spec_values import configured_spec

if TYPE_CHECKING:
    from ...runner.grammar.grammars import Grammars


def require_grammar(config: StructuredConfig, grammars: "Grammars") -> None:
    """Raises ConfigError where the config's grammar cannot be used, or where the model can use none.

    Reads no tokenizer; what only its tokens show is found with the first rows.
    """
    spec = configured_spec(config)
    if spec is not None and (problem := grammars.refusal(spec)):
        raise ConfigError(f"structured.{spec.kind}: {problem}")
    if config.column is not None and grammars.unfit:
        raise ConfigError(f"structured.column: {grammars.unfit}")

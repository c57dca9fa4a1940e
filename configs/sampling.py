"""The settings of sampling: how tokens are drawn, and when a completion ends."""

from typing import Self

from pydantic import Field, model_validator

from .fields import (
    AtLeastOne,
    AtLeastZero,
    Chance,
    ColumnOf,
    Count,
    CountOrZero,
    Flag,
    LogitBias,
    Penalty,
    Ratio,
    Section,
    Seed,
    Share,
    ShareBelowOne,
    ShareToHalf,
    Strings,
    Temperature,
    TokenIds,
    contradiction,
    nearest,
)

# The settings that leave tokens out of a draw, each with the value at which it is off. xtc_threshold acts through xtc_probability alone.
FILTERS: dict[str, float] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0, "xtc_probability": 0.0}
FILTER_NAMES = "top_k, top_p, min_p, typical_p, XTC"  # as messages and descriptions list them


class SamplingConfig(Section):
    """How tokens are drawn, and when a completion ends."""

    max_tokens: Count = Field(default=256, description="Most tokens to generate for a prompt.")
    temperature: Temperature = Field(default=1.0, description="Divides the logits; 0 is greedy.")
    top_p: Share = Field(default=1.0, description="Keep the smallest set of tokens whose probability reaches this; 1 is off.")
    top_k: CountOrZero = Field(default=0, description="Keep the k most likely tokens; 0 is off.")
    min_p: ShareBelowOne = Field(default=0.0, description="Keep tokens at least this likely relative to the most likely one; 0 is off.")
    typical_p: Share = Field(
        default=1.0, description="Keep the tokens whose surprise is nearest to the entropy, until their probability reaches this; 1 is off."
    )
    xtc_probability: Chance = Field(
        default=0.0, description="XTC: share of steps in which likely tokens are left out, all but the least likely of them; 0 is off."
    )
    xtc_threshold: ShareToHalf = Field(default=0.1, description="XTC: a token is likely from this probability on.")
    repetition_penalty: Ratio = Field(default=1.0, description="Penalty on tokens of prompt and completion; 1 is off.")
    presence_penalty: Penalty = Field(default=0.0, description="Subtracted once from the logit of a token that the completion holds.")
    frequency_penalty: Penalty = Field(default=0.0, description="Subtracted from a token's logit each time that the completion holds it.")
    dry_multiplier: AtLeastZero = Field(
        default=0.0, description="DRY: penalty on a token that goes on with a repetition of dry_allowed_length tokens; 0 is off."
    )
    dry_base: AtLeastOne = Field(default=1.75, description="DRY: the penalty grows by this factor with each token more that is repeated.")
    dry_allowed_length: Count = Field(default=2, description="DRY: shorter repetitions are not penalised.")
    dry_range: CountOrZero = Field(default=0, description="DRY: how many of the newest tokens are looked at; 0 is prompt and completion.")
    dry_sequence_breakers: Strings = Field(
        default=["\n", ":", '"', "*"], description="DRY: a token that holds one of these strings ends a repetition."
    )
    logit_bias: LogitBias = Field(default={}, description="Token id to a number added to its logit.")
    stop: Strings = Field(default=[], description="Strings that end the completion, matched on text across token boundaries.")
    include_stop: Flag = Field(default=False, description="Keep the stop string in the completion.")
    stop_token_ids: TokenIds = Field(default=[], description="Token ids that end the completion, besides EOS.")
    ignore_eos: Flag = Field(default=False, description="EOS does not end the completion; stop_token_ids still do.")
    min_tokens: CountOrZero = Field(default=0, description="Before so many tokens no EOS, stop id or stop string ends the completion.")
    n: Count = Field(default=1, description="Samples a prompt.")
    seed: Seed = Field(default=0, description="Seed of the run; each sample's own seed derives from it and the row's key.")
    columns: ColumnOf = Field(default={}, description="Values a row: a setting of this section to a column name or dotted path.")

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise contradiction("min_tokens", f"found {self.min_tokens}; expected at most sampling.max_tokens, which is {self.max_tokens}")
        return self

    @model_validator(mode="after")
    def _columns_name_settings(self) -> Self:
        valid = [name for name in type(self).model_fields if name != "columns"]
        for key in self.columns:
            if key not in valid:
                near = nearest(key, valid)
                fix = f"did you mean {near}?" if near else f"expected one of {', '.join(valid)}"
                raise contradiction(f"columns.{key}", f"no such sampling setting; {fix}")
        return self

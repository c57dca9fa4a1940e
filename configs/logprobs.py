"""The settings of logprobs in records. Knows no job."""

from typing import Self

from pydantic import Field, model_validator

from .fields import Flag, Section, TopK, contradiction


class LogprobsConfig(Section):
    """Which logprobs the records hold."""

    tokens: Flag = Field(default=True, description="Logprob of each generated token.")
    prompt: Flag = Field(default=False, description="Logprob of each prompt token (echo).")
    top: TopK = Field(default=0, description="The k most likely tokens a position, for whichever of tokens and prompt is on.")
    stats: Flag = Field(default=False, description="Rank and entropy a position, for whichever of tokens and prompt is on.")

    @model_validator(mode="after")
    def _something_to_describe(self) -> Self:
        if not self.tokens and not self.prompt:
            for key, off in (("top", 0), ("stats", False)):
                if getattr(self, key) != off:
                    raise contradiction(key, "expected it off, since logprobs.tokens and logprobs.prompt are; turn one of them on")
        return self

"""The settings of an embedding job: how a row's text becomes a vector. Bounds and contradictions as in ``schema.py``."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .fields import CountOrNull, Expected, Section, contradiction
from .schema import JobConfig

Pooling = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]


class EmbedSettings(Section):
    """How a text becomes a vector. What is null is as the model's sentence-transformers files say."""

    pooling: Annotated[Pooling | None, Expected("cls, lasttoken, max, mean, mean_sqrt_len_tokens, weightedmean or null")] = Field(
        default=None, description="How the tokens' states become one vector; null is the model's own."
    )
    normalize: Annotated[bool | None, Expected("true, false or null")] = Field(
        default=None, description="Divide each vector by its length; null is as the model's files say."
    )
    dimensions: CountOrNull = Field(default=None, description="Keep so many numbers of each vector, the first ones; null is all.")
    max_length: CountOrNull = Field(default=None, description="Most tokens of a text; null is the model's.")


class EmbedConfig(JobConfig):
    """An embedding job."""

    job: Literal["embed"] = Field(description="What the job does.")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    embed: EmbedSettings = Field(default=EmbedSettings(), description="How a text becomes a vector.")

    @model_validator(mode="after")
    def _has_a_text(self) -> Self:
        if self.prompt.sources != ["text"]:
            found = " and ".join(self.prompt.sources) or "no text"
            raise contradiction("prompt", f"found {found}; expected text, the Jinja template of the text to embed")
        return self

"""The settings of an embedding job: how a row's text becomes a vector. Bounds and contradictions as in ``schema.py``."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .fields import FREE, CountOrNull, Expected, NameOrNull, Section, TextOrNull, contradiction
from .schema import JobConfig, PromptConfig

Pooling = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]
VectorType = Literal["float32", "float16", "int8", "ubinary"]


class EmbedSettings(Section):
    """How a text becomes a vector. What is null is as the model's sentence-transformers files say."""

    prompt_name: NameOrNull = Field(default=None, description="Name of one of the model's prompts, which goes before each text (query, …).")
    prompt: TextOrNull = Field(default=None, description='Text that goes before each text; "" for none, null for the model\'s default.')
    pooling: Annotated[Pooling | None, Expected("cls, lasttoken, max, mean, mean_sqrt_len_tokens, weightedmean or null")] = Field(
        default=None, description="How the tokens' states become one vector; null is the model's own."
    )
    normalize: Annotated[bool | None, Expected("true, false or null")] = Field(
        default=None, description="Divide each vector by its length, after the cut to dimensions; null: where the model does so."
    )
    dimensions: CountOrNull = Field(default=None, description="Keep so many numbers of each vector, the first ones; null is all.")
    dtype: VectorType = Field(
        default="float32", description="Type of the stored numbers; int8 needs calibration, ubinary keeps signs, 8 to a byte."
    )
    calibration: Annotated[NameOrNull, FREE] = Field(
        default=None, description="Where int8 takes its ranges from: a run of this job, or a .npy or Parquet file of float vectors."
    )
    max_length: CountOrNull = Field(default=None, description="Most tokens of a text, with prompt and special tokens; null is the model's.")
    too_long: Annotated[
        Literal["truncate_left", "truncate_right", "error"] | None, Expected("truncate_left, truncate_right, error or null")
    ] = Field(
        default=None,
        description="What happens to a text of more tokens; null: cut where the tokenizer cuts, mostly right; in Batch files error.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.prompt is not None and self.prompt_name is not None:
            raise contradiction("prompt_name", f"found {self.prompt_name}; expected null, since embed.prompt gives the prompt's text")
        if self.dtype == "int8" and self.calibration is None:
            cure = "embed some hundred rows first with dtype: float32 (--limit 1000), and name that run's folder here"
            raise contradiction("calibration", f"found null; expected what embed.dtype: int8 takes its ranges from: {cure}")
        if self.dtype != "int8" and self.calibration is not None:
            raise contradiction("calibration", f"expected null, since embed.dtype is {self.dtype} and only int8 has ranges; remove it")
        return self


class EmbedConfig(JobConfig):
    """An embedding job."""

    job: Literal["embed"] = Field(description="What the job does.")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    embed: EmbedSettings = Field(default=EmbedSettings(), description="How a text becomes a vector.")

    @model_validator(mode="after")
    def _has_a_text(self) -> Self:
        if self.data.format == "openai":
            sources = [*self.prompt.sources, *(["images"] if self.prompt.images is not None else [])]
            if sources:
                raise contradiction(f"prompt.{sources[0]}", "expected nothing, since lines of a Batch file bring their inputs; remove it")
            if self.embed.dtype != "float32":
                raise contradiction(
                    "embed.dtype", f"found {self.embed.dtype}; expected float32, since lines of a Batch file are answered in it"
                )
        elif not self.prompt.sources and self.prompt.images is None:
            expected = "text, the Jinja template of the text to embed; user or messages for a chat; images for pictures"
            raise contradiction("prompt", f"found nothing to embed; expected {expected}")
        for name in ("tools", "tool_choice", "parallel_tool_calls", "too_long"):
            if getattr(self.prompt, name) != PromptConfig.model_fields[name].default:
                cure = "embed.too_long says what happens to long texts" if name == "too_long" else "remove it"
                raise contradiction(f"prompt.{name}", f"expected nothing, since an embedding job completes no prompt; {cure}")
        if self.prompt.system is not None and (self.embed.prompt or self.embed.prompt_name):
            raise contradiction("prompt.system", "expected null, since embed.prompt is the system turn of a chat; remove one of them")
        for name, field in type(self.logprobs).model_fields.items():
            if getattr(self.logprobs, name) != field.default:
                raise contradiction(f"logprobs.{name}", "expected nothing, since an embedding job computes no logprobs; remove it")
        return self

"""The settings of a scoring job: the text of a row to score, its windows, and the reference model.

Bounds and contradictions as in ``schema.py``. Knows no tokens, and of windows only the names.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .fields import CountOrAuto, CountOrNull, Expected, NameOrNull, Section, contradiction
from .schema import JobConfig, ModelConfig, PromptConfig, named_model

KINDS = ("text", "completion", "choices", "messages")
# The settings of `prompt` that apply to kinds without a prompt.
OF_PROMPT: dict[str, tuple[str, ...]] = {"text": (), "messages": ("chat_template", "chat_template_args", "too_long", "images")}


class ScoreSettings(Section):
    """What is scored: exactly one of text, completion, choices and messages."""

    text: NameOrNull = Field(default=None, description="Perplexity of a document: a Jinja template over the row's columns.")
    completion: NameOrNull = Field(default=None, description="Log-likelihood of a completion of the prompt: a Jinja template.")
    choices: NameOrNull = Field(
        default=None, description="Column (or dotted path) with a list: log-likelihood of each as a completion of the prompt."
    )
    label: NameOrNull = Field(
        default=None, description="The right choice: a column (or dotted path) or a Jinja template that gives its index or its text."
    )
    messages: NameOrNull = Field(default=None, description="Column that holds chat messages; the assistant's turns are scored.")
    context: CountOrAuto = Field(default="auto", description="Window length in tokens; auto is the model's.")
    windows: Literal["lm_eval", "strided"] = Field(
        default="lm_eval", description="How a long document is cut: lm_eval's rolling windows, or stride new tokens a window."
    )
    stride: CountOrNull = Field(default=None, description="New tokens a window, with windows: strided.")
    prefix: Literal["bos", "bos_or_eos", "none"] = Field(
        default="bos", description="What stands before the first token: BOS if the tokenizer defines one, else EOS with bos_or_eos."
    )
    bos_every_window: Annotated[bool | Literal["auto"], Expected("auto, true or false")] = Field(
        default="auto", description="Put BOS before every window, not before the first alone; auto: for the families that need it."
    )
    boundary: Literal["lm_eval"] = Field(
        default="lm_eval", description="Where prompt and completion part: trailing whitespace of the prompt moves to the completion."
    )
    group_by: NameOrNull = Field(default=None, description="Column (or dotted path); statistics for each of its values as well as overall.")
    reference: Annotated[
        ModelConfig | None,
        BeforeValidator(named_model, json_schema_input_type=str | ModelConfig | None),
        Expected("a model's path, or a mapping with path, revision, adapter, dtype, trust_remote_code, unchecked_images; or null"),
    ] = Field(default=None, description="A second model (a path, or settings as under model) to measure divergence from.")

    @property
    def kind(self) -> str:
        """The name of that of text, completion, choices and messages that is set."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in KINDS if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise contradiction("", f"found {' and '.join(kinds) or 'none of them'}; expected exactly one of {', '.join(KINDS)}")
        return self

    @model_validator(mode="after")
    def _settings_fit_the_kind(self) -> Self:
        if self.label is not None and self.choices is None:
            raise contradiction("label", "expected null, since it goes with score.choices only; remove it")
        if (self.windows == "strided") != (self.stride is not None):
            expected = "a number of tokens" if self.stride is None else "null"
            raise contradiction("stride", f"found {self.stride or 'null'}; expected {expected}, since score.windows is {self.windows}")
        if self.text is None:
            for name, default in (("windows", "lm_eval"), ("bos_every_window", "auto")):
                if getattr(self, name) != default:
                    raise contradiction(name, f"expected nothing, since it goes with score.text and this scores {self.kind}; remove it")
        if self.bos_every_window is True and self.prefix == "none":
            raise contradiction("bos_every_window", "expected false, since score.prefix is none; set score.prefix to bos, or remove it")
        if self.messages is not None and self.prefix != "bos":
            raise contradiction("prefix", "expected nothing, since the chat template says what stands before the first token; remove it")
        if self.choices is not None and self.reference is not None:
            raise contradiction("reference", "expected null, since models are compared on text, completion or messages; remove it")
        if self.stride is not None and self.context != "auto" and self.stride > self.context:
            raise contradiction("stride", f"found {self.stride}; expected at most score.context, which is {self.context}")
        return self


class ScoreConfig(JobConfig):
    """A scoring job."""

    job: Literal["score"] = Field(description="What the job does.")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    score: ScoreSettings = Field(description="What is scored, and how.")

    @property
    def reference(self) -> ModelConfig | None:
        """The reference model, if there is one."""
        return self.score.reference

    @model_validator(mode="after")
    def _prompt_fits_the_kind(self) -> Self:
        kind = self.score.kind
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            if getattr(self.prompt, name) != PromptConfig.model_fields[name].default:
                cure = "for a prompt that shows them, set chat_template_args: {tools: [...]}" if name == "tools" else "remove it"
                raise contradiction(f"prompt.{name}", f"expected nothing, since a scoring job reads no calls of tools; {cure}")
        if kind not in OF_PROMPT:
            if not self.prompt.sources:
                raise contradiction("prompt", f"found none of text, messages, user; score.{kind} completes one: give one of them")
            return self
        for name, field in PromptConfig.model_fields.items():
            if name not in OF_PROMPT[kind] and getattr(self.prompt, name) != field.default:
                raise contradiction(f"prompt.{name}", f"expected nothing, since score.{kind} has no prompt before it; remove it")
        return self

    @model_validator(mode="after")
    def _logprobs_fit_the_kind(self) -> Self:
        if not self.logprobs.tokens:
            raise contradiction("logprobs.tokens", "found false; expected true, since a scoring job is about them; remove it")
        for name in ("top", "stats") if self.score.choices is not None else ():
            if getattr(self.logprobs, name):
                raise contradiction(f"logprobs.{name}", "expected it off, since the records of choices do not hold it; remove it")
        return self

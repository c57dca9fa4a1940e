"""The settings of a classification job: classifiers, rerankers, reward models. Bounds and contradictions as in ``schema.py``.

A row brings one text or chat (``prompt``), a pair, a query with several documents, or a chosen and a rejected answer.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from .fields import CountOrNull, NameOrNull, Section, TextOrNull, contradiction
from .logprobs import LogprobsConfig
from .schema import JobConfig, PromptConfig

Form = Literal["prompt", "pair", "documents", "preference"]

_OF_PAIRS = ("document", "documents", "instruction")


class ClassifySettings(Section):
    """What is classified, besides a prompt, and how logits become a score."""

    query: NameOrNull = Field(default=None, description="The first text of a pair, such as a search query: a Jinja template.")
    document: NameOrNull = Field(default=None, description="The second text of a pair: a Jinja template.")
    documents: NameOrNull = Field(default=None, description="Column (or dotted path) with a list of texts, each paired with query.")
    instruction: TextOrNull = Field(
        default=None, description="What a reranker is told to look for; null is as the model's sentence-transformers files say."
    )
    chosen: NameOrNull = Field(
        default=None, description="Column (or dotted path) with the better answer: chat messages, or a text that follows the prompt."
    )
    rejected: NameOrNull = Field(default=None, description="Column (or dotted path) with the worse answer, as chosen.")
    completion: NameOrNull = Field(
        default=None, description="Jinja template of an answer to the prompt: the assistant's turn, or text behind prompt.text."
    )
    label: NameOrNull = Field(
        default=None,
        description="The right label (or the right one of documents): a column, dotted path or Jinja template of its name or index.",
    )
    true_token: NameOrNull = Field(
        default=None, description="The token whose logit after the prompt is the score: any chat model becomes a classifier."
    )
    false_token: NameOrNull = Field(default=None, description="The token whose logit is subtracted from that of true_token.")
    activation: Literal["auto", "none", "sigmoid", "softmax"] = Field(
        default="auto", description="What makes a score of logits; auto is as the model's files say."
    )
    max_length: CountOrNull = Field(default=None, description="Most tokens of a text, chat or pair; null is the model's.")
    too_long: Literal["auto", "error", "truncate_left", "truncate_right"] = Field(
        default="auto", description="What happens to more tokens; auto cuts texts and pairs on the right, and refuses chats and answers."
    )

    @property
    def form(self) -> Form:
        """What a row brings."""
        if self.query is not None:
            return "pair" if self.documents is None else "documents"
        return "prompt" if self.chosen is None else "preference"

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.query is None:
            for name in _OF_PAIRS:
                if getattr(self, name) is not None:
                    raise contradiction(name, "expected null, since it goes with classify.query; give that too, or remove it")
        elif (self.document is None) == (self.documents is None):
            found = "neither" if self.document is None else "both"
            raise contradiction("query", f"found {found} of document and documents; expected exactly one of them beside classify.query")
        if (self.chosen is None) != (self.rejected is None):
            there, missing = ("rejected", "chosen") if self.chosen is None else ("chosen", "rejected")
            raise contradiction(there, f"found no classify.{missing}; expected both: a preference is between two answers")
        if self.chosen is not None:
            if self.chosen == self.rejected:
                raise contradiction("rejected", f"found {self.rejected}, as classify.chosen; expected the column of the worse answer")
            for name in ("query", "completion", "label"):
                if getattr(self, name) is not None:
                    raise contradiction(name, "expected null, since classify.chosen and classify.rejected are compared; remove it")
        if self.completion is not None and self.query is not None:
            raise contradiction("completion", "expected null, since it follows a prompt and classify.query makes pairs; remove it")
        return self

    @model_validator(mode="after")
    def _tokens_and_scores(self) -> Self:
        if self.false_token is not None and self.true_token is None:
            raise contradiction("false_token", "expected null, since there is no classify.true_token; give that too, or remove it")
        if self.true_token is not None and self.true_token == self.false_token:
            raise contradiction("false_token", f'found "{self.false_token}", as classify.true_token; expected another token')
        return self


class ClassifyConfig(JobConfig):
    """A classification job."""

    job: Literal["classify"] = Field(description="What the job does.")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    classify: ClassifySettings = Field(default=ClassifySettings(), description="What is classified, and how.")

    @model_validator(mode="after")
    def _prompt_fits_the_form(self) -> Self:
        form, sources = self.classify.form, self.prompt.sources
        if form == "prompt" and not sources:
            expected = "text, messages or user; or classify.query with document or documents; or classify.chosen with rejected"
            raise contradiction("prompt", f"found nothing to classify; expected one of {expected}")
        if form in ("pair", "documents") and sources:
            raise contradiction(f"prompt.{sources[0]}", "expected null, since classify.query makes the model's input; remove it")
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            if getattr(self.prompt, name) != PromptConfig.model_fields[name].default:
                raise contradiction(f"prompt.{name}", "expected nothing, since a classification reads no calls of tools; remove it")
        if self.prompt.too_long != "error":
            raise contradiction("prompt.too_long", f"found {self.prompt.too_long}; set classify.too_long in its place")
        if self.prompt.prefill is not None and (form != "prompt" or self.classify.completion is not None):
            raise contradiction("prompt.prefill", "expected null, since it begins an answer, and answers are given; remove it")
        if self.logprobs != LogprobsConfig():
            raise contradiction("logprobs", "expected nothing, since a classification has no logprobs; remove it")
        return self

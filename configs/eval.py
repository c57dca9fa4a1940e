"""The settings of an evaluation with lm-evaluation-harness: the model, its tasks, their prompts, and the output.

Names are lm-eval's where it has one. Bounds and contradictions as in ``schema.py``. lm-eval checks that a task exists.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .fields import (
    FREE,
    Count,
    CountOrAuto,
    CountOrNull,
    CountOrZero,
    Expected,
    Flag,
    JsonMapping,
    Name,
    NameOrNull,
    Seconds,
    Section,
    Seed,
    Share,
    TextOrNull,
    contradiction,
    one_as_list,
)
from .schema import ModelConfig

_Names = Annotated[list[Name], BeforeValidator(one_as_list, json_schema_input_type=str | list[str])]
_TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class EvalModelConfig(ModelConfig):
    """The model, and how text becomes its tokens: lm-eval's arguments of a model, beside those of every job."""

    tokenizer: NameOrNull = Field(default=None, description="Folder or repo id of another tokenizer; null is the model's own.")
    max_length: CountOrNull = Field(default=None, description="Tokens the model is fed at most; null is what its config says, else 2048.")
    add_bos_token: Annotated[bool | None, Expected("true, false or null")] = Field(
        default=None, description="Special tokens in front of every text; null is as the tokenizer does by itself."
    )
    prefix_token_id: Annotated[_TokenId | None, Expected("a token id, or null")] = Field(
        default=None, description="What stands before a text without context; null is BOS, else EOS."
    )
    enable_thinking: Annotated[bool | None, Expected("true, false or null")] = Field(
        default=None, description="Variable of that name for the chat template; null leaves it out."
    )
    think_end_token: Annotated[_TokenId | Name | None, Expected("a token's text or id, or null")] = Field(
        default=None, description="What ends a completion's thinking: the answer is the text behind it."
    )
    chat_template_args: JsonMapping = Field(default={}, description="Further variables for the chat template.")

    @model_validator(mode="after")
    def _thinking_has_an_end(self) -> Self:
        if self.enable_thinking and self.think_end_token is None:
            raise contradiction("think_end_token", "found null; expected a token, since enable_thinking is true")
        return self


class EvalBatchConfig(Section):
    """How requests share the device."""

    rows: Annotated[CountOrAuto, FREE] = Field(default="auto", description="Rows decoding or scored at once.")
    tokens: Annotated[CountOrAuto, FREE] = Field(default="auto", description="Padded tokens in one prefill.")
    memory: Annotated[Share, FREE] = Field(default=0.8, description="Share of device memory for weights, KV and workspace.")
    rows_per_shard: Count = Field(default=1024, description="Requests in one file of answers; frozen at the run's start.")


class SeedsConfig(Section):
    """Seeds of everything that is drawn; the defaults of the first three are lm-eval's."""

    random: Seed = Field(default=0, description="Of Python's random.")
    numpy: Annotated[int, Field(ge=0, lt=2**32), Expected("a whole number from 0 to 2**32 - 1")] = Field(
        default=1234, description="Of NumPy's global generator."
    )
    fewshot: Seed = Field(default=1234, description="Of the choice of few-shot examples.")
    sampling: Seed = Field(default=0, description="Of the tokens drawn where a task samples.")


class EvalOutputConfig(Section):
    """Where results go."""

    path: Annotated[Name, FREE, Expected("a folder for the results; --output gives it too")] = Field(
        description="Run directory, with results.json and, with log_samples, a samples_TASK.jsonl for each task."
    )
    fsync_seconds: Annotated[Seconds, FREE] = Field(default=5, description="A kill or a power cut costs at most this much finished work.")


class EvalConfig(Section):
    """An evaluation: tasks of lm-evaluation-harness on one model."""

    job: Literal["eval"] = Field(description="What the job does.")
    model: EvalModelConfig = Field(description="The model, and how it is loaded.")
    tasks: Annotated[
        _Names, FREE, Field(min_length=1), Expected("a task's name, or a list of them (groups, tags, mmlu_*, paths of YAML files)")
    ] = Field(description="Tasks, groups and tags by lm-eval's names, patterns such as mmlu_*, or paths of task files.")
    include_path: Annotated[_Names, FREE, Expected("a folder, or a list of them")] = Field(
        default=[], description="Folders with task files of your own."
    )
    num_fewshot: Annotated[CountOrZero | None, Expected("a whole number of at least 0, or null")] = Field(
        default=None, description="Examples before each question; null is as the task says."
    )
    limit: Annotated[
        Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | None,
        Expected("a number of documents, a share of them below 1, or null"),
    ] = Field(default=None, description="Only the first documents of each task: their number, or a share below 1.")
    apply_chat_template: Annotated[bool | Name, Expected("true, false, or the name of a template")] = Field(
        default=False, description="Wrap prompts in the model's chat template; a name picks one of several."
    )
    fewshot_as_multiturn: Flag = Field(default=True, description="Few-shot examples are turns of the chat, with apply_chat_template.")
    system_instruction: TextOrNull = Field(default=None, description="Text of the system turn, or in front of the prompt.")
    gen_kwargs: JsonMapping = Field(
        default={}, description="Over a task's generation_kwargs: until, max_gen_toks, do_sample, temperature, top_p, top_k, …"
    )
    log_samples: Annotated[Flag, FREE] = Field(
        default=False, description="Write each document's prompts and outcomes to samples_TASK.jsonl."
    )
    batch: EvalBatchConfig = Field(default=EvalBatchConfig(), description="How requests share the device.")
    seeds: SeedsConfig = Field(default=SeedsConfig(), description="Seeds of everything that is drawn.")
    output: EvalOutputConfig = Field(description="Where results go.")

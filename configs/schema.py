"""The settings of a job, as frozen pydantic models. Their attributes are the config's keys.

Holds the bounds, the contradictions and a one-line description of each setting. Knows no YAML, no files and no layout of errors.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .answers import NamedTool, ReasoningConfig, ToolRule, Tools, ToolsConfig
from .cluster import ClusterConfig
from .data import DataConfig
from .fields import (
    FREE,
    FROZEN_IF_DETERMINISTIC,
    FROZEN_IF_SET,
    BitsOrNull,
    Count,
    CountOrAuto,
    CountOrZero,
    Expected,
    Flag,
    FolderOrNull,
    Gigabytes,
    JsonMapping,
    Name,
    NameOrNull,
    Seconds,
    Section,
    Share,
    SomeSeconds,
    TextOrNull,
    contradiction,
)
from .logprobs import LogprobsConfig
from .sampling import SamplingConfig
from .structured import StructuredConfig


class ModelConfig(Section):
    """The model, and how it is loaded."""

    path: Annotated[Name, FREE, Expected("demo, a local folder, or a Hugging Face repo id; --model gives it too")] = Field(
        description="demo (the embedded model), a local folder, or a Hugging Face repo id."
    )
    revision: Annotated[NameOrNull, FREE] = Field(default=None, description="Branch, tag or commit of a repo; null is its main branch.")
    adapter: Annotated[NameOrNull, FREE] = Field(
        default=None, description="LoRA or DoRA adapter in mlx-lm's format: a folder or a repo id."
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto", description="Compute type; auto is the checkpoint's, and float32 on a CPU."
    )
    trust_remote_code: Flag = Field(default=False, description="Run code that comes with the model repo.")
    unchecked_images: Annotated[Flag, FROZEN_IF_SET] = Field(
        default=False,
        description="Read pictures with a model type that was compared with mlx-vlm alone, at load, and not with transformers.",
    )


def named_model(value: object) -> object:
    """Returns the path of a model as its settings, and any other value as it is."""
    return {"path": value} if isinstance(value, str) else value


class PromptConfig(Section):
    """How a row becomes a prompt, where the job takes one: by text, messages or user, not by two of them."""

    text: NameOrNull = Field(default=None, description="Jinja template of raw text; embedders whose files name messages put it in a turn.")
    messages: NameOrNull = Field(default=None, description="Column that holds chat messages ({role, content}).")
    user: NameOrNull = Field(default=None, description="Jinja template of a user turn, wrapped in the model's chat template.")
    system: TextOrNull = Field(default=None, description="Jinja template of the system turn before user.")
    prefill: TextOrNull = Field(default=None, description="Jinja template of the start of the assistant's turn.")
    images: Annotated[NameOrNull, FROZEN_IF_SET] = Field(
        default=None, description="Column with a row's pictures: a path, bytes, a data URL, an Image of datasets, or a list of these."
    )
    chat_template: NameOrNull = Field(
        default=None, description="Chat template: a path, or the template itself (anything with {{ or {%); null is the tokenizer's own."
    )
    chat_template_args: JsonMapping = Field(
        default={}, description="Variables for the chat template, for example {enable_thinking: false}."
    )
    tools: Tools = Field(default=None, description="Tools that the chat template shows to the model: a list, or a column that holds one.")
    tool_choice: ToolRule = Field(
        default="auto", description="none: tools are not shown; auto: the model decides; required, or {name: …}: one must be called."
    )
    parallel_tool_calls: Flag = Field(default=True, description="A completion may call several tools; false keeps the first call.")
    too_long: Literal["error", "truncate_left", "truncate_right"] = Field(
        default="error", description="What happens to a prompt that leaves no room for one token."
    )

    @property
    def sources(self) -> list[str]:
        """The names of those of text, messages and user that are set."""
        return [name for name in ("text", "messages", "user") if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if len(self.sources) > 1:
            raise contradiction("", f"found {' and '.join(self.sources)}; expected exactly one of text, messages, user")
        if self.system is not None and self.user is None:
            place = "put the system turn in the messages column" if self.messages else "put the system turn in the text"
            cure = place if self.sources else "use prompt.user, or in an embedding job embed.prompt"
            raise contradiction("system", f"expected null, since it goes with prompt.user only; {cure}")
        if self.text is not None:
            for key in ("prefill", "chat_template", "chat_template_args", "tools"):
                if getattr(self, key) not in (None, {}):
                    raise contradiction(key, "expected nothing, since prompt.text has no chat template; use prompt.user, or remove it")
        return self

    @model_validator(mode="after")
    def _choice_of_tools(self) -> Self:
        if self.tools is None and self.tool_choice not in ("none", "auto"):
            raise contradiction("tool_choice", "expected auto, since there are no tools; give prompt.tools, or remove it")
        if isinstance(self.tool_choice, NamedTool) and isinstance(self.tools, list):
            names = [str(function["name"]) for tool in self.tools if isinstance(function := tool["function"], dict)]
            if self.tool_choice.name not in names:
                raise contradiction("tool_choice.name", f"found {self.tool_choice.name}; expected one of prompt.tools: {', '.join(names)}")
        return self


class BatchConfig(Section):
    """How rows share the device, and the unit in which they are committed."""

    rows: Annotated[CountOrAuto, FROZEN_IF_DETERMINISTIC] = Field(default="auto", description="Rows decoding at once.")
    tokens: Annotated[CountOrAuto, FROZEN_IF_DETERMINISTIC] = Field(default="auto", description="Padded tokens in one prefill.")
    prefill_tokens: Annotated[CountOrAuto, FREE] = Field(
        default="auto", description="Padded tokens of a prefill between two decode steps, at least one call; auto is batch.tokens."
    )
    memory: Annotated[Share, FREE] = Field(default=0.8, description="Share of device memory for weights, KV and workspace.")
    rows_per_shard: Count = Field(default=1024, description="Input rows in one result file; frozen at the run's start.")
    image_memory: Annotated[Gigabytes, FREE] = Field(
        default=1.0, description="GB for features of pictures, which rows share: the model reads a picture once, not once a row."
    )
    prefix_cache: Annotated[FolderOrNull, FREE] = Field(
        default=None,
        description="Folder that keeps KV of prefixes that prompts share, for other generate runs with the model; 8 GiB at most.",
    )
    kv_bits: Annotated[BitsOrNull, FROZEN_IF_SET] = Field(
        default=None, description="Bits of cached keys and values while completions are generated; null keeps the model's own. Lossy."
    )
    kv_group: Annotated[Literal[32, 64, 128], FROZEN_IF_SET] = Field(
        default=64, description="Neighbours that share a scale, with kv_bits: fewer are more exact and take more memory."
    )
    kv_start: Annotated[CountOrZero, FROZEN_IF_SET] = Field(
        default=0, description="The first tokens of each row that are not quantized, with kv_bits."
    )
    stall_seconds: Annotated[SomeSeconds, FREE] = Field(default=120, description="Without a step for so long, a line says what goes on.")
    deterministic: Flag = Field(
        default=False, description="Static batches of fixed shapes: a row's bytes do not depend on its batch mates."
    )

    @model_validator(mode="after")
    def _quantizes_what_it_sizes(self) -> Self:
        if self.kv_bits is None:
            for key, default in (("kv_group", 64), ("kv_start", 0)):
                if (found := getattr(self, key)) != default:
                    raise contradiction(key, f"found {found}, which does nothing without batch.kv_bits; set that to 8 or 4, or remove it")
        return self

    @model_validator(mode="after")
    def _prefills_beside_decoding(self) -> Self:
        if self.deterministic and self.prefill_tokens != "auto":
            raise contradiction(
                "prefill_tokens",
                f"found {self.prefill_tokens}, which does nothing with batch.deterministic: no row decodes while another is prefilled; "
                "remove it",
            )
        return self


class OutputConfig(Section):
    """The run directory."""

    path: Annotated[Name, FREE, Expected("a folder for the run; --output gives it too")] = Field(
        description="Run directory; the same command on it continues the run."
    )
    fsync_seconds: Annotated[Seconds, FREE] = Field(default=5, description="A power cut costs at most this much finished work.")


class JobConfig(Section):
    """What every job has that runs a model over rows."""

    job: str = Field(description="What the job does.")
    model: ModelConfig = Field(description="The model, and how it is loaded.")
    data: DataConfig = Field(description="The input rows.")
    prompt: PromptConfig = Field(default=PromptConfig(), description="How a row becomes a prompt.")
    logprobs: LogprobsConfig = Field(default=LogprobsConfig(), description="Which logprobs the records hold.")
    batch: BatchConfig = Field(default=BatchConfig(), description="How rows share the device.")
    on_error: Annotated[Literal["quarantine", "quarantine_all", "fail"], FREE] = Field(
        default="quarantine", description="A row that cannot be done is set aside, or stops the job; quarantine_all: even if all are alike."
    )
    cluster: Annotated[ClusterConfig | None, FREE, Expected("a mapping with listen or workers, or null")] = Field(
        default=None, description="Workers that share the run, on this machine or on others; null runs in one process."
    )
    output: OutputConfig = Field(description="The run directory.")

    @model_validator(mode="after")
    def _answers_requests(self) -> Self:
        if self.data.format == "openai" and self.job not in ("generate", "embed"):
            raise contradiction("data.format", f"found openai; expected another, since a job of the kind {self.job} answers no requests")
        if self.prompt.images is not None and self.job == "classify":
            raise contradiction("prompt.images", f"expected null, since a job of the kind {self.job} reads text alone; remove it")
        return self

    @model_validator(mode="after")
    def _compares_logits(self) -> Self:
        if self.model.unchecked_images and self.job not in ("generate", "rollout", "score"):
            found = f"expected false, since a job of the kind {self.job} makes nothing that is compared with mlx-vlm's; remove it"
            raise contradiction("model.unchecked_images", found)
        return self

    @model_validator(mode="after")
    def _caches_what_it_quantizes(self) -> Self:
        if self.batch.kv_bits is not None and self.job not in ("generate", "rollout"):
            raise contradiction(
                "batch.kv_bits",
                f"found {self.batch.kv_bits}; expected null, since a job of the kind {self.job} generates no completions: its logprobs "
                "and vectors are always computed in full precision; remove it",
            )
        return self

    @model_validator(mode="after")
    def _decodes_beside_a_prefill(self) -> Self:
        if self.batch.prefill_tokens != "auto" and self.job not in ("generate", "rollout"):
            raise contradiction(
                "batch.prefill_tokens",
                f"found {self.batch.prefill_tokens}; expected auto, since a job of the kind {self.job} generates no completions, and no "
                "row waits for a prefill; remove it",
            )
        return self

    @property
    def loaded(self) -> ModelConfig:
        """The model as it is loaded, with the adapter of the run's start."""
        return self.model

    @property
    def adapter_key(self) -> str:
        """The key of that adapter, for messages."""
        return "model.adapter"

    @property
    def reference(self) -> ModelConfig | None:
        """The reference model, which a job compares with the model; None without one."""
        return None

    @property
    def reward_models(self) -> dict[str, "ModelConfig"]:
        """The models that rate completions, by their keys in the config."""
        return {}

    @property
    def reference_key(self) -> str:
        """The key of the reference model in the config."""
        return "score.reference"


_OF_LINES = "since the lines of a Batch file (data.format: openai) bring"


class GenerateConfig(JobConfig):
    """A generation job."""

    job: Literal["generate"] = Field(description="What the job does.")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    sampling: SamplingConfig = Field(default=SamplingConfig(), description="How tokens are drawn, and when a completion ends.")
    tools: ToolsConfig = Field(default=ToolsConfig(), description="How calls of tools are read from a completion.")
    reasoning: ReasoningConfig = Field(default=ReasoningConfig(), description="How reasoning is split off, and how long it may be.")
    structured: StructuredConfig = Field(default=StructuredConfig(), description="The grammar that completions are held to.")

    def rows_bring(self, name: str) -> bool:
        """Returns True where rows bring their own value of the sampling setting ``name``."""
        return self.data.format == "openai" or name in self.sampling.columns

    @model_validator(mode="after")
    def _has_a_prompt(self) -> Self:
        if self.data.format == "openai":
            for name in ("text", "messages", "user", "system", "prefill", "tools", "images"):
                if getattr(self.prompt, name) is not None:
                    raise contradiction(f"prompt.{name}", f"expected nothing, {_OF_LINES} their prompts; remove it")
            if self.structured.column is not None:
                raise contradiction("structured.column", f"expected nothing, {_OF_LINES} their own grammars; remove it")
            if self.sampling.columns:
                raise contradiction("sampling.columns", f"expected nothing, {_OF_LINES} their own sampling; remove it")
            if self.logprobs.prompt or self.logprobs.top:
                raise contradiction("logprobs", f"expected no prompt and no top, {_OF_LINES} the logprobs that they want; remove it")
        elif not self.prompt.sources:
            raise contradiction("prompt", "found none of them; expected exactly one of text, messages, user")
        return self

    @model_validator(mode="after")
    def _a_grammar_can_end(self) -> Self:
        if self.structured.used and self.sampling.ignore_eos:
            raise contradiction("sampling.ignore_eos", "expected false, since a grammar (structured) ends with EOS; remove one of the two")
        return self


def names_a_file(chat_template: str) -> bool:
    """Returns True when a chat_template setting names a file. A literal template contains {{ or {%."""
    return "{{" not in chat_template and "{%" not in chat_template

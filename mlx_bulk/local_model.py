"""A model in this process: text in, completions and scores out, with the engine, the seeds and the figures of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from mlx_bulk.arguments import as_chats, as_mapping, as_texts, names_nearest, require_progress
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.configs.score import ScoreConfig
from mlx_bulk.conversion import generate_result, score_result
from mlx_bulk.jobs.generate.generate import GenerateJob
from mlx_bulk.jobs.score.score import ScoreJob
from mlx_bulk.memory_run import MemoryModel
from mlx_bulk.records import GenerateResult, ScoreResult
from mlx_bulk.runner.pipeline.progress_display import Show

Message = Mapping[str, object]


class SamplingOptions(TypedDict, total=False):
    """The keys of a config's ``sampling`` section, with its defaults and bounds (docs/config.md)."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_sequence_breakers: str | Sequence[str]
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    include_stop: bool
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    n: int
    seed: int


class LogprobsOptions(TypedDict, total=False):
    """The keys of a config's ``logprobs`` section that are free here: prompt (echo), top (alternatives), stats (ranks, entropies)."""

    prompt: bool
    top: int
    stats: bool


class StructuredOptions(TypedDict, total=False):
    """The keys of a config's ``structured`` section: one of json_schema, regex, choice and grammar, and how it is held."""

    json_schema: Mapping[str, object] | str
    regex: str
    choice: Sequence[str]
    grammar: str
    whitespace: str
    unsupported: Literal["error", "relax"]


class BatchOptions(TypedDict, total=False):
    """The keys of a config's ``batch`` section that matter here."""

    rows: int | Literal["auto"]
    tokens: int | Literal["auto"]
    prefill_tokens: int | Literal["auto"]
    memory: float
    rows_per_shard: int
    prefix_cache: str | None
    deterministic: bool
    image_memory: float
    kv_bits: Literal[4, 8] | None
    kv_group: Literal[32, 64, 128]
    kv_start: int


class Model:
    """A loaded model, made by ``load``. It belongs to the thread that loaded it, as mlx's arrays do.

    Each call works like a run over its inputs: the prompt at position i has the key "i", so that ids and figures are those of a run
    of the same rows with the same settings. Nothing is written.
    """

    def __init__(self, model: MemoryModel, values: dict[str, object], template: dict[str, object]):
        """Takes a model that ``load`` has loaded, and the settings that each call begins from."""
        self._model, self._values, self._template = model, values, template

    @property
    def context(self) -> int | None:
        """Most tokens of a prompt and its completion, as the model's config.json says it; None where it does not."""
        return self._model.context

    def generate(
        self,
        prompts: Sequence[str],
        *,
        structured: StructuredOptions | None = None,
        logprobs: LogprobsOptions | None = None,
        on_error: Literal["quarantine", "fail"] = "quarantine",
        too_long: Literal["error", "truncate_left", "truncate_right"] = "error",
        progress: Show = "nothing",
        **sampling: Unpack[SamplingOptions],
    ) -> list[GenerateResult]:
        """Completes raw texts, without a chat template (``prompt.text`` in a config), and returns a result a prompt, in their order.

        prompts: texts; the tokenizer adds the special tokens that it adds by itself. sampling: as in a config: ``max_tokens`` (256),
        ``temperature`` (1.0, 0 is greedy), ``n`` (1), ``seed`` (0), ``stop``, …. structured: a grammar that completions are held to, as
        {"json_schema": {…}} or {"choice": ["yes", "no"]}; each then says ``grammar_complete``. on_error: a prompt that cannot be done
        has its ``error`` set and the others go on, or it raises. too_long: what becomes of a prompt that leaves no room for one token.
        progress: what stderr shows, as in ``run``.

        Raises BulkError: ConfigError for settings that are wrong, DataError with ``on_error="fail"`` for the first prompt that fails,
        OutOfRoom where the device's memory does not hold one row. TypeError for a prompt that is no text, RuntimeError in another thread.
        """
        texts = as_texts(prompts, "prompts")
        prompt = {"text": "{{ text }}", "too_long": too_long}
        return self._generate("text", texts, texts, prompt, structured, logprobs, on_error, progress, sampling)

    def chat(
        self,
        chats: Sequence[str | Sequence[Message]],
        *,
        structured: StructuredOptions | None = None,
        logprobs: LogprobsOptions | None = None,
        on_error: Literal["quarantine", "fail"] = "quarantine",
        too_long: Literal["error", "truncate_left", "truncate_right"] = "error",
        progress: Show = "nothing",
        **sampling: Unpack[SamplingOptions],
    ) -> list[GenerateResult]:
        """Answers chats through the model's chat template (``prompt.messages`` in a config). Else as ``generate``.

        chats: each a text, which is one turn of the user, or a list of messages ({"role": …, "content": …}). Their contents may have
        parts with pictures where the model was loaded with ``images=True``.

        Raises ConfigError too where the model has no chat template.
        """
        messages = as_chats(chats)
        prompt = {"messages": "messages", "too_long": too_long, **self._template}
        return self._generate("messages", messages, [""] * len(messages), prompt, structured, logprobs, on_error, progress, sampling)

    @names_nearest
    def score(
        self,
        texts: Sequence[str],
        *,
        context: int | Literal["auto"] = "auto",
        windows: Literal["lm_eval", "strided"] = "lm_eval",
        stride: int | None = None,
        prefix: Literal["bos", "bos_or_eos", "none"] = "bos",
        bos_every_window: bool | Literal["auto"] = "auto",
        logprobs: LogprobsOptions | None = None,
        on_error: Literal["quarantine", "fail"] = "quarantine",
        progress: Show = "nothing",
    ) -> list[ScoreResult]:
        """Scores each token of each text (``score.text`` in a config), and returns a result a text, in their order.

        context: most tokens in the model at once, "auto" for the model's own; a longer text is cut into ``windows``. stride: new tokens a
        window with "strided". prefix: what stands before the first token. bos_every_window: whether it stands before each window.

        Raises as ``generate``.
        """
        rows = as_texts(texts, "texts")
        score = {"text": "{{ text }}", "context": context, "windows": windows, "stride": stride, "prefix": prefix}
        values = {
            "job": "score",
            "score": {**score, "bos_every_window": bos_every_window},
            "logprobs": _logprobs(logprobs),
        }
        require_progress(progress)
        batch = as_mapping(self._values["batch"], "batch", '{"memory": 0.4}')
        generation = ("kv_", "prefill_tokens")  # scores are in full precision, and no row decodes
        values["batch"] = {key: value for key, value in batch.items() if not key.startswith(generation)}
        config = self._model.checked({**self._values, **values, "on_error": on_error}, ScoreConfig)
        done = self._model.run(config, ScoreJob, {"text": rows}, progress)
        return [score_result(text, *done.of(position)) for position, text in enumerate(rows)]

    def _generate(
        self,
        column: str,
        rows: Sequence[object],
        texts: Sequence[str],
        prompt: Mapping[str, object],
        structured: StructuredOptions | None,
        logprobs: LogprobsOptions | None,
        on_error: str,
        progress: Show,
        sampling: SamplingOptions,
    ) -> list[GenerateResult]:
        values = {
            "job": "generate",
            "prompt": prompt,
            "sampling": dict(sampling),
            "structured": as_mapping(structured, "structured", '{"choice": ["yes", "no"]}'),
            "logprobs": _logprobs(logprobs),
            "on_error": on_error,
        }
        require_progress(progress)
        config = self._model.checked({**self._values, **values}, GenerateConfig)
        done = self._model.run(config, GenerateJob, {column: rows}, progress)
        return [generate_result(text, *done.of(position)) for position, text in enumerate(texts)]


@names_nearest
def load(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    revision: str | None = None,
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
    trust_remote_code: bool = False,
    chat_template: str | Path | None = None,
    chat_template_args: Mapping[str, object] | None = None,
    batch: BatchOptions | None = None,
    images: bool = False,
) -> Model:
    """Loads a model and checks once how its rows may share a batch.

    path: "demo", a local folder or a hub id. adapter: a LoRA or DoRA adapter in mlx-lm's format. chat_template: the path of one, or the
    template itself. batch: ``{"memory": 0.4}`` takes 40 % of the device's memory, ``{"deterministic": True}`` makes results the same to
    the bit, ``{"kv_bits": 8}`` generates with quantized keys and values, and scores without; see ``batch`` in docs/config.md.
    images: chats may hold pictures, for a vision model, as in docs/images.md; paths lead to files below the working directory.

    Raises BulkError: ConfigError for arguments that are wrong, ModelError for a model that cannot be loaded, OutOfRoom for one that
    memory does not hold.
    """
    model = {"path": path, "adapter": adapter, "revision": revision, "dtype": dtype, "trust_remote_code": trust_remote_code}
    values: dict[str, object] = {
        "model": model,
        "data": {"path": "memory", "keep": "none"},
        "batch": as_mapping(batch, "batch", '{"memory": 0.4}'),
        "output": {"path": "memory"},
    }
    template: dict[str, object] = {"chat_template": chat_template, "chat_template_args": chat_template_args or {}}
    config = load_config(values | {"job": "generate", "prompt": {"messages": "messages", **template}})
    assert isinstance(config, GenerateConfig)
    return Model(MemoryModel(config, images=images), values, template)


def _logprobs(options: LogprobsOptions | None) -> dict[str, object]:
    return as_mapping(options, "logprobs", '{"top": 5}')

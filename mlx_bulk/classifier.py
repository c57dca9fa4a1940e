"""A classifier, reranker or reward model in this process: texts, chats and pairs in, logits and scores out, as a run has them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from mlx_bulk.arguments import as_chats, as_mapping, as_pairs, as_texts, names_nearest, require_progress
from mlx_bulk.configs.classify import ClassifyConfig
from mlx_bulk.configs.load import load_config
from mlx_bulk.conversion import classify_result
from mlx_bulk.jobs.classify.classify import ClassifyJob
from mlx_bulk.local_model import BatchOptions, Message
from mlx_bulk.memory_run import MemoryModel
from mlx_bulk.records import ClassifyResult
from mlx_bulk.runner.pipeline.progress_display import Show

TooLong = Literal["auto", "error", "truncate_left", "truncate_right"]
_TEXT = {"text": "{{ text }}"}


class Classifier:
    """A loaded classifier, made by ``load_classifier``. It belongs to the thread that loaded it, as mlx's arrays do.

    Each call works like a run over its inputs: its figures are those of a run of the same rows with the same settings. Nothing is written.
    """

    def __init__(self, model: MemoryModel, values: Mapping[str, object], settings: Mapping[str, object], template: Mapping[str, object]):
        """Takes a model that ``load_classifier`` has loaded, and the settings that each call begins from."""
        self._model, self._values, self._settings, self._template = model, values, settings, template
        self._labels = ClassifyJob(model.parts(_config(values, settings, _TEXT), ["text"])).labels

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in the logits' order; empty for a model that gives one score."""
        return self._labels

    @names_nearest
    def classify(
        self,
        texts: Sequence[str],
        *,
        too_long: TooLong = "auto",
        on_error: Literal["quarantine", "fail"] = "quarantine",
        progress: Show = "nothing",
    ) -> list[ClassifyResult]:
        """Classifies texts, taken as they are, and returns a result a text, in their order.

        too_long: what becomes of a text of more tokens than the model takes; "auto" cuts it on the right. on_error: a text that cannot be
        done has its ``error`` set and the others go on, or it raises. progress: what stderr shows, as in ``run``.

        Raises BulkError: ConfigError for settings that are wrong, DataError with ``on_error="fail"`` for the first text that fails,
        OutOfRoom where the device's memory does not hold one text. TypeError for what is no list of texts, RuntimeError in another thread.
        """
        return self._classify({"text": as_texts(texts, "texts")}, _TEXT, {"too_long": too_long}, on_error, progress)

    @names_nearest
    def classify_chats(
        self,
        chats: Sequence[str | Sequence[Message]],
        *,
        too_long: TooLong = "auto",
        on_error: Literal["quarantine", "fail"] = "quarantine",
        progress: Show = "nothing",
    ) -> list[ClassifyResult]:
        """Classifies chats through the model's chat template, as reward models read them. Else as ``classify``.

        chats: each a list of messages ({"role": …, "content": …}), the answer that is rated last; a text is one turn of the user.
        too_long: "auto" is an error, since a chat that is cut is another chat.

        Raises ConfigError too where the model has no chat template.
        """
        prompt = {"messages": "messages", **self._template}
        return self._classify({"messages": as_chats(chats)}, prompt, {"too_long": too_long}, on_error, progress)

    @names_nearest
    def classify_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        instruction: str | None = None,
        too_long: TooLong = "auto",
        on_error: Literal["quarantine", "fail"] = "quarantine",
        progress: Show = "nothing",
    ) -> list[ClassifyResult]:
        """Classifies pairs of texts, as cross-encoders and rerankers read them. Else as ``classify``.

        pairs: (query, document) each. instruction: what a reranker is told to look for; None is as the model's files say.
        """
        queries, documents = as_pairs(pairs, "pairs")
        asked = {"query": "{{ query }}", "document": "{{ document }}", "instruction": instruction, "too_long": too_long}
        return self._classify({"query": queries, "document": documents}, self._template, asked, on_error, progress)

    def _classify(
        self,
        columns: Mapping[str, Sequence[object]],
        prompt: Mapping[str, object],
        asked: Mapping[str, object],
        on_error: str,
        progress: Show,
    ) -> list[ClassifyResult]:
        require_progress(progress)
        values = {**self._values, "prompt": prompt, "classify": {**self._settings, **asked}, "on_error": on_error}
        config = self._model.checked(values, ClassifyConfig)
        done = self._model.run(config, ClassifyJob, columns, progress)
        (rows, *_) = map(len, columns.values())
        return [classify_result(*done.of(position)) for position in range(rows)]


@names_nearest
def load_classifier(
    path: str | Path,
    *,
    true_token: str | None = None,
    false_token: str | None = None,
    activation: Literal["auto", "none", "sigmoid", "softmax"] = "auto",
    max_length: int | None = None,
    adapter: str | Path | None = None,
    revision: str | None = None,
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
    trust_remote_code: bool = False,
    chat_template: str | Path | None = None,
    chat_template_args: Mapping[str, object] | None = None,
    batch: BatchOptions | None = None,
) -> Classifier:
    """Loads a sequence classifier, a cross-encoder, a reranker or a reward model.

    path: a local folder or a hub id. true_token, false_token: make a classifier of any chat model; the score is the logit of the one after
    the prompt, less that of the other. activation: what makes a score of logits. max_length: most tokens of an input. All four as in
    ``classify`` of a config. chat_template, batch: as in ``load``.

    Raises BulkError: ConfigError for arguments that are wrong, ModelError for a model that has no head or cannot be loaded, OutOfRoom for
    one that memory does not hold.
    """
    model = {"path": path, "adapter": adapter, "revision": revision, "dtype": dtype, "trust_remote_code": trust_remote_code}
    values: dict[str, object] = {
        "job": "classify",
        "model": model,
        "data": {"path": "memory", "keep": "none"},
        "batch": as_mapping(batch, "batch", '{"memory": 0.4}'),
        "output": {"path": "memory"},
    }
    settings = {"true_token": true_token, "false_token": false_token, "activation": activation, "max_length": max_length}
    template: dict[str, object] = {"chat_template": chat_template, "chat_template_args": chat_template_args or {}}
    prompt = {"messages": "text", **template} if chat_template is not None else _TEXT
    return Classifier(MemoryModel(_config(values, settings, prompt), ClassifyJob, ["text"]), values, settings, template)


def _config(values: Mapping[str, object], settings: Mapping[str, object], prompt: Mapping[str, object]) -> ClassifyConfig:
    config = load_config({**values, "classify": settings, "prompt": prompt})
    assert isinstance(config, ClassifyConfig)
    return config

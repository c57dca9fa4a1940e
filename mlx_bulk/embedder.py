"""An embedding model in this process: texts in, one vector a text out, as a run of ``job: embed`` writes them. Texts may have pictures."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from mlx_bulk.arguments import as_mapping, as_texts, as_texts_and_images, names_nearest, require_progress
from mlx_bulk.configs.embed import EmbedConfig, Pooling
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.embed.embed import EmbedJob
from mlx_bulk.local_model import BatchOptions
from mlx_bulk.memory_run import MemoryModel, RecordLists
from mlx_bulk.records import Floats
from mlx_bulk.runner.pipeline.progress_display import Show

log = logging.getLogger("mlx_bulk")

COLUMNS = ("text", "image")  # of the rows that inputs become; the second where the model reads pictures


class Embedder:
    """A loaded embedding model, made by ``load_embedder``. It belongs to the thread that loaded it, as mlx's arrays do.

    Each call works like a run over its texts: its vectors are those of a run of the same rows with the same settings.
    Nothing is written.
    """

    def __init__(self, model: MemoryModel, values: Mapping[str, object], settings: Mapping[str, object], *, images: bool = False):
        """Takes a model that ``load_embedder`` has loaded, and the settings that each call begins from. images: it reads pictures."""
        self._model, self._values, self._settings, self._images = model, values, settings, images
        self._job = EmbedJob(model.parts(_config(values, settings), COLUMNS[: 1 + images]))

    @property
    def dimensions(self) -> int:
        """The length D of each vector."""
        return self._job.pooling.dimensions

    @property
    def prompts(self) -> dict[str, str]:
        """The model's own prompts, which go before texts: name -> text. Empty where its files name none."""
        return dict(self._job.folder.prompts)

    @property
    def similarity(self) -> str:
        """How vectors are compared, as the model's files say it: cosine (also where they are silent), dot, euclidean or manhattan."""
        return self._job.folder.similarity or "cosine"

    @names_nearest
    def embed(
        self,
        texts: Sequence[str | Mapping[str, object]],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        too_long: Literal["truncate_left", "truncate_right", "error"] | None = None,
        on_error: Literal["quarantine", "fail"] = "fail",
        progress: Show = "nothing",
    ) -> Floats:
        """Embeds texts, and returns their vectors [n, D] float32 in their order.

        Where the model was loaded with ``images=True``, one may be a mapping: {"image": …}, {"text": …, "image": …}, with a path, bytes, an
        image of Pillow's, a data URL or a list of these as image.

        prompt_name: one of the model's prompts, such as "query", which goes before each text; prompt: such a text itself, "" for none.
        Without either the model's default prompt is taken, where it has one. too_long: what becomes of a text of more tokens than
        ``max_length``; None cuts it, most often on the right. on_error: the first text that cannot be embedded raises; with "quarantine"
        its vector is all NaN, the others are done, and a warning counts such texts. progress: what stderr shows, as in ``run``.

        Raises BulkError: ConfigError for settings that are wrong, DataError for a text that fails with ``on_error="fail"``, OutOfRoom
        where the device's memory does not hold one text. TypeError for what is no list of texts, RuntimeError in another thread.
        """
        columns: dict[str, Sequence[object]] = (
            dict(zip(COLUMNS, as_texts_and_images(texts, "texts"), strict=True)) if self._images else {"text": as_texts(texts, "texts")}
        )
        require_progress(progress)
        asked = {"prompt_name": prompt_name, "prompt": prompt, "too_long": too_long}
        settings = {**self._settings, **{name: value for name, value in asked.items() if value is not None}}
        config = self._model.checked({**self._values, "embed": settings, "on_error": on_error}, EmbedConfig)
        done = self._model.run(config, EmbedJob, columns, progress)
        return _vectors(done, len(columns["text"]), self.dimensions)


@names_nearest
def load_embedder(
    path: str | Path,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    max_length: int | None = None,
    adapter: str | Path | None = None,
    revision: str | None = None,
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
    trust_remote_code: bool = False,
    images: bool = False,
    batch: BatchOptions | None = None,
) -> Embedder:
    """Loads an embedding model: a folder of sentence-transformers, an encoder such as BERT, or a language model.

    path: a local folder or a hub id. pooling, normalize, dimensions (of a vector: the first numbers are kept) and max_length (tokens) as
    in ``embed`` of a config; None is as the model's own files say. dtype: that of the weights; vectors are float32. batch: as in ``load``.
    images: inputs may have pictures, for a vision model; texts and pictures go through its chat template, as in docs/images.md, and paths
    lead to files below the working directory.

    Raises BulkError: ConfigError for arguments that are wrong, ModelError for a model that cannot be loaded, OutOfRoom for one that
    memory does not hold.
    """
    model = {"path": path, "adapter": adapter, "revision": revision, "dtype": dtype, "trust_remote_code": trust_remote_code}
    values: dict[str, object] = {
        "job": "embed",
        "model": model,
        "data": {"path": "memory", "keep": "none"},
        "prompt": {"user": "{{ text or '' }}", "images": "image"} if images else {"text": "{{ text }}"},
        "batch": as_mapping(batch, "batch", '{"memory": 0.4}'),
        "output": {"path": "memory"},
    }
    asked = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions, "max_length": max_length}
    settings = {name: value for name, value in asked.items() if value is not None}
    loaded = MemoryModel(_config(values, settings), EmbedJob, COLUMNS[: 1 + images], images=images)
    return Embedder(loaded, values, settings, images=images)


def _config(values: Mapping[str, object], settings: Mapping[str, object]) -> EmbedConfig:
    config = load_config({**values, "embed": settings})
    assert isinstance(config, EmbedConfig)
    return config


def _vectors(done: RecordLists, rows: int, dimensions: int) -> Floats:
    """Returns the vectors [rows, D], those of texts that failed as NaN."""
    vectors = np.full((rows, dimensions), np.nan, np.float32)
    for position, records in done.records.items():
        vectors[position] = records[0]["embedding"]
    if done.failures:
        position, first = min(done.failures.items())
        why = f"texts[{position}] failed at {first.stage}: {first.message}"
        log.warning("%d of %d texts have no vector, NaN stands in its place; %s", len(done.failures), rows, why)
    return vectors

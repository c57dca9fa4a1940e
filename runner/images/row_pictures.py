"""The pictures of a run's rows: whether config and columns may bring any, where files of them may lie, and a row's prompt with them.

Knows no checkpoint beyond its folder and its config.json.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.data import DataConfig
from ...configs.errors import BulkError, ConfigError
from ...configs.schema import JobConfig, PromptConfig
from ...configs.score import ScoreConfig
from ..core.errors import ModelError
from ..core.requests import Row
from ..data.column_paths import lookup
from ..data.input_folder import glob_folder
from ..data.spooled_stdin import SPOOL_NAMES
from ..data.type_inference import JSON_METADATA
from ..templates.prompt_templates import Chat, Rendered, Text
from ..text.assistant_spans import AssistantTurns
from ..text.tokenizer import NOTHING, Tokenizer
from .content_parts import Message, NamedPicture, listed_pictures
from .picture_text import PictureText
from .placeholders import PictureEncoder
from .sources import FileReader, PictureSources
from .tower_processor import has_two_towers, load_picture_processor

log = logging.getLogger("mlx_bulk")

_PART_KEYS = {"image", "image_url", "url", "path", "bytes", "source", "base64"}  # of a content part that may hold a picture


@dataclass(frozen=True, slots=True)
class RowPictures:
    """Encodes one row's prompts with its pictures. render: makes the prompt of columns; None where the row brings its text."""

    encoder: PictureEncoder
    row: Row
    config: PromptConfig
    render: Callable[[dict[str, Any]], Rendered] | None

    def text_of(self, rendered: Rendered, variables: Mapping[str, Any] = NOTHING) -> PictureText:
        """Returns the text of a rendered prompt, with its pictures. variables: the chat template's, for this prompt. Raises RowError."""
        images, folder, render = self._images, folder_beside(self.row), self.render
        if isinstance(rendered, Chat):
            where = self.config.messages or "messages"
            return self.encoder.chat_text(rendered.messages, rendered.prefill or "", variables, where, images, folder)
        if render is None:
            return self.encoder.raw_text(lambda columns: columns["text"], {"text": rendered.text}, images, folder)
        return self.encoder.raw_text(lambda columns: _raw(render(columns)), self.row.columns, images, folder)

    def turns_of(self, messages: list[Message], where: str) -> AssistantTurns:
        """Returns a whole chat with its pictures and the assistant's turns. where: the messages' column. Raises RowError."""
        return self.encoder.whole_chat(messages, where, self._images, folder_beside(self.row))

    @property
    def _images(self) -> list[NamedPicture]:
        column = self.config.images
        return [] if column is None else listed_pictures(lookup(self.row.columns, column), column)


def _raw(rendered: Rendered) -> str:
    assert isinstance(rendered, Text), "the prompt is a raw text"
    return rendered.text


def has_vision_tower(model: Mapping[str, Any]) -> bool:
    """Returns whether a checkpoint with this config.json has a tower for pictures."""
    return isinstance(model.get("vision_config"), dict)


def open_pictures(
    config: JobConfig, folder: Path, model: Mapping[str, Any], tokenizer: Tokenizer, schema: pa.Schema, files: FileReader | None = None
) -> PictureEncoder | None:
    """Returns what encodes the pictures of a run's rows; None where there are none, or where the model reads text alone.

    folder, model: the checkpoint's, and its config.json. schema: the input's columns. files: see ``PictureSources``. Raises ConfigError
    and ModelError where the config names a column of pictures, and they cannot be read. Raises ModelError for a model with two towers in
    any job but embed.
    """
    if has_two_towers(model) and config.job != "embed":
        found = f"{folder} ({model['model_type']}) makes vectors of texts and pictures alone"
        raise ModelError(f"model.path: {found}; set job: embed")
    if not has_vision_tower(model):
        if config.prompt.images is not None:
            found = f"the model ({model.get('model_type')}) reads text alone: its config.json has no vision_config"
            raise ConfigError(f"prompt.images: {found}; take a vision model, or remove it")
        return None
    if not may_hold_pictures(config, schema):
        return None
    try:
        processor = load_picture_processor(folder, dict(model), tokenizer.hf)
    except BulkError as error:
        if config.prompt.images is not None:
            raise
        log.warning("pictures in messages cannot be read, so their rows will fail: %s", error)
        return None
    sources = PictureSources(picture_folders(config.data) if files is None else (), config.data.fetch, files)
    return PictureEncoder(tokenizer, processor, sources, config.data.max_image_pixels)


def require_same_processor(pictures: PictureEncoder, folder: Path, model: Mapping[str, Any], tokenizer: Tokenizer, key: str) -> None:
    """Raises ModelError where a second model, at ``key`` of the config, reads no pictures, or wants other pixels of one.

    folder, model: its checkpoint's, and its config.json. Both models read the pixels that the first one's processor makes.
    """
    if not has_vision_tower(model):
        found = f"the model at {folder} ({model.get('model_type')}) reads text alone"
        raise ModelError(f"{key}: {found}, and rows may have pictures; expected a vision model of the same kind as model.path")
    if load_picture_processor(folder, dict(model), tokenizer.hf).settings != pictures.settings:
        found = f"the image processor of {folder} has other settings than the model's"
        raise ModelError(f"{key}: {found}, so it would see other pixels; expected the same preprocessor_config.json")


def messages_column(config: JobConfig) -> str | None:
    """Returns the column of chats that may hold pictures: those that are scored, or those of the prompt; None without one."""
    scored = config.score.messages if isinstance(config, ScoreConfig) else None
    return scored or config.prompt.messages


def may_hold_pictures(config: JobConfig, schema: pa.Schema) -> bool:
    """Returns False where no row can have a picture, as its columns show."""
    if config.job not in ("generate", "rollout", "score", "embed"):
        return False
    if config.prompt.images is not None or config.data.format == "openai":
        return config.job != "embed" or config.prompt.images is not None  # requests for embeddings bring texts alone
    path = messages_column(config)
    if path is None:
        return False
    column = path.split(".")[0] if path not in schema.names else path
    return column not in schema.names or _may_hold(schema.field(column))


def _may_hold(field: pa.Field) -> bool:
    kind = field.type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    if field.metadata == JSON_METADATA or (field.name != "content" and pa.types.is_large_string(kind)):
        return True  # JSON, which may hold anything
    if not pa.types.is_struct(kind):
        return False
    inner = {kind.field(index).name: kind.field(index) for index in range(kind.num_fields)}
    return not _PART_KEYS.isdisjoint(inner) or any(_may_hold(each) for each in inner.values() if pa.types.is_nested(each.type))


def picture_folders(data: DataConfig) -> tuple[Path, ...]:
    """Returns the folders below which a row's files of pictures may lie: those that ``data.path`` names, or in which its files lie."""
    named = [data.path] if isinstance(data.path, str) else list(data.path)
    folders = [_folder_of(name) for name in named if not name.startswith("hf:")]
    return tuple(dict.fromkeys(folder.resolve() for folder in folders))


def _folder_of(name: str) -> Path:
    if name == "-":
        return Path.cwd()
    path = Path(name)
    if path.is_dir():
        return path
    return path.parent if path.exists() or not any(mark in name for mark in "*?[") else glob_folder(name)


def folder_beside(row: Row) -> Path:
    """Returns the folder at which a row's relative paths begin: that of its file, and without one the working directory, as ``.``."""
    file = Path(row.source)
    return Path() if not row.source or file.name in SPOOL_NAMES.values() or row.source.startswith("hf:") else file.parent

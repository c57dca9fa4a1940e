"""Encodes rows' prompts as embedders read them: texts behind the model's prompt, or chats that begin with it; pictures in both.

Which of the two a row becomes follows from config and model alone. sentence-transformers puts each text, picture or both into a turn of
the user where the model's files name messages; the prompt is then the turn of the system.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...configs.embed import EmbedConfig
from ...configs.errors import ConfigError
from ...configs.schema import PromptConfig
from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.images import PromptImage
from ...runner.core.requests import PoolRequest, Row, TokenInput
from ...runner.data.column_paths import lookup
from ...runner.images.content_parts import NamedPicture, listed_pictures
from ...runner.images.row_pictures import RowPictures, has_vision_tower
from ...runner.pipeline.job import Parts
from ...runner.pooling.sentence_folder import SentenceFolder
from ...runner.templates.chat_messages import Columns
from ...runner.templates.prompt_templates import Chat, Rendered, Text, compile_prompt
from ..generate.prompt_encoding import require_chat_template, require_vocabulary
from .text_inputs import TextInputs


@dataclass(frozen=True)
class PromptInputs:
    """Encodes rows. texts: encodes what is text alone, behind its ``prompt``. folder: what sentence-transformers' files say."""

    parts: Parts
    texts: TextInputs
    folder: SentenceFolder
    config: EmbedConfig = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError where the model has no chat template for what is a chat."""
        assert isinstance(self.parts.config, EmbedConfig)
        object.__setattr__(self, "config", self.parts.config)
        require_chat_template(self.parts)
        if self._chats and not self.parts.tokenizer.has_chat_template:
            found = "the model's tokenizer has no chat template, by which pictures and texts become one prompt"
            raise ConfigError(f"prompt: {found}; write prompt.text with the model's placeholder where a picture stands")

    def request(self, row: Row) -> PoolRequest:
        """Returns the row's one request. Raises RowError."""
        rendered = self._render(row.columns)
        if isinstance(rendered, Text) and self.parts.pictures is None:
            one, cut = self.texts.encode(rendered.text)
            require_vocabulary(one.ids, self.parts.vocabulary, "the text")
            return PoolRequest(row.position, (one,), truncated=int(cut))
        chat = isinstance(rendered, Chat)
        if self.config.prompt.images is not None and not self._pictures(row) and not _says_something(rendered):
            raise RowError("tokenize", "nothing to embed: the row has no picture and no text; give it one of them")
        ids, images = self._encoded(row, self._as_turns(row, rendered) if isinstance(rendered, Chat) else rendered)
        require_vocabulary(self.parts.plain(ids), self.parts.vocabulary, "the prompt")
        if not len(ids):
            raise RowError(
                "tokenize", "the prompt is empty, and this tokenizer puts no special tokens around it; there is nothing to embed"
            )
        fitting = self._fitting(ids, images) if chat or images else self.texts.fit(ids)
        one = TokenInput(fitting, start=0 if chat else self.texts.start(fitting))
        return PoolRequest(row.position, (one,), truncated=int(len(fitting) < len(ids)), images=images)

    def text(self, text: str) -> tuple[TokenInput, bool]:
        """Returns a text by itself as the model reads it, and whether it was cut. Raises RowError."""
        if not self._chats:
            return self.texts.encode(text)
        turns = self._behind_system([{"role": "user", "content": text}])
        shown = self.parts.tokenizer.chat_text(turns, "", self._variables)
        return TokenInput(self._fitting(self._chat_ids(shown), ()), start=0), False

    @cached_property
    def _chats(self) -> bool:
        """Whether rows become chats: where they say so themselves, have pictures alone, or the model's files have it so."""
        own = self.config.data.format != "openai" and self.config.prompt.sources != ["text"]
        return self.folder.messages or own

    @cached_property
    def _variables(self) -> Mapping[str, Any]:
        """The chat template's, where the model's files say that texts go through it."""
        if not self.folder.messages:
            return {}
        return {"add_generation_prompt": False, **self.folder.chat_variables, **self.config.prompt.chat_template_args}

    @cached_property
    def _render(self) -> Any:
        """Returns a row's columns as a text behind the prompt, or as a chat."""
        prompt = with_a_turn(self.config.prompt)
        compiled = compile_prompt(prompt, self.parts.columns, self.parts.pictures is not None)
        if prompt.sources != ["text"]:
            return compiled

        def render(row: Columns) -> Rendered:
            text = compiled(row)
            assert isinstance(text, Text)
            return Chat([{"role": "user", "content": text.text}]) if self._chats else text

        return render

    def _as_turns(self, row: Row, chat: Chat) -> Chat:
        """Returns the chat behind the model's prompt, without the empty text of a picture alone."""
        messages = self._behind_system(chat.messages)
        if self._pictures(row):
            messages = [{**each, "content": []} if each.get("content") == "" and each["role"] == "user" else each for each in messages]
        return replace(chat, messages=messages)

    def _pictures(self, row: Row) -> list[NamedPicture]:
        """Returns what the column of pictures holds."""
        column = self.config.prompt.images
        return [] if column is None else listed_pictures(lookup(row.columns, column), column)

    def _behind_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns a chat behind the model's prompt, where it has no turn of the system itself."""
        if self.texts.prompt and messages[0]["role"] != "system":
            return [{"role": "system", "content": self.texts.prompt}, *messages]
        return messages

    def _chat_ids(self, shown: str) -> Ids:
        tokenizer = self.parts.tokenizer
        return (tokenizer.encode(shown) if self._around(shown) else tokenizer.encode_text(shown)).ids

    def _encoded(self, row: Row, rendered: Rendered) -> tuple[Ids, tuple[PromptImage, ...]]:
        """Returns ids, in which pictures stand, and the pictures."""
        pictures, tokenizer = self.parts.pictures, self.parts.tokenizer
        if pictures is None:
            assert isinstance(rendered, Chat)
            return self._chat_ids(tokenizer.chat_text(rendered.messages, rendered.prefill or "", self._variables)), ()
        placed = RowPictures(pictures, row, self.config.prompt, self._behind_prompt)
        found = placed.text_of(rendered, self._variables)
        if isinstance(rendered, Chat):
            found = replace(found, raw=self._around(found.shown))
        prompt = found.prompt()
        return prompt.ids, prompt.images

    def _behind_prompt(self, row: Columns) -> Rendered:
        rendered = self._render(row)
        assert isinstance(rendered, Text)
        return Text(self.texts.prompt + rendered.text)

    def _around(self, text: str) -> bool:
        """Whether the tokenizer puts its special tokens around a chat: as transformers' processors do, where the chat has no BOS."""
        bos = self.parts.tokenizer.hf.bos_token
        return has_vision_tower(self.parts.checkpoint.config) and not (bos and text.startswith(bos))

    def _fitting(self, ids: Ids, images: tuple[PromptImage, ...]) -> Ids:
        """Returns ids that are as they are: neither a chat nor a prompt with pictures is cut. Raises RowError."""
        most = self.texts.max_length
        if most is None or len(ids) <= most:
            return ids
        shown = int(np.sum([image.tokens for image in images]))
        pictures = f", of which {shown} are of pictures" if images else ""
        give = "give smaller pictures or a shorter text" if images else "give a shorter text"
        cure = f"raise it, or {give} (chats are never cut)" if self.texts.own_length else f"chats are never cut: {give}"
        found = f"the prompt has {len(ids)} tokens{pictures}, and {self.texts.longest}"
        raise RowError("too_long", f"{found}; {cure}")


def with_a_turn(prompt: PromptConfig) -> PromptConfig:
    """Returns the prompt's settings, with an empty turn of the user where there are pictures alone."""
    return prompt if prompt.sources else prompt.model_copy(update={"user": "{{ '' }}"})


def _says_something(rendered: Rendered) -> bool:
    """Whether a prompt has more than white space, system turns apart. A content that is a list holds pictures."""
    if isinstance(rendered, Text):
        return bool(rendered.text.strip())
    contents = [message.get("content") for message in rendered.messages if message["role"] != "system"]
    return any(content.strip() if isinstance(content, str) else content for content in contents)

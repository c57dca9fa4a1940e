"""Rows for a model with two towers (CLIP, SigLIP): each is a text or a picture, and has one vector in their common space."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...configs.embed import EmbedConfig
from ...configs.errors import ConfigError
from ...runner.core.errors import RowError
from ...runner.core.requests import PoolRequest, Row, TokenInput
from ...runner.data.column_paths import lookup
from ...runner.encoders.registry import encoder_class
from ...runner.encoders.text_towers import LEGACY_EOS
from ...runner.images.content_parts import NamedPicture, listed_pictures
from ...runner.images.row_pictures import folder_beside
from ...runner.images.sources import picture_error
from ...runner.pipeline.job import Parts
from ...runner.templates.prompt_templates import Text, compile_prompt
from ..generate.prompt_encoding import require_vocabulary
from .text_inputs import TextInputs


@dataclass(frozen=True)
class TowerInputs:
    """Encodes rows. texts: encodes texts, behind its ``prompt``, which goes before no picture."""

    parts: Parts
    texts: TextInputs
    config: EmbedConfig = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError for chats, which neither tower reads, and for a tokenizer that is another model's."""
        assert isinstance(self.parts.config, EmbedConfig)
        object.__setattr__(self, "config", self.parts.config)
        prompt = self.config.prompt
        if found := [name for name in ("messages", "system", "prefill") if getattr(prompt, name) is not None]:
            reads = f"{self.parts.family} reads a text or a picture, and no chats"
            raise ConfigError(f"prompt.{found[0]}: {reads}; write prompt.text, prompt.images or both, of which each row has one")
        encoder = encoder_class(self.parts.checkpoint.config)
        assert encoder is not None
        eos = encoder.settings(self.parts.checkpoint.config).get("eos_token_id")
        if self.parts.family == "clip" and eos != LEGACY_EOS and eos not in self.texts.encode("a")[0].ids:
            found = f"config.json says that texts end in the token {eos} (text_config.eos_token_id), and the tokenizer's do not"
            raise ConfigError(f"model.path: {found}; fetch both anew from one place")

    def request(self, row: Row) -> PoolRequest:
        """Returns the row's one request. Raises RowError."""
        pictures, text = self._pictures(row), self._text(row)
        if pictures and text.strip():
            raise picture_error("the row has a picture and a text, and this model makes a vector of one alone; give each a row of its own")
        if len(pictures) > 1:
            raise picture_error(f"the row has {len(pictures)} pictures, and this model makes a vector of one; give each a row of its own")
        if pictures:
            assert self.parts.pictures is not None, "there is a column of them"
            image = self.parts.pictures.picture(pictures[0], folder_beside(row))
            return PoolRequest(row.position, (TokenInput(image.ids),), images=(image,))
        if self.config.prompt.images is not None and not text.strip():
            raise RowError("tokenize", "nothing to embed: the row has no picture and no text; give it one of them")
        one, cut = self.text(text)
        require_vocabulary(one.ids, self.parts.vocabulary, "the text")
        return PoolRequest(row.position, (one,), truncated=int(cut))

    def text(self, text: str) -> tuple[TokenInput, bool]:
        """Returns a text by itself as the model reads it, and whether it was cut. Raises RowError."""
        return self.texts.encode(text)

    @cached_property
    def _render(self) -> Any:
        return compile_prompt(self.config.prompt, self.parts.columns)

    def _text(self, row: Row) -> str:
        """Returns the row's text; "" where the config names pictures alone."""
        if not self.config.prompt.sources:
            return ""
        rendered = self._render(row.columns)
        return rendered.text if isinstance(rendered, Text) else str(rendered.messages[0]["content"])  # prompt.user: one turn

    def _pictures(self, row: Row) -> list[NamedPicture]:
        column = self.config.prompt.images
        return [] if column is None else listed_pictures(lookup(row.columns, column), column)

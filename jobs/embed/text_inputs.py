"""Encodes texts as pooling models read them: special tokens around, cut to a length between these. Equal to sentence-transformers.

Knows no files and no rows. A text of 100 tokens in a model that takes 8:

    [CLS] a b c … x y z [SEP]   truncate_right   [CLS] a b c d e f [SEP]
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.requests import TokenInput
from ...runner.text.tokenizer import Tokenizer
from ...runner.text.tokenizer_compat import encodes_plainly

TooLong = Literal["truncate_left", "truncate_right", "error"]


@dataclass(frozen=True)
class TextInputs:
    """Encodes texts behind one prompt.

    prompt: stands before each text, empty for none. pooled_prompt: pooling counts its tokens too. lowercase: texts are made lower case
    first. max_length: most tokens of an input, None for any number; ``too_long`` says what happens to more. own_length: the config sets it.
    padded_length: inputs of fewer tokens are filled up with ``pad``, which the model reads as any token.
    """

    tokenizer: Tokenizer
    prompt: str = ""
    pooled_prompt: bool = True
    lowercase: bool = False
    max_length: int | None = None
    too_long: TooLong = "truncate_right"
    own_length: bool = False
    padded_length: int = 0
    pad: int = 0

    def encode(self, text: str) -> tuple[TokenInput, bool]:
        """Returns the input, and whether it was cut. Raises RowError where nothing is left to pool, or the text is too long."""
        ids = self._ids(self.prompt + text)
        if not len(ids):
            raise RowError("tokenize", "the text is empty, and this tokenizer puts no special tokens around it; there is nothing to embed")
        whole = len(ids)
        ids = self.fit(ids)
        return TokenInput(self.padded(ids), start=self.start(ids)), len(ids) < whole

    def padded(self, ids: Ids) -> Ids:
        """Returns ids filled up to ``padded_length``."""
        return np.pad(ids, (0, max(0, self.padded_length - len(ids))), constant_values=self.pad)

    def start(self, ids: Ids) -> int:
        """Returns the first of ``ids`` that pooling counts. Raises RowError where none is left."""
        if self._start >= len(ids):
            taken = f"the prompt takes {self._start} of the {len(ids)} tokens"
            raise RowError("tokenize", f"nothing is left to pool: {taken}, and this model's pooling leaves the prompt out")
        return self._start

    def fit(self, ids: Ids) -> Ids:
        """Returns ids [T] with special tokens around cut to ``max_length``; these stay. Raises RowError where they may not be cut."""
        if self.max_length is None or len(ids) <= self.max_length:
            return ids
        before, after = self.special_tokens
        if self.too_long == "error":
            cure = f"{'raise it, shorten the text,' if self.own_length else 'shorten it,'} or set embed.too_long to truncate_right"
            raise RowError("too_long", f"the text has {len(ids)} tokens, and {self.longest}; {cure}")
        keep, end = self.max_length - before - after, len(ids) - after
        body = ids[before : before + keep] if self.too_long == "truncate_right" else ids[end - keep : end]
        return np.concatenate([ids[:before], body, ids[end:]])

    @property
    def longest(self) -> str:
        """Says how many tokens an input may have, and by whose word."""
        return f"{'embed.max_length is' if self.own_length else 'the model takes'} {self.max_length}"

    @cached_property
    def special_tokens(self) -> tuple[int, int]:
        """The numbers of special tokens that the tokenizer puts before and behind each text."""
        plain, whole = self.tokenizer.encode_text("a").ids.tolist(), self._ids("a").tolist()
        before = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
        return before, len(whole) - before - len(plain)

    @cached_property
    def _start(self) -> int:
        """The first token that counts. As in sentence-transformers the prompt's length is that of the prompt alone, without its EOS."""
        if self.pooled_prompt or not self.prompt:
            return 0
        ids = self._ids(self.prompt)
        ids = ids if self.max_length is None else ids[: self.max_length]
        return len(ids) - (len(ids) > 0 and int(ids[-1]) in self.tokenizer.hf.all_special_ids)

    def _ids(self, text: str) -> Ids:
        """Returns the ids of a text with special tokens around it."""
        if self._backend is not None:
            return np.array(self._backend.encode_batch_fast([text], add_special_tokens=True)[0].ids, np.int32)
        text = text.lower() if self.lowercase else text
        return np.array(self.tokenizer.hf(text, add_special_tokens=True, verbose=False)["input_ids"], np.int32)

    @cached_property
    def _backend(self) -> Any:
        """The tokenizer behind the checkpoint's, which takes half the time; None where code of its own comes first."""
        hf = self.tokenizer.hf
        if not (hf.is_fast and encodes_plainly(type(hf))):
            return None
        return lowercased(hf.backend_tokenizer) if self.lowercase else hf.backend_tokenizer


def lowercased(backend: Any) -> Any:
    """Returns a copy of a ``tokenizers.Tokenizer`` that makes texts lower case first, special tokens in them apart."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.normalizers import Lowercase, Sequence

    copy = Backend.from_str(backend.to_str())
    copy.normalizer = Lowercase() if copy.normalizer is None else Sequence([Lowercase(), copy.normalizer])
    return copy

"""Pictures in prompts: each of a picture's tokens is an id beyond the vocabulary, so that what moves token ids moves pictures too.

Equal ids mean equal pictures: prefix trees, samples and caches share a picture without knowing of it. The ids are a session's own. What
lasts (records, a prefix cache on disk, logs) holds a picture's digest, or the tokenizer's own id of a placeholder. Knows no model, and
not what a picture looks like.

    ids        a b P P P c      P P P: first, first + 1, first + 2 of one picture
    plain      a b i i i c      i: the tokenizer's own id of a placeholder
"""

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from .arrays import Ids, Ints
from .errors import OutOfRoom

FIRST_IMAGE_ID = 1 << 24  # this id and all above it stand for a picture's tokens; no vocabulary is as large
_END = 1 << 31  # ids are int32
_DEAD = 64  # ranges of dead pictures that are kept at least, so that not each death sorts the table anew

Pixels = Callable[[], dict[str, NDArray[np.generic]]]  # what the model's tower takes: pixel_values and what stands beside them


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PromptImage:
    """A picture of a prompt, without its pixels.

    digest: sha256 of the picture's bytes and of the processor's settings; equal digests mean equal features. first, tokens: its ids are
    ``first`` to ``first + tokens - 1``, one for each token that carries a feature. grid: (time, height, width) in tokens, for positions;
    (1, 1, tokens) where they have no meaning. inputs: reads the picture and prepares its pixels anew; raises DataError where it has
    changed.
    """

    digest: str
    first: int
    tokens: int
    grid: tuple[int, int, int]
    inputs: Pixels

    @property
    def ids(self) -> Ids:
        """Its ids, [tokens]."""
        return np.arange(self.first, self.first + self.tokens, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """Tokens of one picture in a call. indices [N]: their places in the call's flat ids; offsets [N]: their places in the picture."""

    image: PromptImage
    indices: Ints
    offsets: Ints


class ImageTable:
    """The pictures of the prompts that are in memory, for one loaded checkpoint. Threads may share it.

    It keeps no picture alive: prompts and requests do. placeholder: the tokenizer's own id that stands where a feature goes.
    """

    def __init__(self, placeholder: int, end: int = _END):
        self.placeholder = placeholder
        self._by_digest: WeakValueDictionary[str, PromptImage] = WeakValueDictionary()
        self._by_first: WeakValueDictionary[int, PromptImage] = WeakValueDictionary()
        self._ends: dict[int, int] = {}  # of each range in ``_firsts``
        self._firsts: list[int] = []  # ascending; some are of dead pictures
        self._next, self._end, self._lock = FIRST_IMAGE_ID, end, Lock()

    def register(self, digest: str, tokens: int, grid: tuple[int, int, int], inputs: Pixels) -> PromptImage:
        """Returns the picture with its ids: the same object as long as that lives, with new ids after it died.

        Raises OutOfRoom where the pictures in memory hold all ids.
        """
        with self._lock:
            known = self._by_digest.get(digest)
            if known is not None:
                return known
            first = self._free(tokens)
            image = PromptImage(digest, first, tokens, grid, inputs)
            self._by_digest[digest] = self._by_first[first] = image
            self._ends[first] = self._next = first + tokens
            insort(self._firsts, first)
            return image

    def image_of(self, image_id: int) -> PromptImage:
        """Returns the picture that an id belongs to. Raises KeyError where none in memory has it."""
        with self._lock:
            at = bisect_right(self._firsts, image_id) - 1
            first = self._firsts[at] if at >= 0 else None
            image = None if first is None or image_id >= self._ends[first] else self._by_first.get(first)
        if image is None:
            raise KeyError(f"no picture in memory has the id {image_id}")
        return image

    def images_in(self, ids: NDArray[np.integer]) -> list[ImagePart]:
        """Returns the pictures of which tokens stand in ``ids`` (of any shape), each once, in the order in which they begin there."""
        flat = ids.ravel()
        indices = np.flatnonzero(flat >= FIRST_IMAGE_ID)
        left, parts = flat[indices].astype(np.int64), list[ImagePart]()
        while len(indices):
            image = self.image_of(int(left[0]))
            own = (left >= image.first) & (left < image.first + image.tokens)
            parts.append(ImagePart(image, indices[own], left[own] - image.first))
            indices, left = indices[~own], left[~own]
        return parts

    def plain(self, ids: Ids) -> Ids:
        """Returns ids as the tokenizer knows them: the placeholder's own id for each token of a picture."""
        return np.where(ids >= FIRST_IMAGE_ID, np.int32(self.placeholder), ids)

    def _free(self, tokens: int) -> int:
        """Returns the first id of a range that no living picture has, after the newest one where there is room."""
        if len(self._firsts) > 2 * len(self._by_first) + _DEAD:
            self._forget_the_dead()
        if self._next + tokens <= self._end and (not self._firsts or self._next >= self._ends[self._firsts[-1]]):
            return self._next
        self._forget_the_dead()
        for start in (self._next, FIRST_IMAGE_ID):
            first = start
            for taken in self._firsts:
                if taken < first + tokens and self._ends[taken] > first:
                    first = self._ends[taken]
            if first + tokens <= self._end:
                return first
        raise OutOfRoom(
            f"the pictures in memory have {self._end - FIRST_IMAGE_ID} tokens in all, and no more can be told apart; lower batch.rows"
        )

    def _forget_the_dead(self) -> None:
        alive = set(self._by_first)
        self._firsts = [first for first in self._firsts if first in alive]
        self._ends = {first: self._ends[first] for first in self._firsts}


def continues(ids: NDArray[np.integer], following: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Returns where an id is a picture's and the following one may be the same picture's."""
    return (ids >= FIRST_IMAGE_ID) & (following == ids + 1)


def not_compared(kind: str) -> str:
    """Says of a model type what nobody compared with transformers."""
    return (
        f"pictures of the model type {kind} were compared with mlx-vlm alone and not with transformers, as model.unchecked_images allows; "
        "a fault of mlx-vlm's own tower would not be seen"
    )

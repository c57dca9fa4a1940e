"""mlx-vlm's whole model of a checkpoint, with its own language model: the logprobs that it gives a row by itself.

They stand in for transformers' where nobody compared a model type with those. What mlx-vlm hands its language model beside embeddings
would be left out by our networks, so it is refused here.
"""

from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import numpy as np

from ...kernels.logprobs import score
from ..core.arrays import Floats, Ids
from ..core.errors import ModelError, RowError, first_line
from ..core.images import FIRST_IMAGE_ID, ImageTable, PromptImage
from ..images.pictures import pillow
from ..images.processors import ImageProcessor, load_image_processor
from ..text.tokenizer import Tokenizer, load_tokenizer
from .towers import as_array, known_as, model_of, parameters_of, settings_of
from .uncompared import UncomparedType

if TYPE_CHECKING:
    from PIL.Image import Image

SIZES = ((224, 160), (120, 260), (224, 160))  # width and height of the pictures that are shown; two are alike in it
# What language models have whose positions of a picture's tokens are no plain count. Some count so only where a prompt has further tokens
# around a picture.
_OTHER_POSITIONS = ("get_rope_index", "_position_ids", "_rope_deltas")
_PLAIN = ("inputs_embeds", "position_ids", "rope_deltas")  # what embedding a row may give, where positions count tokens


def open_whole_model(uncompared: UncomparedType) -> "WholeModel":
    """Reads the whole model of a checkpoint, beside the one that is in memory. Raises ModelError where mlx-vlm cannot."""
    from mlx_vlm.utils import get_model_and_args, load_model_weights, sanitize_weights  # pyright: ignore[reportMissingImports]

    tokenizer = load_tokenizer(uncompared.folder, None, {}, False)
    processor = load_image_processor(uncompared.folder, uncompared.config, tokenizer.hf)
    turn = _turn(tokenizer, processor)
    try:
        settings = settings_of(uncompared.config)
        family, _ = get_model_and_args(config=settings, model_path=uncompared.folder)
        model = model_of(family, settings)
        weights: dict[str, mx.array] = {}
        for file in sorted(uncompared.folder.glob("model*.safetensors")):
            weights |= cast(dict[str, mx.array], mx.load(str(file)))
        weights = sanitize_weights(model, weights)
        for part, settings_name in (("VisionModel", "vision_config"), ("LanguageModel", "text_config")):
            if hasattr(family, part):
                weights = sanitize_weights(getattr(family, part), weights, getattr(model.config, settings_name))
        expected = {name for name, _ in parameters_of(model)}
        load_model_weights(
            model, settings, {known_as(name, expected): each for name, each in weights.items()}, uncompared.folder, lazy=True
        )
    except Exception as error:  # a model file may fail in any way
        raise ModelError(f"mlx-vlm cannot load the whole model: {first_line(error)}") from error
    if uncompared.dtype is not None:
        model.set_dtype(uncompared.dtype)
    return WholeModel(model.eval(), processor, turn)


def _turn(tokenizer: Tokenizer, processor: ImageProcessor) -> str:
    """Returns a user's turn with one picture, as the chat template writes it: some models find a picture by what stands before it.

    Raises ModelError where no template shows a picture.
    """
    try:
        turn = tokenizer.chat_text([{"role": "user", "content": [{"type": "image"}]}], "")
    except RowError as error:
        raise ModelError(f"no row can be tried as runs have them: {error}") from error
    if turn.count(processor.image_token) != 1:
        raise ModelError("no row can be tried as runs have them: its chat template shows no picture")
    return turn


class WholeModel:
    """Gives rows the logprobs that mlx-vlm's whole ``model`` gives each alone. processor: of its pictures. turn: with one picture."""

    def __init__(self, model: Any, processor: ImageProcessor, turn: str):
        self._model, self._processor, self._turn = model, processor, turn
        self._shown: dict[str, Image] = {}
        self._known: dict[bytes, Floats] = {}

    def words(self) -> Ids:
        """Returns the ids of all tokens that are text."""
        return self._processor.words()

    def pictures(self, table: ImageTable) -> list[tuple[Ids, PromptImage]]:
        """Returns pictures of noise, of the sizes ``SIZES``, each with the ids of a user's turn that shows it."""
        made: list[tuple[Ids, PromptImage]] = []
        for seed, (width, height) in enumerate(SIZES):
            noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
            image = pillow().fromarray(noise)
            layout = self._processor.layout(image, "noise")
            digest = f"noise {seed}"
            placed = table.register(digest, layout.tokens, layout.grid, lambda image=image: self._processor.inputs(image, "noise"))
            ids = self._processor.ids_of(self._turn.replace(self._processor.image_token, layout.text))
            ids[ids == self._processor.placeholder] = placed.ids
            self._shown[digest] = image
            made.append((ids, placed))
        return made

    def logprobs(self, ids: Ids, table: ImageTable) -> Floats:
        """Returns the logprobs [T - 1] of a row's tokens after its first; 0 at those of pictures. Remembered.

        Its pictures are those of ``pictures``. Raises ModelError where the model does with the row what our networks do not.
        """
        if (key := ids.tobytes()) not in self._known:
            shown = [table.image_of(int(each)) for each in ids if each >= FIRST_IMAGE_ID]
            begins = [image for image, each in zip(shown, ids[ids >= FIRST_IMAGE_ID], strict=True) if image.first == each]
            logits = self._logits(mx.array(table.plain(ids)[None]), [self._shown[image.digest] for image in begins])[:-1]
            words = ids[1:] < FIRST_IMAGE_ID
            self._known[key] = np.where(words, score(logits, np.where(words, ids[1:], 0)).logprobs, np.float32(0.0))
        return self._known[key]

    def _logits(self, ids: mx.array, pictures: list["Image"]) -> mx.array:
        """Returns the logits [T, V] of a row, ids [1, T], in one call of the language model."""
        from mlx_vlm.models.cache import make_prompt_cache  # pyright: ignore[reportMissingImports]  (the extra vision has it)

        text = self._model.language_model
        if any(hasattr(text, name) for name in _OTHER_POSITIONS):
            raise ModelError("tokens of its pictures have other positions than their places in the row")
        inputs = {name: as_array(value) for name, value in self._processor.inputs_together(pictures).items()} if pictures else {}
        made = self._model.get_input_embeddings(ids, inputs.pop("pixel_values", None), mask=mx.ones(ids.shape, mx.int32), **inputs)
        _require_plain(made.to_dict(), ids.shape[1])
        found = text(ids, inputs_embeds=made.inputs_embeds, cache=make_prompt_cache(text))
        return getattr(found, "logits", found)[0]


def _require_plain(made: dict[str, Any], length: int) -> None:
    """Raises ModelError where embedding a row gave more than its tokens' embeddings at plain positions."""
    more = [
        name for name, value in made.items() if name not in _PLAIN and value is not None and not (isinstance(value, list) and not value)
    ]
    if more:
        raise ModelError(f"mlx-vlm hands its language model {' and '.join(more)} beside embeddings")
    if (found := made["inputs_embeds"].shape[1]) != length:
        raise ModelError(f"a row of {length} tokens becomes {found} embeddings in mlx-vlm")
    positions, shifts = made.get("position_ids"), made.get("rope_deltas")
    plain = positions is None or (positions.shape[-1] == length and bool((np.array(positions) == np.arange(length)).all()))
    if not plain or (shifts is not None and np.array(shifts).any()):
        raise ModelError("tokens of its pictures have other positions than their places in the row")

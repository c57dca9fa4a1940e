"""The image processor of a model with two towers (CLIP, SigLIP): a picture is a row of its own, so it fills no place in a prompt.

All pictures become pixels of one size.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...configs.visible import visible
from ..core.errors import ModelError, first_line
from .pictures import pillow
from .processors import PROCESSOR_FILES, ImageProcessor, PictureLayout, load_image_processor, quiet_transformers
from .sources import picture_error

if TYPE_CHECKING:
    from PIL.Image import Image

TWO_TOWERS = ("clip", "siglip")  # model types
MOST_RESIZED = 1 << 25  # pixels of a picture whose shorter side is made as long as the tower's


def has_two_towers(config: Mapping[str, Any]) -> bool:
    """Returns whether a checkpoint with this config.json encodes texts and pictures apart, each to one vector."""
    return config.get("model_type") in TWO_TOWERS


class TowerProcessor(ImageProcessor):
    """Makes pixels of one size. images: transformers' image processor. tokens: of a picture in the tower."""

    def __init__(self, images: Any, tokens: int):
        super().__init__(None, 0)  # no processor of texts and pictures together
        self._images, self._tokens = images, tokens

    @property
    def image_token(self) -> str:
        """No text: a picture stands in no prompt."""
        return ""

    @cached_property
    def feature_token(self) -> str:
        """No text."""
        return ""

    @property
    def chat_template(self) -> None:
        """None: there are no chats."""
        return

    @cached_property
    def settings(self) -> str:
        """A digest of all that decides which pixels a picture becomes."""
        return self._digest(self._images, {})

    def inputs(self, image: "Image", name: str, *, several: bool = False) -> dict[str, NDArray[Any]]:
        """Returns ``pixel_values`` [1, 3, S, S] of a picture. Raises as ``layout``. several: a row has one picture, so it is all one."""
        self._require_shape(image, name)
        return {"pixel_values": np.asarray(self._attempt(lambda: self._images(image, return_tensors="np"), name)["pixel_values"])}

    def _layout_of(self, image: "Image", name: str, several: bool) -> PictureLayout:
        self._require_shape(image, name)
        return PictureLayout("", self._tokens, (1, 1, self._tokens))

    def _require_shape(self, image: "Image", name: str) -> None:
        """Raises RowError for a picture so long and thin that its resized copy would fill the memory."""
        shortest = dict(self._images.size or {}).get("shortest_edge")
        if not (self._images.do_resize and isinstance(shortest, int)):
            return
        short, long = sorted(image.size)
        if shortest * shortest * long // short > MOST_RESIZED:
            found = f"the picture is {image.width} x {image.height} pixels, too long and thin for this model"
            raise picture_error(f"{name}: {found}, which makes its shorter side {shortest} pixels; cut it")


def load_picture_processor(folder: Path, config: dict[str, Any], tokenizer: Any) -> ImageProcessor:
    """Loads the image processor of a checkpoint. config: its config.json. tokenizer: Hugging Face's. Raises ModelError."""
    if not has_two_towers(config):
        return load_image_processor(folder, config, tokenizer)
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise ModelError(f"model.path: {folder} holds no {PROCESSOR_FILES[1]}; expected the model's image processor: fetch the model anew")
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    sample = pillow().new("RGB", (9, 7))
    try:
        with quiet_transformers():
            images: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
            shape = np.asarray(images(sample, return_tensors="np")["pixel_values"]).shape
    except Exception as error:  # transformers raises what it likes; each means that there is no processor
        raise ModelError(f"model.path: the image processor in {folder} cannot be loaded: {visible(first_line(error, None))}") from error
    size, tokens = _tower_size(config)
    if shape != (1, 3, size, size):
        found = f"the image processor in {folder} makes pixels of the shape {list(shape)}"
        raise ModelError(f"model.path: {found}, and the vision tower of its config.json reads {[1, 3, size, size]}; fetch both anew")
    return TowerProcessor(images, tokens)


def _tower_size(config: dict[str, Any]) -> tuple[int, int]:
    """Returns the side of the tower's pictures in pixels, and the tokens of one."""
    vision = {**(config.get("vision_config") or {}), **(config.get("vision_config_dict") or {})}
    clip = config["model_type"] == "clip"
    size, patch = vision.get("image_size") or 224, vision.get("patch_size") or (32 if clip else 16)
    if not (isinstance(size, int) and isinstance(patch, int) and size >= patch >= 1):
        raise ModelError(f"config.json: image_size is {size!r} and patch_size {patch!r}; expected the sides of two squares in pixels")
    return size, (size // patch) ** 2 + clip

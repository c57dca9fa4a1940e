"""The checkpoint's own image processor, as transformers has it on Pillow and NumPy: pixels, and the text that stands for them in a prompt.

A processor says by which text a picture's place in a prompt is filled (``PictureLayout``). That follows from the picture's size alone, so
it is asked once a size. Needs no torch, and knows no rows.
"""

import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ...configs.visible import visible
from ..core.arrays import Ids
from ..core.errors import ModelError, first_line
from .pictures import pillow
from .sources import picture_error

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]  # width and height

_SIZES = 2048  # of pictures whose layouts are remembered
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_COUNTED = "batch_num_images"  # what a processor says to which a prompt's only picture is another than one of several
_NO_INPUTS = {"rows", "cols", "num_crops", "num_patches", _COUNTED}  # what processors say of a picture that no tower takes


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PictureLayout:
    """What fills a picture's place in a prompt.

    text: of it all. tokens: of those that carry a feature. grid: (time, height, width) in tokens; (1, 1, tokens) without one.
    """

    text: str
    tokens: int
    grid: tuple[int, int, int]


class ImageProcessor:
    """A vision model's image processor. ``hf``: transformers' processor of the model. ``placeholder``: the id that carries a feature."""

    def __init__(self, hf: Any, placeholder: int):
        self._hf, self.placeholder = hf, placeholder
        self._layouts: OrderedDict[tuple[Size, bool], PictureLayout] = OrderedDict()
        self._equal: WeakValueDictionary[str, PictureLayout] = WeakValueDictionary()  # of many sizes: the text is long
        self.counts_pictures: bool = _COUNTED in getattr(getattr(hf, "image_processor", None), "model_input_names", ())

    @property
    def image_token(self) -> str:
        """The text by which a chat template, or a raw prompt, says where a picture stands."""
        return str(self._hf.image_token)

    @cached_property
    def feature_token(self) -> str:
        """The text of the token that carries a feature; often the same."""
        return str(self._hf.tokenizer.convert_ids_to_tokens(self.placeholder))

    @property
    def chat_template(self) -> str | None:
        """The processor's own chat template, None where it has none."""
        own = self._hf.chat_template
        return own if isinstance(own, str) else own.get("default") if isinstance(own, dict) else None

    @cached_property
    def settings(self) -> str:
        """A digest of all that decides which pixels a picture becomes."""
        return self._digest(self._hf.image_processor, self._keywords)

    def layout(self, image: "Image", name: str, *, several: bool = False) -> PictureLayout:
        """Returns what fills the place of a picture. name: for messages. Raises RowError where the processor refuses the picture.

        several: it stands in its prompt with others. To processors that do not count pictures (``counts_pictures``) that is all one.
        """
        known = self.known_layout(image.size, several=several)
        if known is None:
            known = self._shared(self._layout_of(image, name, several))
            self._layouts[image.size, several] = known
            if len(self._layouts) > _SIZES:
                self._layouts.popitem(last=False)
        return known

    def _shared(self, made: PictureLayout) -> PictureLayout:
        """Returns the equal layout of another size, where one is remembered."""
        known = self._equal.get(made.text)
        if known is not None and known == made:
            return known
        self._equal[made.text] = made
        return made

    def known_layout(self, size: Size, *, several: bool = False) -> PictureLayout | None:
        """Returns what fills the place of a picture of this size; None where no such picture has come lately."""
        if (size, several) in self._layouts:
            self._layouts.move_to_end((size, several))
        return self._layouts.get((size, several))

    def inputs(self, image: "Image", name: str, *, several: bool = False) -> dict[str, NDArray[Any]]:
        """Returns what the model's tower takes of one picture: ``pixel_values`` and more. Arguments as of ``layout``."""
        made, _ = self._processed(image, name, several, return_tensors="np")
        arrays = {key: np.asarray(value) for key, value in made.items() if key not in _NO_INPUTS}
        return {key: array[:1] for key, array in arrays.items()} if several and self.counts_pictures else arrays

    def inputs_together(self, images: Sequence["Image"]) -> dict[str, NDArray[Any]]:
        """Returns what a whole model takes of the pictures of one row."""
        made, _ = self._hf._process_images([list(images)], **self._keywords | {"return_tensors": "np"})
        return {key: np.asarray(value) for key, value in made.items() if key not in _NO_INPUTS}

    def ids_of(self, text: str) -> Ids:
        """Returns the ids of a text that holds what fills a picture's place: the placeholder for each token that carries a feature."""
        return np.array(self._hf.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)

    def words(self) -> Ids:
        """Returns the ids of all tokens that are text."""
        tokenizer = self._hf.tokenizer
        return np.setdiff1d(np.arange(len(tokenizer), dtype=np.int32), [*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder])

    def _processed(self, image: "Image", name: str, several: bool, **more: Any) -> Any:
        """Returns what the processor makes of a picture, and the texts for it."""
        given: list[Any] = [image]
        if several and self.counts_pictures:
            given = [[image, pillow().new("RGB", (1, 1))]]  # any other; of both what stands first is taken
        return self._attempt(lambda: self._hf._process_images(given, **self._keywords | more), name)

    def _layout_of(self, image: "Image", name: str, several: bool) -> PictureLayout:
        if (grid := self._attempt(lambda: self._patches(*image.size), name)) is not None:
            made: dict[str, Any] = {"image_grid_thw": np.array([grid])}
            text = str(self._hf.replace_image_token(made, 0))
        else:
            made, texts = self._processed(image, name, several)
            text = str(texts[0])
        tokens = text.count(self.feature_token)
        if tokens == 0:
            raise ModelError(f"model.path: the image processor writes {visible(text[:60])} for a picture, without {self.feature_token}")
        if "image_grid_thw" not in made:
            return PictureLayout(text, tokens, (1, 1, tokens))
        merge = int(getattr(self._hf.image_processor, "merge_size", 1))
        time, height, width = (int(each) for each in np.asarray(made["image_grid_thw"])[0])
        return PictureLayout(text, tokens, (time, height // merge, width // merge))

    def _patches(self, width: int, height: int) -> tuple[int, int, int] | None:
        """Returns (time, height, width) in patches as Qwen's processor cuts a picture, without its pixels; None for other processors."""
        images = self._hf.image_processor
        resize = getattr(sys.modules.get(type(images).__module__), "smart_resize", None)
        if type(images).__name__ != "Qwen2VLImageProcessorPil" or resize is None or not images.do_resize:
            return None
        size, patch = images.size, images.patch_size
        least, most = size["shortest_edge"], size["longest_edge"]
        rows, columns = resize(height, width, factor=patch * images.merge_size, min_pixels=least, max_pixels=most)
        return 1, rows // patch, columns // patch

    @cached_property
    def _keywords(self) -> dict[str, Any]:
        kept = self._hf._merge_kwargs(tokenizer_init_kwargs=self._hf.tokenizer.init_kwargs)["images_kwargs"]
        return {name: value for name, value in kept.items() if name != "return_tensors"}

    @staticmethod
    def _digest(images: Any, keywords: dict[str, Any]) -> str:
        told = json.dumps([type(images).__name__, images.to_dict(), keywords], sort_keys=True, default=str)
        return sha256(told.encode()).hexdigest()

    @staticmethod
    def _attempt(work: Callable[[], Any], name: str) -> Any:
        """Does a processor's work. Raises RowError where it refuses a picture: one that is far too long and thin, say.

        Raises ModelError for a processor that cannot tell what stands for one picture.
        """
        try:
            return work()
        except NotImplementedError:
            raise ModelError("model.path: the image processor tells the text for a picture's place only together with the prompt") from None
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            raise picture_error(f"{name}: the model's image processor refuses it: {first_line(error)}") from None


def image_libraries() -> dict[str, str]:
    """Returns the versions of what makes pixels and features of pictures; "none" for what is not installed."""
    found: dict[str, str] = {}
    for name in ("mlx-vlm", "transformers", "Pillow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def load_image_processor(folder: Path, config: dict[str, Any], tokenizer: Any) -> ImageProcessor:
    """Loads the image processor of a checkpoint. config: its config.json. tokenizer: Hugging Face's. Raises ModelError.

    transformers' AutoProcessor is not asked: it needs torch for processors of videos.
    """
    pillow()
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise ModelError(f"model.path: {folder} holds no {PROCESSOR_FILES[1]}; expected the model's image processor: fetch the model anew")
    try:
        with quiet_transformers():
            hf = _processor(folder, config, deepcopy(tokenizer))
    except Exception as error:  # transformers raises what it likes; each means that there is no processor
        raise ModelError(f"model.path: the image processor in {folder} cannot be loaded: {visible(first_line(error, None))}") from error
    if not getattr(hf, "image_token", None) or getattr(hf, "image_processor", None) is None:
        found = f"the processor in {folder} ({type(hf).__name__}) says no text for a picture's place"
        raise ModelError(f"model.path: {found}; take a model whose prompts hold pictures, such as Qwen3-VL-Embedding, or CLIP or SigLIP")
    named = (config.get(name) for name in ("image_token_id", "image_token_index"))
    placeholder = next((each for each in named if isinstance(each, int)), hf.image_token_id)
    return ImageProcessor(hf, int(placeholder))


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Within it transformers warns of nothing: it tells users of torch, which nothing here needs."""
    log = logging.getLogger("transformers")
    before = log.level
    log.setLevel(max(before, logging.WARNING + 1))
    try:
        yield
    finally:
        log.setLevel(before)


def _processor(folder: Path, config: dict[str, Any], tokenizer: Any) -> Any:
    import transformers
    from transformers.models.auto.image_processing_auto import AutoImageProcessor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]
    from transformers.processing_utils import ProcessorMixin

    told, _ = ProcessorMixin.get_processor_dict(str(folder))
    plain = json.loads((folder / PROCESSOR_FILES[1]).read_bytes()) if (folder / PROCESSOR_FILES[1]).is_file() else {}
    model_type = str(config.get("model_type"))
    name = told.get("processor_class") or plain.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(model_type)
    if name is None or not hasattr(transformers, name):
        raise ValueError(f"transformers has no processor for {name or model_type}")
    their = processor_class(name)
    _without_videos(their)
    # Its own checks want a processor of videos, which needs torch; rows hold none.
    kind = type(their.__name__, (their,), {"check_argument_for_proper_class": lambda self, name, value: None})
    parts = {"tokenizer": tokenizer, "image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil")}
    _complete(told, model_type, config)
    return kind.from_args_and_dict([parts.get(each) for each in kind.get_attributes()], told)


def processor_class(name: str) -> Any:
    """Returns a processor of transformers. Pixtral's asks for torchvision, though it needs one function that the Pillow module has too."""
    import transformers

    found = getattr(transformers, name)
    if not getattr(found, "is_dummy", False):
        return found
    tensors, pillows = (found.__module__.replace(".processing_", f".image_processing_{kind}") for kind in ("", "pil_"))
    sys.modules[tensors] = import_module(pillows)
    try:
        return getattr(import_module(found.__module__), name)
    finally:
        del sys.modules[tensors]


def _without_videos(kind: Any) -> None:
    """Lets SmolVLM's processor be made without num2words, by which it spells the number of a video's frames."""
    module: Any = sys.modules[kind.__module__]
    if getattr(module, "num2words", "") is None:
        module.num2words = str


def _complete(told: dict[str, Any], model_type: str, config: dict[str, Any]) -> None:
    """Puts in what older checkpoints of LLaVA and its successors leave to the model's config."""
    if model_type not in ("llava", "llava_next", "llava_onevision"):
        return
    vision = config.get("vision_config") or {}
    if model_type == "llava_onevision":
        side = int(vision.get("image_size", 384)) // int(vision.get("patch_size", 14))
        left_out: dict[str, Any] = {"num_image_tokens": side * side, "vision_feature_select_strategy": "full"}
        left_out |= {name: config[name] for name in ("vision_aspect_ratio", "vision_feature_select_strategy") if name in config}
    else:
        left_out = {
            "patch_size": vision.get("patch_size", 14),
            "vision_feature_select_strategy": config.get("vision_feature_select_strategy", "default"),
            "num_additional_image_tokens": int(vision.get("model_type", "clip_vision_model") == "clip_vision_model"),
        }
    told |= {name: value for name, value in left_out.items() if told.get(name) is None}

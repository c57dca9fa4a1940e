"""Finds a checkpoint and its adapter: the embedded demo, a local folder, or one from the hub. Computes the fingerprints of both.

Loads nothing (loader.py does), and reads weights only to hash their bytes, or some rows to know their kind. Says what is wrong with a
checkpoint that cannot be loaded.
"""

import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ...configs.schema import ModelConfig
from ...configs.visible import visible
from ..core.errors import ModelError, first_line
from ..files.hash_cache import files_sha256, folder_sha256
from ..pooling.sentence_folder import module_files, transformer_folder

_NAMED = 2  # of a list of parameters in a message
WEIGHTS = ("*.safetensors", "config.json")
ADAPTER = ("adapter_config.json", "adapters.safetensors")  # what is loaded
ADAPTER_CONTENTS = ("*.safetensors", "adapter_config.json")  # what its fingerprint is of
_SHAPES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
MODULE_WEIGHTS = "[0-9]*_*/model*.safetensors"  # of sentence-transformers' modules, such as 2_Dense
IMAGE_PROCESSOR = ("processor_config.json", "preprocessor_config.json")
TOKENIZER = ("token*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model", "*.tiktoken")


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """Where a model lies: its folder, its adapter's folder, and its config.json.

    home: the folder that the config names. It is another than ``folder`` where sentence-transformers has the weights in "0_Transformer".
    """

    folder: Path
    adapter: Path | None
    config: dict[str, Any]
    home: Path | None = None

    @property
    def modules_folder(self) -> Path:
        """Returns the folder in which modules.json is, if there is one."""
        return self.home or self.folder

    @property
    def context(self) -> int | None:
        """Returns the longest sequence the model was made for, in tokens; None where its config does not say."""
        text = self.config | (self.config.get("text_config") or {})
        for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx"):
            if isinstance(value := text.get(name), int) and value > 0:
                return value
        return None

    @property
    def window(self) -> int | None:
        """Returns the sliding window of attention, in tokens; None where the config asks for none."""
        text = self.config | (self.config.get("text_config") or {})
        window = text.get("sliding_window")
        return window if isinstance(window, int) and window > 0 and text.get("use_sliding_window") is not False else None

    @property
    def quantized(self) -> bool:
        """Returns whether the config says, in any way that mlx-lm knows, that the weights are quantized."""
        text = self.config.get("text_config") or {}
        settings = [self.config.get("quantization"), self.config.get("quantization_config"), text.get("quantization_config")]
        return any(settings) or (self.folder / "hf_quant_config.json").is_file()

    @property
    def eos(self) -> frozenset[int]:
        """Returns the EOS ids of the generation config (config.json's where there is none)."""
        value = self.config.get("eos_token_id")
        return frozenset([value] if isinstance(value, int) else value or [])


def find_checkpoint(config: ModelConfig, key: str = "model", adapter_key: str | None = None) -> Checkpoint:
    """Finds the checkpoint, and fetches it from the hub if it is not local.

    ``key`` is the place of ``config`` in the job's config, ``adapter_key`` that of its adapter where that is another. Raises ModelError,
    which says what was looked for.
    """
    adapter_key = adapter_key or f"{key}.adapter"
    folder = files("mlx_bulk.configs") / "demo" if config.path == "demo" else _folder(config.path, config.revision, f"{key}.path")
    home = Path(str(folder))
    folder = transformer_folder(home)
    adapter = None if config.adapter is None else _folder(config.adapter, None, adapter_key)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{key}.path: {folder} holds no config.json; expected a folder in Hugging Face or mlx-lm format")
    if not any(folder.glob("model*.safetensors")):
        other = [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".npz")]
        found = f" (found {', '.join(sorted(other)[:3])}: only safetensors are read)" if other else ""
        named = f"; model.safetensors.index.json names {name}" if (name := unread_weights(folder)) else ""
        raise ModelError(f"{key}.path: {folder} holds no model*.safetensors{found}{named}")
    if adapter is not None and (missing := [name for name in ADAPTER if not (adapter / name).is_file()]):
        raise ModelError(f"{adapter_key}: {adapter} holds no {missing[0]}; expected a LoRA or DoRA adapter in mlx-lm's format")
    from mlx_lm.utils import load_config

    for name in ("config.json", "generation_config.json"):
        _require_settings(folder / name, key)
    try:
        found = load_config(folder)
    except ValueError as error:
        raise ModelError(f"{key}.path: {folder / 'config.json'} is not readable: {error}") from error
    return Checkpoint(folder, adapter, found | _own_eos(folder), home)


def find_tokenizer(config: ModelConfig) -> tuple[Path, str]:
    """Returns the folder with the model's tokenizer, and the tokenizer's fingerprint.

    Fetches it without the weights if it is not local. Raises ModelError, which says what was looked for.
    """
    if config.path == "demo":
        folder = Path(str(files("mlx_bulk.configs") / "demo"))
    else:
        folder = transformer_folder(_folder(config.path, config.revision, "model.path", weights=False))
    return folder, folder_sha256(folder, TOKENIZER)


def checkpoint_fingerprints(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the sha256 of the contents of weights, tokenizer and adapter. Paths and dates do not count."""
    code = [name] if isinstance(name := checkpoint.config.get("model_file"), str) else []
    prints = {
        "model.weights": folder_sha256(checkpoint.folder, (*WEIGHTS, *code)),
        "model.tokenizer": folder_sha256(checkpoint.folder, TOKENIZER),
    }
    prints["model.chat_template"] = folder_sha256(checkpoint.folder, ("chat_template*",))
    prints["model.generation_config"] = folder_sha256(checkpoint.folder, ("generation_config.json",))
    prints["model.adapter"] = "none" if checkpoint.adapter is None else folder_sha256(checkpoint.adapter, ADAPTER_CONTENTS)
    return prints


def image_processor_fingerprint(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the sha256 of the settings by which pictures become a model's pixels."""
    return {"model.image_processor": folder_sha256(checkpoint.folder, IMAGE_PROCESSOR)}


def module_fingerprints(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the sha256 of sentence-transformers' files: modules.json, each module's settings and weights, prompts."""
    return {"model.modules": files_sha256(module_files(checkpoint.modules_folder))}


def _require_settings(path: Path, key: str) -> None:
    """Raises ModelError where ``path`` is there and holds no JSON object."""
    if not path.is_file():
        return
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = "its values are nested too deeply" if isinstance(error, RecursionError) else f"{error}"
        raise ModelError(f"{key}.path: {path} is not readable: {reason}; fetch the model anew") from error
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise ModelError(f"{key}.path: {path} holds a {kind}; expected an object with the model's settings; fetch the model anew")


def _own_eos(folder: Path) -> dict[str, Any]:
    """Reads the generation config's EOS, also an id 0 (which mlx-lm takes for none)."""
    path = folder / "generation_config.json"
    generation = json.loads(path.read_bytes()) if path.is_file() else {}
    return {} if generation.get("eos_token_id") is None else {"eos_token_id": generation["eos_token_id"]}


def _folder(path: str, revision: str | None, key: str, *, weights: bool = True) -> Path:
    """Returns a local folder, or a hub repository's snapshot, with or without ``weights``."""
    local = Path(path)
    if local.is_dir():
        return local
    if local.exists():
        raise ModelError(f"{key}: {path} is a file; expected a folder with config.json and safetensors, or a hub id such as org/name")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"{key}: no folder {path}{_near(local)}; expected demo, a local folder, or a hub id such as org/name")
    from huggingface_hub import snapshot_download
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

    wanted = (*DEFAULT_ALLOW_PATTERNS, "adapter*", MODULE_WEIGHTS)
    patterns = [name for name in wanted if weights or not name.endswith(".safetensors")]
    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; each means that there is no model
        raise ModelError(
            f"{key}: {path} is neither a local folder nor to be had from the hub: {first_line(error, None)}{_near(local)}"
        ) from error


def _near(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    return f" (did you mean {path.parent / close[0]}?)" if close else ""


def unread_weights(folder: Path) -> str:
    """Returns the first file that the index of the weights names and that is not read, with the reason; "" where there is none."""
    try:
        names = set(json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):  # none, or one that nobody needs
        return ""
    for name in sorted(str(name) for name in names):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return f"{visible(name)}, which lies outside of the folder and is not read"
        if not (folder / name).is_file():
            return f"{visible(name)}, which is not there"
    return ""


def impossible_shapes(config: dict[str, Any]) -> str:
    """Names the shapes in config.json that no model can have, and the cure; "" where there are none.

    Ask after a failure: some models leave out or list a few.
    """
    text = config.get("text_config")
    values = config | (text if isinstance(text, dict) else {})
    found = {name: values[name] for name in _SHAPES if name in values and not isinstance(values[name], list | None)}
    wrong = [f"{name}: {value!r}" for name, value in found.items() if type(value) is not int or value < 1]
    if not wrong:
        return ""
    return f"config.json says {visible(', '.join(wrong))}; expected whole numbers of at least 1; fetch config.json anew, or mend it"


@contextmanager
def refusing(checkpoint: Checkpoint, *, next_token: bool = False) -> Generator[None]:
    """Turns whatever a model file raises into a ModelError of one line. It may fail in any way, even exit the process.

    next_token: the model was to predict tokens, so that an encoder or a classifier is in the wrong job.
    """
    try:
        yield
    except ModelError:  # ours, which says what is wrong
        raise
    except (Exception, SystemExit) as error:
        why = (_another_use(checkpoint.config) if next_token else None) or _short(error, checkpoint)
        raise ModelError(f"model.path: {checkpoint.folder} cannot be loaded: {why}") from error


def _short(error: Exception | SystemExit, checkpoint: Checkpoint) -> str:
    if isinstance(error, SystemExit):
        return f"mlx-lm's file of the model type {checkpoint.config.get('model_type')!r} gives up; what it has printed says why"
    if isinstance(error, ValueError) and "not supported" in str(error):
        return f"mlx-lm has no model type {checkpoint.config.get('model_type')!r}; a newer mlx-lm may (pip install -U mlx-lm)"
    if "trust_remote_code" in str(error):
        return f"it needs code that comes with it ({checkpoint.config.get('model_file')}); set model.trust_remote_code if you trust it"
    if shapes := impossible_shapes(checkpoint.config):
        return shapes
    if named := unread_weights(checkpoint.folder):
        return f"model.safetensors.index.json names {named}; fetch the model anew, all of its files into one folder"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    shown = 1 + _NAMED if lines[0].rstrip().endswith(":") else 1  # a list of names follows
    more = len(lines) - shown
    text = " ".join([lines[0].rstrip(), *lines[1:shown]]).rstrip(",")
    text += f" (and {more} more lines; --log-level debug shows them)" if more > 0 else ""
    if text.startswith(("Expected shape", "Missing ", "Received ")):
        return f"config.json and the weights do not fit each other: {text}; fetch both anew from one place"
    return text


def _another_use(config: dict[str, Any]) -> str | None:
    """Returns what a checkpoint is that predicts no next token, and which job runs it; None for another."""
    from ..encoders.registry import encoder_class

    named = " and ".join(map(visible, config.get("architectures") or []))
    if named.endswith("ForSequenceClassification"):
        return f"{named} is a classifier or reward model, which predicts no next token; job: classify runs it, without classify.true_token"
    if encoder_class(config) is not None:
        return f"{named or config['model_type']} is an encoder, which predicts no next token; job: embed makes vectors with it"
    return None


def mostly_bfloat16(folder: Path) -> bool:
    """Returns True when bfloat16 holds most numbers of a model's matrices. One in float32 is judged by its first row."""
    from safetensors import safe_open

    held = rest = 0
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "np") as opened:
            for part in map(opened.get_slice, opened.keys()):
                shape, dtype = part.get_shape(), part.get_dtype()
                if len(shape) < 2:
                    continue
                fits = dtype == "BF16" or (dtype == "F32" and not (part[:1].view(np.uint32) & 0xFFFF).any())
                held, rest = held + fits * math.prod(shape), rest + (not fits) * math.prod(shape)
    return held > rest

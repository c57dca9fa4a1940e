"""Loads weights, tokenizer and adapter through mlx-lm, in the precision that suits the device, and fingerprints them.

A checkpoint comes from the embedded demo, a local folder or the hub; names of settings are translated where transformers
5 changed them (rope.py). Knows nothing of prompts or batches; what a model can do in a batch is found by probes.py.
"""

import json
import logging
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..configs.schema import ModelConfig
from ..kernels import backend
from .errors import ModelError
from .hashes import file_sha256
from .rope import translated

log = logging.getLogger("mlx_bulk")

WEIGHTS = ("*.safetensors", "config.json")
ADAPTER = ("adapter_config.json", "adapters.safetensors")
TOKENIZER = ("token*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model", "*.tiktoken")


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """Where a model lies: its folder, its adapter's folder, and what its config.json says."""

    folder: Path
    adapter: Path | None
    config: dict[str, Any]

    @property
    def context(self) -> int | None:
        """The longest sequence the model was made for, in tokens; None where its config does not say."""
        text = self.config | (self.config.get("text_config") or {})
        for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx"):
            if isinstance(value := text.get(name), int) and value > 0:
                return value
        return None

    @property
    def window(self) -> int | None:
        """The sliding window of attention, in tokens; None where its config asks for none."""
        text = self.config | (self.config.get("text_config") or {})
        window = text.get("sliding_window")
        return window if isinstance(window, int) and window > 0 and text.get("use_sliding_window") is not False else None

    @property
    def eos(self) -> frozenset[int]:
        """EOS ids of the generation config (config.json's where there is none)."""
        value = self.config.get("eos_token_id")
        return frozenset([value] if isinstance(value, int) else value or [])


@dataclass(slots=True, frozen=True)
class Model:
    """A loaded model: ``network`` maps token ids [B, T] and caches to logits [B, T, vocabulary].

    ``substitutes`` names what of it is computed by kernels of ours.
    """

    network: Any
    checkpoint: Checkpoint
    vocabulary: int
    dtype: str
    weight_bytes: int
    substitutes: tuple[str, ...] = ()


def find(config: ModelConfig, key: str = "model") -> Checkpoint:
    """Finds the checkpoint, fetching it from the hub if it is not local.

    ``key`` is where ``config`` stands in the job's. Raises ModelError that says what was looked for.
    """
    folder = files("mlx_bulk.configs") / "demo" if config.path == "demo" else _folder(config.path, config.revision, f"{key}.path")
    folder = Path(str(folder))
    adapter = None if config.adapter is None else _folder(config.adapter, None, f"{key}.adapter")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{key}.path: {folder} holds no config.json; expected a folder in Hugging Face or mlx-lm format")
    if not any(folder.glob("model*.safetensors")):
        other = [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".npz")]
        found = f" (found {', '.join(sorted(other)[:3])}: only safetensors are read)" if other else ""
        raise ModelError(f"{key}.path: {folder} holds no model*.safetensors{found}")
    if adapter is not None and (missing := [name for name in ADAPTER if not (adapter / name).is_file()]):
        raise ModelError(f"{key}.adapter: {adapter} holds no {missing[0]}; expected a LoRA or DoRA adapter in mlx-lm's format")
    from mlx_lm.utils import load_config

    try:
        found = load_config(folder)
    except ValueError as error:
        raise ModelError(f"{key}.path: {folder / 'config.json'} is not readable: {error}") from error
    return Checkpoint(folder, adapter, found | _own_eos(folder, key))


def find_tokenizer(config: ModelConfig) -> tuple[Path, str]:
    """The folder with the model's tokenizer, fetched without the weights if it is not local, and the tokenizer's fingerprint.

    Raises ModelError that says what was looked for.
    """
    if config.path == "demo":
        folder = Path(str(files("mlx_bulk.configs") / "demo"))
    else:
        folder = _folder(config.path, config.revision, "model.path", weights=False)
    return folder, _digest(folder, TOKENIZER)


def _own_eos(folder: Path, key: str) -> dict[str, Any]:
    """The generation config's EOS, an id 0 too (mlx-lm takes that for none)."""
    path = folder / "generation_config.json"
    try:
        generation = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise ModelError(f"{key}.path: {path} is not readable: {error}") from error
    return {} if generation.get("eos_token_id") is None else {"eos_token_id": generation["eos_token_id"]}


def _folder(path: str, revision: str | None, key: str, *, weights: bool = True) -> Path:
    """A local folder, or a hub repository's snapshot, in which ``weights`` may be left out."""
    local = Path(path)
    if local.is_dir():
        return local
    if local.exists():
        raise ModelError(f"{key}: {path} is a file; expected a folder with config.json and safetensors, or a hub id such as org/name")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"{key}: no folder {path}{_near(local)}; expected demo, a local folder, or a hub id such as org/name")
    from huggingface_hub import snapshot_download
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

    patterns = [name for name in (*DEFAULT_ALLOW_PATTERNS, "adapter*") if weights or not name.endswith(".safetensors")]
    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; each means that there is no model
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{key}: {path} is neither a local folder nor to be had from the hub: {reason}{_near(local)}") from error


def _near(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    return f" (did you mean {path.parent / close[0]}?)" if close else ""


def fingerprints(checkpoint: Checkpoint) -> dict[str, str]:
    """sha256 of the contents of weights, tokenizer and adapter: paths and dates do not enter."""
    code = [name] if isinstance(name := checkpoint.config.get("model_file"), str) else []
    found = {"model.weights": _digest(checkpoint.folder, (*WEIGHTS, *code)), "model.tokenizer": _digest(checkpoint.folder, TOKENIZER)}
    found["model.chat_template"] = _digest(checkpoint.folder, ("chat_template*",))
    found["model.generation_config"] = _digest(checkpoint.folder, ("generation_config.json",))
    found["model.adapter"] = "none" if checkpoint.adapter is None else _digest(checkpoint.adapter, ("*.safetensors", "adapter_config.json"))
    return found


def _digest(folder: Path, patterns: tuple[str, ...]) -> str:
    names = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    whole = sha256()
    for path in names:
        whole.update(f"{path.name} {file_sha256(path)}\n".encode())
    return whole.hexdigest() if names else "none"


def load(config: ModelConfig, checkpoint: Checkpoint, memory: int) -> Model:
    """Loads the weights. On the CPU they are float32, quantized ones dequantized when that fits in ``memory`` bytes."""
    mx = backend.load_mlx()
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_adapters, load_model

    from .substitutes import substitute

    try:
        network, _ = load_model(
            checkpoint.folder, lazy=True, model_config=translated(checkpoint.config), trust_remote_code=config.trust_remote_code
        )
        dtype = _dtype(config.dtype)
        if dtype is not None:
            network.set_dtype(dtype)  # before dequantizing: half-precision scales would round the weights once more
        _dequantize_if_it_fits(network, memory)
        if checkpoint.adapter is not None:
            load_adapters(network, str(checkpoint.adapter))
        if dtype is not None:
            network.set_dtype(dtype)  # what dequantizing and the adapter brought with them
        network.eval()
        mx.eval(network.parameters())
        vocabulary = int(network(mx.array([[0, 0]])).shape[-1])  # two tokens: of one alone, a mask is not asked for
    except (Exception, SystemExit) as error:  # a model file may fail in any way, and leave the process: each is one line for the user
        raise ModelError(f"model.path: {checkpoint.folder} cannot be loaded: {_short(error, checkpoint)}") from error
    arrays: list[Any] = [a for _, a in tree_flatten(network.parameters())]
    floats = {str(a.dtype).removeprefix("mlx.core.") for a in arrays if mx.issubdtype(a.dtype, mx.floating)}
    substitutes = substitute(network, vocabulary, checkpoint.window)
    return Model(network, checkpoint, vocabulary, "/".join(sorted(floats)), sum(a.nbytes for a in arrays), substitutes)


def _short(error: Exception | SystemExit, checkpoint: Checkpoint) -> str:
    if isinstance(error, SystemExit):
        return f"mlx-lm's file of the model type {checkpoint.config.get('model_type')!r} gives up; what it has printed says why"
    if isinstance(error, ValueError) and "not supported" in str(error):
        return f"mlx-lm has no model type {checkpoint.config.get('model_type')!r}; a newer mlx-lm may (pip install -U mlx-lm)"
    if "trust_remote_code" in str(error):
        return f"it needs code that comes with it ({checkpoint.config.get('model_file')}); set model.trust_remote_code if you trust it"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] + (f" (and {len(lines) - 1} more lines; --log-level debug shows them)" if len(lines) > 1 else "")


def _dtype(wanted: str) -> Any:
    """The precision to cast to, None for the checkpoint's own. ``auto`` on the CPU is float32: half precision has no fast path there."""
    import mlx.core as mx

    if wanted == "auto":
        return mx.float32 if backend.device_name() == "cpu" else None
    return getattr(mx, wanted)


def _dequantize_if_it_fits(network: Any, memory: int) -> None:
    """On the CPU, where quantized matrix products are slow, makes quantized weights whole."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import dequantize_model

    if backend.device_name() != "cpu" or not any(name.endswith(".scales") for name, _ in tree_flatten(network.parameters())):
        return
    need = 4 * _parameter_count(network)
    if need <= memory:
        dequantize_model(network)
    else:
        room = f"float32 would take {need / 1e9:.1f} GB of {memory / 1e9:.1f} GB"
        log.warning("quantized weights stay so (%s): matrix products are slow on this CPU", room)


def _parameter_count(network: Any) -> int:
    from mlx_lm.utils import get_total_parameters

    return int(get_total_parameters(network))

"""Reads a sentence-transformers folder: which modules turn hidden states into a vector, its prompts and its longest text.

Reads settings alone, no weights. Folders of all versions up to 6 are known: modules by the last part of their type, Pooling with
booleans or with names. What would be computed in another way is refused by its name, never left out.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from ...configs.visible import visible
from ..core.errors import ModelError
from ..images.tower_processor import has_two_towers
from .spec import Activation, DenseLayer, EmbeddingHead, Normalize, PoolingMode, TokenHead

Settings = dict[str, Any]

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
# The transformer's settings: sentence-transformers looks for these names in this order.
BODY_TYPES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
BODY_SETTINGS = [f"sentence_{name}_config.json" for name in BODY_TYPES]
# The booleans of older folders, in the order in which the vectors are joined.
OLD_MODES: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
BODIES = ("Transformer", "CLIPModel")
KINDS = (*BODIES, "Pooling", "Dense", "Normalize", "Dropout", "LogitScore")
UNLIMITED = 10**9  # a tokenizer without a limit says 10^30
# Among sentence-transformers' settings of a chat template, those that no template sees.
NOT_OF_TEMPLATES = {"restore_suffix", "truncation", "max_length", "padding", "return_tensors", "tokenize", "return_dict"}
VECTOR, SCORES = "sentence_embedding", "scores"  # what a module reads and writes, in sentence-transformers' words


@dataclass(slots=True, frozen=True)
class SentenceFolder:
    """What a folder says. Without modules.json it has no head, but may have prompts and a longest text.

    body: where the transformer's config.json, weights and tokenizer lie. head: None without a Pooling module, and without modes where
    its settings are not there (conversions leave them out). include_prompt: whether
    a prompt's tokens count in pooling. tokens: whose logits a generative reranker reads; None for other models. scores: the last Dense
    gives a cross-encoder's scores. messages: texts go through the chat template, with ``chat_variables``. prompts: name -> text.
    max_length: most tokens of a text, with the special ones; None without a limit.
    """

    folder: Path
    body: Path
    modules: tuple[str, ...] = ()
    head: EmbeddingHead | None = None
    include_prompt: bool = True
    tokens: TokenHead | None = None
    scores: bool = False
    messages: bool = False
    chat_variables: Settings = field(default_factory=Settings)
    prompts: dict[str, str] = field(default_factory=dict[str, str])
    default_prompt: str | None = None
    max_length: int | None = None
    lower_case: bool = False
    similarity: str | None = None


@dataclass(slots=True, frozen=True)
class _Module:
    """A module that modules.json names. kind: the last part of its type."""

    kind: str
    folder: Path
    settings: Settings


def read_sentence_folder(folder: Path) -> SentenceFolder:
    """Reads a model's folder. Raises ModelError for a module that cannot be computed here, and for files that cannot be read."""
    modules = _modules(folder)
    body = modules[0].folder if modules else folder
    said, texts = _settings(folder / SETTINGS), _body_settings(body)
    head, include_prompt, scores = _head(modules, said, pooled=has_two_towers(_settings(body / "config.json")))
    tokens = [_token_head(module) for module in modules if module.kind == "LogitScore"]
    prompts = said.get("prompts")
    return SentenceFolder(
        folder,
        body,
        tuple(module.kind for module in modules),
        head,
        include_prompt,
        tokens[0] if tokens else None,
        scores,
        "message" in (texts.get("modality_config") or {}),
        _chat_variables(texts),
        {name: text for name, text in (prompts if isinstance(prompts, dict) else {}).items() if isinstance(text, str)},
        said.get("default_prompt_name"),
        _max_length(body, texts),
        bool(texts.get("do_lower_case")),
        said.get("similarity_fn_name"),
    )


def transformer_folder(folder: Path) -> Path:
    """Returns where config.json lies: in ``folder``, or where its modules.json has the transformer ("0_Transformer")."""
    if (folder / "config.json").is_file() or not (folder / MODULES).is_file():
        return folder
    return _modules(folder)[0].folder


def module_files(folder: Path) -> list[Path]:
    """Returns the files that decide what becomes of hidden states: modules.json, and each module's settings and weights."""
    if not (folder / MODULES).is_file():
        return [path for path in (folder / SETTINGS,) if path.is_file()]
    files = [folder / MODULES, folder / SETTINGS]
    for number, module in enumerate(_modules(folder)):
        files += [module.folder / name for name in (BODY_SETTINGS if number == 0 else ("config.json", "model.safetensors"))]
    return [path for path in files if path.is_file()]


def pooling_advice(config: Settings) -> str:
    """Returns what is known of how models of this family are pooled, as the end of a message; "" where nothing is."""
    known = FAMILIES.get(str(config.get("model_type")))
    return f" ({known})" if known else ""


FAMILIES = {
    "bert": "of the BERTs, bge and arctic-embed take cls, MiniLM, e5 and gte mean; all but a few normalize",
    "gemma3_text": "EmbeddingGemma takes mean and two dense layers, 2_Dense and 3_Dense of google's folder; harrier takes lasttoken",
    "llama": "llama-nemotron-embed takes mean",
    "llama_bidirec": "llama-nemotron-embed takes mean",
    "mistral": "e5-mistral takes lasttoken, and normalizes",
    "modernbert": "gte-modernbert and granite-embedding take cls, modernbert-embed mean",
    "mpnet": "all-mpnet-base takes mean, and normalizes",
    "nomic_bert": "nomic-embed takes mean, and normalizes",
    "qwen2": "gte-Qwen2 takes lasttoken, and normalizes",
    "qwen3": "Qwen3-Embedding takes lasttoken, and normalizes",
    "xlm-roberta": "bge-m3 and arctic-embed take cls, multilingual-e5 mean; all normalize",
}


def _modules(folder: Path) -> list[_Module]:
    """Reads modules.json; nothing where there is none. The first module is a transformer."""
    path = folder / MODULES
    if not path.is_file():
        return []
    listed = _json(path)
    if not isinstance(listed, list) or not all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in listed) or not listed:
        raise ModelError(f"{path} holds no list of modules with a type each; fetch the model anew")
    modules: list[_Module] = []
    for one in listed:
        name, place = one["type"], str(one.get("path") or "")
        kind = name.rpartition(".")[2]
        if not name.startswith("sentence_transformers.") or kind not in KINDS:
            raise ModelError(f"{path} names the module {visible(name)}, which is not computed here; known are {', '.join(KINDS)}")
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts:
            raise ModelError(f"{path} places the module {kind} in {visible(place)}, outside of the folder; fetch the model anew")
        inside = folder / place
        modules.append(_Module(kind, inside, _settings(inside / "config.json") if modules else {}))
    if modules[0].kind not in BODIES:
        raise ModelError(f"{path} begins with the module {modules[0].kind}; expected Transformer first")
    return modules


def _head(modules: list[_Module], said: Settings, *, pooled: bool) -> tuple[EmbeddingHead | None, bool, bool]:
    """Returns the head, whether a prompt counts, and whether the last layer gives a cross-encoder's scores.

    pooled: the model's own states are vectors, one a row.
    """
    modes: tuple[PoolingMode, ...] | None = ("cls",) if pooled else None
    layers: list[DenseLayer | Normalize] = []
    include_prompt, output = True, VECTOR
    for module in modules[1:]:
        if module.kind == "Pooling" and pooled:
            raise ModelError(f"{module.folder.parent / MODULES} names Pooling, and a model with two towers pools by itself")
        if module.kind in BODIES or (module.kind == "Pooling" and modes is not None):
            raise ModelError(f"{module.folder.parent / MODULES} names {module.kind} twice; expected one Transformer and one Pooling")
        if module.kind == "Pooling":
            modes, include_prompt = _modes(module), bool(module.settings.get("include_prompt", True))
        elif module.kind in ("Dense", "Normalize"):
            output = _output(module, output, pooled=modes is not None)
            layers.append(_dense(module) if module.kind == "Dense" else Normalize())
    if modes is None:
        return None, True, False
    cut = said.get("truncate_dim")
    return EmbeddingHead(modes, tuple(layers), cut if isinstance(cut, int) and cut > 0 else None), include_prompt, output == SCORES


def _modes(module: _Module) -> tuple[PoolingMode, ...]:
    """Returns the modes of a Pooling module; none where its settings are not there."""
    if not (module.folder / "config.json").is_file():
        return ()
    named = module.settings.get("pooling_mode")
    if named is None:
        return tuple(mode for old, mode in OLD_MODES.items() if module.settings.get(old)) or ("mean",)
    modes: list[Any] = named if isinstance(named, list) else [named]
    for mode in modes:
        if mode not in get_args(PoolingMode):
            known = ", ".join(get_args(PoolingMode))
            raise ModelError(f"{module.folder / 'config.json'}: pooling_mode is {visible(str(mode))}; known are {known}")
    return tuple(modes)


def _output(module: _Module, current: str, pooled: bool) -> str:
    """Returns what a module writes. Raises ModelError where it does not work on the pooled vector."""
    read = module.settings.get("module_input_name") or VECTOR
    written = module.settings.get("module_output_name") or read
    if not pooled or (read, current) != (VECTOR, VECTOR) or written not in (VECTOR, SCORES):
        where = "before Pooling" if not pooled else f"from {visible(str(read))} to {visible(str(written))}"
        raise ModelError(f"{module.folder}: the module {module.kind} works {where}, which is not computed here")
    return written


def _dense(module: _Module) -> DenseLayer:
    config, path = module.settings, module.folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{module.folder} holds no config.json; fetch the model anew, with all its folders")
    sizes = [config.get(name) for name in ("in_features", "out_features")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ModelError(f"{path}: in_features and out_features are {sizes[0]} and {sizes[1]}; expected whole numbers of at least 1")
    name = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh")
    activation: Any = name.rpartition(".")[2]
    if not name.startswith("torch.nn.") or activation not in get_args(Activation):
        known = ", ".join(get_args(Activation))
        raise ModelError(f"{path}: activation_function is {visible(name)}; known are torch.nn's {known}")
    if not (module.folder / "model.safetensors").is_file():
        other = " (found pytorch_model.bin: only safetensors are read)" if (module.folder / "pytorch_model.bin").is_file() else ""
        raise ModelError(f"{module.folder} holds no model.safetensors{other}; fetch the model anew, with all its folders")
    bias, residual = bool(config.get("bias", True)), bool(config.get("use_residual"))
    return DenseLayer(module.folder, int(sizes[0] or 0), int(sizes[1] or 0), activation, bias, residual)


def _token_head(module: _Module) -> TokenHead:
    yes, no = module.settings.get("true_token_id"), module.settings.get("false_token_id")
    if not isinstance(yes, int):
        raise ModelError(f"{module.folder / 'config.json'}: true_token_id is {yes!r}; expected a token id")
    return TokenHead(yes, no if isinstance(no, int) else None)


def _body_settings(body: Path) -> Settings:
    """Returns the first settings of the transformer that are there; an empty file counts as none."""
    return next((found for name in BODY_SETTINGS if (found := _settings(body / name))), {})


def _max_length(body: Path, texts: Settings) -> int | None:
    """Returns the longest text in tokens: as the folder says, else the tokenizer's limit or the model's, whichever is less."""
    of_tokenizer = texts.get("processor_kwargs") or texts.get("tokenizer_args") or {}
    for said in (of_tokenizer.get("model_max_length"), texts.get("max_seq_length")):
        if isinstance(said, int):
            return said if 0 < said < UNLIMITED else None
    limits = [_settings(body / "tokenizer_config.json").get("model_max_length")]
    limits.append(_settings(body / "config.json").get("max_position_embeddings"))
    return min((int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < UNLIMITED), default=None)


def _chat_variables(texts: Settings) -> Settings:
    """Returns the variables that a chat template gets; those that say how long a text may be are no such."""
    said = (texts.get("processing_kwargs") or {}).get("chat_template") or {}
    return {name: value for name, value in said.items() if name not in NOT_OF_TEMPLATES}


def _settings(path: Path) -> Settings:
    """Reads an object of settings; an empty one where there is no file."""
    values = _json(path) if path.is_file() else {}
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds a {type(values).__name__}; expected an object with settings; fetch the model anew")
    return values


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = "its values are nested too deeply" if isinstance(error, RecursionError) else f"{error}"
        raise ModelError(f"{path} is not readable: {reason}; fetch the model anew") from error

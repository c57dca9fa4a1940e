"""The local files that a run's config names, for workers that do not see them: small ones travel with the run's description.

Adapters go out as parcels. Models and their tokenizers do not travel.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...configs.errors import ConfigError
from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig, JobConfig, ModelConfig, names_a_file
from ..models.checkpoint import WEIGHTS, Checkpoint, checkpoint_fingerprints
from ..pipeline.job import ConfigFiles
from ..pipeline.run_spec import RunSpec


@dataclass(slots=True, frozen=True)
class ModelMark:
    """What a model is known by: the sha256 of its weights, as in a run's identity, and their bytes."""

    weights: str
    bytes: int


def weight_bytes(folder: Path) -> int:
    """Returns how large the files are that a model's weights are known by."""
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern) if path.is_file())


def config_files(config: JobConfig, spec: RunSpec) -> ConfigFiles:
    """Reads the small files that the config names. Raises ConfigError where one cannot be read any more."""
    named: dict[str, str] = {}
    if config.prompt.chat_template is not None and names_a_file(config.prompt.chat_template):
        named["prompt.chat_template"] = config.prompt.chat_template
    if isinstance(config, GenerateConfig) and isinstance(config.structured.json_schema, str):
        named["structured.json_schema"] = config.structured.json_schema
    try:
        return {key: {Path(path).name: Path(path).read_bytes()} for key, path in named.items()} | spec.job.config_files()
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read for the workers ({error.strerror}); put it back") from error


def local_adapters(config: JobConfig, spec: RunSpec) -> dict[str, Path]:
    """Returns the folders of the adapters that the config names by a path, by their keys. Workers find those of the hub there."""
    named: dict[str, tuple[ModelConfig | None, Path | None]] = {config.adapter_key: (config.loaded, spec.checkpoint.adapter)}
    if spec.reference is not None:
        named[f"{config.reference_key}.adapter"] = (config.reference, spec.reference.adapter)
    return {
        key: folder
        for key, (model, folder) in named.items()
        if model is not None and folder is not None and folder == Path(str(model.adapter))
    }


def local_models(config: JobConfig, spec: RunSpec) -> dict[str, ModelMark]:
    """Returns the marks of the models that lie in folders of this machine, by the keys of their paths. Those of the hub are found there."""
    reference = config.reference_key if isinstance(config, RolloutConfig) else f"{config.reference_key}.path"
    named: dict[str, tuple[ModelConfig | None, Checkpoint | None]] = {
        "model.path": (config.model, spec.checkpoint),
        reference: (config.reference, spec.reference),
    }
    named |= {f"{each.key}.path": (each.config, each.checkpoint) for each in spec.reward_models}
    return {
        key: ModelMark(checkpoint_fingerprints(checkpoint)["model.weights"], weight_bytes(checkpoint.folder))
        for key, (model, checkpoint) in named.items()
        if model is not None and checkpoint is not None and checkpoint.modules_folder == Path(model.path)
    }


def lay_out(files: ConfigFiles, config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Writes files into ``folder``. Returns what takes the place of each setting that names one."""
    places: dict[str, str] = {}
    for number, (key, named) in enumerate(files.items()):
        for name, content in named.items():
            path = folder / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        function = str(value_at(config, key)).rpartition(":")[2] if key.startswith("rewards[") else None
        path = str(folder / str(number) / next(iter(named)))
        places[key] = path if function is None else f"{path}:{function}"
    return places


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Returns the setting ``key`` of a config; a number in brackets is a place in a list."""
    value: Any = config
    for name in _names(key):
        value = value[name]
    return value


def with_values(config: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy of a config with other values at some keys, which are there."""
    changed = cast("dict[str, Any]", _copied(config))
    for key, value in values.items():
        *above, last = _names(key)
        place: Any = changed
        for name in above:
            place = place[name]
        place[last] = value
    return changed


def _names(key: str) -> list[str | int]:
    return [int(name) if name.isdigit() else name for name in re.split(r"[.\[\]]+", key) if name]


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in cast("Mapping[str, Any]", value).items()}
    return [_copied(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value

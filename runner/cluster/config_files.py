"""The local files that a run's config names, for workers that do not see them: small ones travel with the run's description.

Adapters go out as parcels. Models and their tokenizers do not travel.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ...configs.errors import ConfigError
from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig, JobConfig, ModelConfig, names_a_file
from ..pipeline.job import ConfigFiles
from ..pipeline.run_spec import RunSpec


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
    named: dict[str, tuple[ModelConfig | None, Path | None]] = {
        "policy.adapter" if isinstance(config, RolloutConfig) else "model.adapter": (config.loaded, spec.checkpoint.adapter)
    }
    if spec.reference is not None:
        named[f"{config.reference_key}.adapter"] = (config.reference, spec.reference.adapter)
    return {
        key: folder
        for key, (model, folder) in named.items()
        if model is not None and folder is not None and folder == Path(str(model.adapter))
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

"""Which settings make a run what it is: two starts of one run may not differ in these."""

from pydantic import JsonValue

from .fields import Identity, Section
from .schema import JobConfig


def identity(config: Section) -> dict[str, JsonValue]:
    """Returns the settings that shape results, by dotted key. Runs that differ in them may not share a run directory.

    It leaves out settings that don't change results (memory, durability), and paths of files that a run fingerprints itself (weights,
    adapter, input).
    """
    settings = {key: value for key, (value, shapes) in _settings(config).items() if shapes}
    # Runs have always stored train for a split that is not set. Which files are read is in the inputs, by content.
    return settings | {"data.split": config.data.split or "train"} if isinstance(config, JobConfig) else settings


def free(config: Section) -> dict[str, JsonValue]:
    """Returns the settings that may change between two starts of one run, by dotted key."""
    return {key: value for key, (value, shapes) in _settings(config).items() if not shapes}


def _settings(section: Section, prefix: str = "", frozen_batches: bool = False) -> dict[str, tuple[JsonValue, bool]]:
    """Returns all settings by dotted key: the value, and True if it shapes results."""
    frozen_batches = frozen_batches or (isinstance(section, JobConfig) and section.batch.deterministic)
    values: dict[str, tuple[JsonValue, bool]] = {}
    written: dict[str, JsonValue] = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            values |= _settings(value, f"{prefix}{name}.", frozen_batches)
        elif sections := _sections(value):
            inner = [_settings(each, "", frozen_batches) for each in sections]
            shaping = [{key: setting for key, (setting, shapes) in each.items() if shapes} for each in inner]
            values[f"{prefix}{name}"] = list[JsonValue](shaping), True
            free = {f"[{index}].{key}": setting for index, each in enumerate(inner) for key, setting in each.items() if not setting[1]}
            values |= {f"{prefix}{name}{key}": setting for key, setting in free.items()}
        else:
            marks = [mark.when for mark in field.metadata if isinstance(mark, Identity)]
            if marks == ["set"] and value == field.default:
                continue
            values[f"{prefix}{name}"] = written[name], not marks or marks[0] == "set" or (marks[0] == "deterministic" and frozen_batches)
    return values


def _sections(value: object) -> list[Section]:
    """Returns the sections of a list of them; empty for any other value."""
    return [each for each in value if isinstance(each, Section)] if isinstance(value, list) else []

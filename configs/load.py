"""A config file and its overrides become a checked config, or one ConfigError with a line for everything that is wrong.

Reads the config and nothing else: whether a model or an input exists is for those who open it.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from .errors import ConfigError
from .explain import Problem, holds_section, problems, section_of, shown, unknown
from .fields import Section, nearest
from .jobs import JOBS
from .parse import Scalar, Value, parse
from .schema import JobConfig, names_a_file

Values = dict[Scalar, Value]

_DEMO = Path(__file__).parent / "demo"
_EXAMPLE = f"{Path(__file__).parent / 'demo.yaml'} is an example"
_LATER_JOBS = ("rollout", "sweep")
_PATHS = ("model.path", "model.adapter", "data.path", "prompt.chat_template", "score.reference", "output.path")


def load(path: Path, overrides: Sequence[str] = ()) -> JobConfig:
    """The config in the YAML file ``path`` with ``overrides`` ("sampling.n=4", values in YAML) on top.

    ``~`` and ``${ENV}`` in paths are expanded, and ``demo:NAME`` in data.path becomes the path of a shipped file.
    Raises ConfigError, with one line for each problem.
    """
    values = _read(path)
    model = _kind(values, overrides, path)
    overridden = [_override(values, text, model) for text in overrides]
    for name, field in model.model_fields.items():
        # A section that is left out or left empty holds its defaults, and names what it lacks.
        if section_of(field) and values.get(name) is None:
            values[name] = {}
    found = _expand_paths(values)
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        found += problems(error, values, model)
    else:
        if not found:
            return config
    raise ConfigError("\n".join(f"{_source(problem.key, overridden, path)}: {_line(problem)}" for problem in found))


def json_schema() -> dict[str, JsonValue]:
    """The JSON schema of a config file, as configs/schema.json ships it for editors."""
    kinds, definitions = models_json_schema([(model, "validation") for model in JOBS.values()], title="mlx-bulk job")
    named = {model: reference["$ref"] for (model, _), reference in kinds.items()}
    rules: list[JsonValue] = [
        {"if": {"properties": {"job": {"const": job}}}, "then": {"$ref": named[model]}} for job, model in JOBS.items()
    ]
    jobs: dict[str, JsonValue] = {"job": {"enum": list(JOBS)}}
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **definitions,
        "type": "object",
        "required": ["job"],
        "properties": jobs,
        "allOf": rules,
    }


def _read(path: Path) -> Values:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected a job config ({_EXAMPLE})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}; expected a YAML file") from None
    values = parse(text, str(path))
    if values is None:
        raise ConfigError(f"{path}: empty; expected a job config ({_EXAMPLE})")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: found {shown(values)}; expected a mapping with {', '.join(JobConfig.model_fields)}")
    return values


def _kind(values: Values, overrides: Sequence[str], path: Path) -> type[JobConfig]:
    """The model of the job that the file, or the last override of ``job``, names."""
    given = [parse(text[4:], f"--set {text}") for text in overrides if text.startswith("job=")]
    job, source = (given[-1], "--set") if given else (values.get("job"), str(path))
    if job in _LATER_JOBS:
        raise ConfigError(f"{source}: job: found {job}; this version runs {_either(JOBS)}; set it to one of them")
    if isinstance(job, str) and job in JOBS:
        return JOBS[job]
    if "job" not in values and not given:
        raise ConfigError(f"{path}: job: missing; expected {_either(JOBS)}")
    near = nearest(job, JOBS) if isinstance(job, str) else None
    raise ConfigError(f"{source}: job: found {shown(job)}; expected {_either(JOBS)}" + (f"; did you mean {near}?" if near else ""))


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _override(values: Values, text: str, model: type[Section]) -> str:
    """Writes one KEY=VALUE into ``values`` and returns KEY."""
    key, equals, written = text.partition("=")
    source = f"--set {text}"
    names = key.split(".")
    if not equals or not all(names):
        raise ConfigError(f"{source}: expected KEY=VALUE, for example sampling.temperature=0")
    _refuse_unknown(names, source, model)
    # In YAML {{ opens a mapping in a mapping, which no setting is: it is a template.
    value = written if written.lstrip().startswith(("{{", "{%")) else parse(written, source)
    place = values
    for depth, name in enumerate(names[:-1]):
        inner = place.get(name)
        if inner is None:
            inner = place[name] = {}
        if not isinstance(inner, dict):
            above = ".".join(names[: depth + 1])
            raise ConfigError(f"{source}: {above} is {shown(inner)}, not a mapping; set {above} itself")
        place = inner
    # A token id is an integer in YAML and digits here; both are one key.
    same = [existing for existing in place if str(existing) == names[-1]]
    place[same[0] if same else names[-1]] = value
    return key


def _refuse_unknown(names: list[str], source: str, root: type[Section]) -> None:
    model = root
    for depth, name in enumerate(names):
        key = ".".join(names[: depth + 1])
        field = model.model_fields.get(name)
        if field is None:
            raise ConfigError(f"{source}: {_line(unknown(key, list(model.model_fields), root))}")
        section = section_of(field)
        if section is None:
            if depth + 1 < len(names) and not isinstance(field.default, dict) and not holds_section(field):
                raise ConfigError(f"{source}: {key} is a single value and has no keys; set {key} itself")
            return
        model = section


def _expand_paths(values: Values) -> list[Problem]:
    """Expands the settings that are paths in place, and returns what could not be expanded."""
    found: list[Problem] = []
    for key in _PATHS:
        section, name = key.split(".")
        place = values.get(section)
        value = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict) or not isinstance(value, str | list):
            continue
        if key == "prompt.chat_template" and isinstance(value, str) and not names_a_file(value):
            continue
        try:
            place[name] = _expand(key, value) if isinstance(value, str) else [_expand(key, item) for item in value]
        except ConfigError as error:
            found.append(Problem(key, str(error)))
    return found


def _expand(key: str, value: Value) -> Value:
    # A NUL cannot be in a path; validation says so.
    if not isinstance(value, str) or "\0" in value:
        return value
    if key == "data.path" and value.startswith("demo:"):
        return _shipped(value)

    def variable(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            raise ConfigError(f"found {shown(value)}; the environment variable {name} is not set; set it, or write the path out")
        return os.environ[name]

    return os.path.expanduser(re.sub(r"\$\{([^}]*)\}", variable, value))  # noqa: PTH111 - pathlib raises for an unknown user


def _shipped(value: str) -> str:
    names = sorted(file.name for file in _DEMO.glob("*.jsonl"))
    name = value.removeprefix("demo:")
    if name not in names:
        raise ConfigError(f"found {shown(value)}; expected one of {', '.join(f'demo:{name}' for name in names)}")
    return str(_DEMO / name)


def _source(key: str, overridden: Sequence[str], path: Path) -> str:
    """Where a setting's value came from: an override of it, of a part of it or of its section, or the file."""
    return "--set" if any(f"{key}.".startswith(f"{name}.") or f"{key}[".startswith(f"{name}[") for name in overridden) else str(path)


def _line(problem: Problem) -> str:
    key = problem.key if problem.key.isprintable() else shown(problem.key)
    return f"{key}: {problem.text}" if key else problem.text

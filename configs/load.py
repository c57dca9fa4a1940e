"""Turns a config file and its overrides into a checked config, or raises one ConfigError with a line for each problem.

It reads only the config. It does not check that a model or an input exists.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TypeVar, cast

from pydantic import JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from .config_file import Values, read_config
from .errors import ConfigError
from .eval import EvalConfig
from .explain import SettingProblem, holds_keys, holds_list, holds_text, problems, section_of, shown, unknown
from .fields import Section, nearest
from .jobs import JOBS
from .parse import Scalar, Value, parse, parse_setting
from .schema import JobConfig, names_a_file
from .short_forms import Options, allow_short_forms, option_overrides, spell_out
from .sweep import SweepConfig

Checked = TypeVar("Checked", bound=Section)
Sources = dict[str, str]  # where a setting was overridden: its key, and the argument of the command line

_DEMO = Path(__file__).parent / "demo"
_LONG = 120  # characters of an override in messages
_MAPPING = Path("the config")  # where the settings of a mapping are, in messages
_PATHS = (
    *("model.path", "model.adapter", "data.path", "prompt.chat_template"),
    *("score.reference", "score.reference.path", "score.reference.adapter", "batch.prefix_cache", "cluster.tls", "output.path"),
    *("policy.adapter", "policy.watch", "policy.reference"),
)


def load_config(
    source: Path | str | Mapping[str, object], overrides: Sequence[str] = (), paths: Options | None = None
) -> JobConfig | SweepConfig:
    """Returns the config in ``source`` with ``overrides`` ("sampling.n=4", values in YAML) on top, then ``paths``.

    source: the path of a YAML file, or a mapping of the same keys (its values may be ``Path`` objects; it is not changed).
    overrides: one string is one override. paths: values by their keys (model.path, data.path, output.path, and data.limit too); in a
    sweep those of output and cluster are its own, the others its base's. ``~`` and ``${ENV}`` in paths are expanded, and ``demo:NAME`` in
    data.path becomes the path of a shipped file.
    Raises ConfigError, with one line for each problem. A sweep's base is opened where it is a path; its cells are not checked.
    """
    path = _MAPPING if isinstance(source, Mapping) else Path(source)
    values: Values = {key: _plain(value) for key, value in source.items()} if isinstance(source, Mapping) else read_config(path)
    overrides = [overrides] if isinstance(overrides, str) else overrides
    model = _kind(values, overrides, path)
    sweeps = issubclass(model, SweepConfig)
    overridden: Sources = {}
    for text, source in [*_given(overrides), *option_overrides(paths or {}, sweeps)]:
        if sweeps:  # the next override may reach into it
            _open_base(values, path)
        overridden |= _override(values, text, source, model)
    if sweeps:
        _open_base(values, path)
    return _whole(values, model, overridden, path)


def _plain(value: object) -> Value:
    """Returns a copy of a Python value as YAML would give it: paths as text, tuples as lists, numbers of NumPy as Python's own.

    Others are left to validation.
    """
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in cast(Mapping[Scalar, object], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast(Sequence[object], value)]
    if isinstance(value, bool):  # a number too
        return value
    if isinstance(value, Integral | Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return str(value) if isinstance(value, Path) else cast(Value, value)


def is_eval_config(path: Path) -> bool:
    """Returns True when the file is the config of an evaluation. Raises ConfigError where it cannot be read."""
    return read_config(path).get("job") == "eval"


def load_eval(path: Path, overrides: Sequence[str] = (), options: Options | None = None) -> EvalConfig:
    """Returns the config of an evaluation, which ``mlx-bulk eval`` runs. Otherwise like ``load_config``."""
    values = read_config(path)
    if values.get("job") != "eval":
        found = f"found {shown(values['job'])}" if "job" in values else "missing"
        raise ConfigError(f"{path}: job: {found}; expected eval, which mlx-bulk eval runs; {either(JOBS)} is for mlx-bulk run")
    overridden: Sources = {}
    for text, source in [*_given(overrides), *option_overrides(options or {}, sweeps=False)]:
        overridden |= _override(values, text, source, EvalConfig)
    return _whole(values, EvalConfig, overridden, path)


def _given(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Returns each ``--set`` with its source for messages."""
    return [(text, f"--set {text}") for text in overrides]


def _whole(values: Values, model: type[Checked], overridden: Sources, path: Path) -> Checked:
    config = checked(values, model)
    if isinstance(config, list):
        raise ConfigError("\n".join(f"{_source(problem.key, overridden, path)}: {line(problem)}" for problem in config))
    return config


def checked(values: Values, model: type[Checked]) -> Checked | list[SettingProblem]:
    """Returns ``values`` as a config of the kind ``model``, or all problems in them. Expands paths in ``values`` in place."""
    spell_out(values)
    for name, field in model.model_fields.items():
        # A missing or empty section gets its defaults, and errors name its required keys.
        if section_of(field) and values.get(name) is None:
            values[name] = {}
    path_problems = _expand_paths(values)
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        return path_problems + problems(error, values, model)
    return path_problems or config


def json_schema() -> dict[str, JsonValue]:
    """Returns the JSON schema of a config file, which configs/schema.json ships for editors."""
    every: dict[str, type[Section]] = {**JOBS, "eval": EvalConfig}
    kinds, definitions = models_json_schema([(model, "validation") for model in every.values()], title="mlx-bulk job")
    named = {model: str(reference["$ref"]) for (model, _), reference in kinds.items()}
    for model in every.values():
        allow_short_forms(definitions["$defs"][named[model].rpartition("/")[2]], model)
    rules: list[JsonValue] = [
        {"if": {"properties": {"job": {"const": job}}}, "then": {"$ref": named[model]}} for job, model in every.items()
    ]
    jobs: dict[str, JsonValue] = {"job": {"enum": list(every)}}
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **definitions,
        "type": "object",
        "required": ["job"],
        "properties": jobs,
        "allOf": rules,
    }


def _kind(values: Values, overrides: Sequence[str], path: Path) -> type[JobConfig | SweepConfig]:
    """Returns the model of the job that the last override of ``job`` names, or else the file."""
    jobs = [(parse(text[4:], f"--set {text}"), f"--set {text}") for text in overrides if text.startswith("job=")]
    job, source = jobs[-1] if jobs else (values.get("job"), str(path))
    if job == "eval":
        raise ConfigError(f"{source}: job: found eval, which mlx-bulk run does not run; use mlx-bulk eval {path}")
    if isinstance(job, str) and job in JOBS:
        return JOBS[job]
    if "job" not in values and not jobs:
        alike = next((f"; found {key}, did you mean job?" for key in values if nearest(str(key).lower(), ["job"])), "")
        raise ConfigError(f"{path}: job: missing; expected {either(JOBS)}{alike}")
    near = nearest(job, JOBS) if isinstance(job, str) else None
    raise ConfigError(f"{source}: job: found {shown(job)}; expected {either(JOBS)}" + (f"; did you mean {near}?" if near else ""))


def either(names: Iterable[str]) -> str:
    """Joins the names as a choice: "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _open_base(values: Values, path: Path) -> None:
    """Replaces a path in ``base`` by the settings of its file, without those that are the sweep's own: output and cluster."""
    base = values.get("base")
    if not isinstance(base, str):
        return
    try:
        file = _expand("base", base)
    except ConfigError as error:
        raise ConfigError(f"{path}: base: {error}") from None
    values["base"] = {key: value for key, value in read_config(Path(str(file))).items() if key not in ("output", "cluster")}


def _override(values: Values, text: str, source: str, model: type[Section]) -> Sources:
    """Writes one KEY=VALUE into ``values`` and returns KEY with its ``source``."""
    key, equals, written = text.partition("=")
    names = key.split(".")
    if not equals or not all(names):
        raise ConfigError(f"{source}: expected KEY=VALUE, for example sampling.temperature=0")
    if names[0] == "matrix":  # its keys have dots of their own
        names[1:] = [".".join(names[1:])] if names[1:] else []
    setting = known_setting(names, source, model)
    spell_out(values)
    texts, lists = (setting is not None and holds(setting) for holds in (holds_text, holds_list))
    put(values, names, parse_setting(written, source, texts, lists), source)
    return {key: source if len(source) <= _LONG else f"{source[: _LONG - 1]}…"}


def put(values: Values, names: Sequence[str], value: Value, source: str) -> None:
    """Sets the key that ``names`` spell, and makes the mappings above it. Raises ConfigError if one of those is a plain value."""
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


def known_setting(names: Sequence[str], source: str, root: type[Section]) -> FieldInfo | None:
    """Returns the setting that ``names`` spell in a config of the kind ``root``, None for a section. Raises ConfigError for others."""
    model = root
    for depth, name in enumerate(names):
        key = ".".join(names[: depth + 1])
        field = model.model_fields.get(name)
        if field is None:
            raise ConfigError(f"{source}: {line(unknown(key, list(model.model_fields), root))}")
        section = section_of(field)
        if section is None:
            if depth + 1 < len(names) and not holds_keys(field):
                raise ConfigError(f"{source}: {key} is a single value and has no keys; set {key} itself")
            return field
        model = section
    return None


def _expand_paths(values: Values) -> list[SettingProblem]:
    """Expands the settings that are paths in place, and returns the problems."""
    path_problems: list[SettingProblem] = []
    for key in _PATHS:
        *sections, name = key.split(".")
        place: Value = values
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        value = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict) or not isinstance(value, str | list):
            continue
        if key == "prompt.chat_template" and isinstance(value, str) and not names_a_file(value):
            continue
        try:
            place[name] = _expand(key, value) if isinstance(value, str) else [_expand(key, item) for item in value]
        except ConfigError as error:
            path_problems.append(SettingProblem(key, str(error)))
    rewards = values.get("rewards")
    for index, reward in enumerate(rewards if isinstance(rewards, list) else []):
        for name in ("fn", "model"):
            if isinstance(reward, dict) and name in reward:
                reward[name] = _expand_reward(f"rewards[{index}].{name}", reward[name], path_problems)
    return path_problems


def _expand_reward(key: str, value: Value, path_problems: list[SettingProblem]) -> Value:
    """Returns the function or the model of a reward with its path expanded. Adds what is wrong with it to ``path_problems``."""
    try:
        if isinstance(value, dict) and "path" in value:
            return {**value, "path": _expand(f"{key}.path", value["path"])}
        return _expand(key, value)
    except ConfigError as error:
        path_problems.append(SettingProblem(key, str(error)))
        return value


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


def _source(key: str, overridden: Sources, path: Path) -> str:
    """Names the source of a setting's value: the last override of it, of a part of it or of its section, else the file."""
    given = [source for name, source in overridden.items() if f"{key}.".startswith(f"{name}.") or f"{key}[".startswith(f"{name}[")]
    return given[-1] if given else str(path)


def line(problem: SettingProblem) -> str:
    """Returns a problem as a message shows it, after its source."""
    key = problem.key if problem.key.isprintable() else shown(problem.key)
    return f"{key}: {problem.text}" if key else problem.text

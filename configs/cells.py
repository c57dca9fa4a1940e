"""Makes a sweep's cells, each with a checked config: all combinations of the matrix without those excluded, then those included.

Knows only settings. A cell's name depends only on its changes to the base, so that other cells can come and go beside it.
"""

import copy
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import cast

from .errors import ConfigError
from .explain import SettingProblem, shown
from .fields import nearest
from .jobs import ROW_JOBS
from .load import Values, checked, either, known_setting, line, put
from .parse import Value
from .schema import JobConfig
from .sweep import SweepConfig

Overrides = dict[str, Value]

_NAME_LENGTH, _VALUE_LENGTH, _LABEL_LENGTH = 80, 24, 60  # characters: a folder's name, a value in it, a value in a message


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep: the name of its folder, its changes to the base (``overrides``), and its config.

    settings: this cell's value of each key that any cell of the sweep changes, as the config writes it.
    """

    name: str
    overrides: Overrides
    settings: Overrides
    config: JobConfig

    @property
    def label(self) -> str:
        """The cell's changes as text, in the order of the config's file."""
        values = ((key, plain(value), value) for key, value in self.overrides.items())
        return ", ".join(
            f"{key}={text if text.isprintable() and len(text) <= _LABEL_LENGTH else shown(value)}" for key, text, value in values
        )


def cells(config: SweepConfig, source: str) -> list[Cell]:
    """Returns the cells in the order of the matrix (its last key changes fastest), then those of ``include``.

    ``exclude`` removes combinations of the matrix. ``include`` only adds cells: unlike in GitHub's workflows it never extends a
    combination. Raises ConfigError, which names the config by ``source``: for keys that are no settings, cells that are no valid job or
    stand twice, and exclusions that match nothing.
    """
    model = _base_model(config, source)
    combined = _combined(config, source)
    included = [cast(Overrides, overrides) for overrides in config.include]
    for place, overrides in [("matrix", cast(Overrides, config.matrix)), *((f"include[{i}]", o) for i, o in enumerate(included))]:
        _refuse_keys(overrides, f"{source}: {place}", model)
    every = [*combined, *included]
    if not every:
        raise ConfigError(f"{source}: matrix: no cell is left; expected a key with a list of values, or cells in include")
    keys = list(dict.fromkeys(key for overrides in every for key in overrides))
    folder = Path(config.output.path)
    problems: dict[SettingProblem, list[Overrides]] = {}
    made: list[Cell] = []
    for overrides in every:
        name = name_of(overrides)
        cell_config = _checked(config, overrides, str(folder / name), model, source)
        if isinstance(cell_config, list):
            for problem in cell_config:
                problems.setdefault(problem, []).append(overrides)
        else:
            made.append(Cell(name, overrides, {key: _value(config.base, overrides, cell_config, key) for key in keys}, cell_config))
    if problems:
        raise ConfigError("\n".join(f"{source}: {_line(problem, where, len(every))}" for problem, where in problems.items()))
    _refuse_duplicates(made, source)
    return made


def name_of(overrides: Overrides) -> str:
    """Returns a cell's folder name: its changes, shortened to letters that all file systems allow, and a hash of the full changes."""
    changed = sorted(overrides.items())
    text = ",".join(f"{_safe(key)}={_short(value)}" for key, value in changed)[:_NAME_LENGTH].rstrip(",.-")
    return f"{text}-{blake2b(_canonical(dict(changed)).encode(), digest_size=4).hexdigest()}"


def plain(value: object) -> str:
    """Returns a value as names and tables show it: text as it is, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _base_model(config: SweepConfig, source: str) -> type[JobConfig]:
    if config.base.get("cluster") is not None:
        raise ConfigError(f"{source}: base.cluster: expected nothing, since the workers are those of the whole sweep; move it to cluster")
    if "output" in config.base:
        raise ConfigError(f"{source}: base.output: expected nothing, since each cell's folder lies in output.path; remove it")
    job = config.base.get("job")
    if isinstance(job, str) and job in ROW_JOBS:
        return ROW_JOBS[job]
    near = nearest(job, ROW_JOBS) if isinstance(job, str) else None
    found = f"found {shown(job)}" if "job" in config.base else "missing"
    raise ConfigError(f"{source}: base.job: {found}; expected {either(ROW_JOBS)}" + (f"; did you mean {near}?" if near else ""))


def _combined(config: SweepConfig, source: str) -> list[Overrides]:
    """Returns the matrix's combinations without those that ``exclude`` names."""
    keys = list(config.matrix)
    every = [dict(zip(keys, values, strict=True)) for values in itertools.product(*config.matrix.values())] if keys else []
    left = every
    for number, excluded in enumerate(config.exclude):
        place = f"{source}: exclude[{number}]"
        for key in excluded:
            if key not in keys:
                fix = f"did you mean {near}?" if (near := nearest(key, keys)) else f"expected one of {', '.join(keys) or 'none'}"
                raise ConfigError(f"{place}: {key} is no key of the matrix; {fix}")
        if not any(_matches(cell, excluded) for cell in every):
            raise ConfigError(f"{place}: {shown(excluded)} matches no combination of the matrix; correct or remove it")
        left = [cell for cell in left if not _matches(cell, excluded)]
    return cast(list[Overrides], left)


def _matches(cell: Mapping[str, object], excluded: Mapping[str, object]) -> bool:
    return all(_canonical(cell[key]) == _canonical(value) for key, value in excluded.items())


def _refuse_keys(keys: Mapping[str, object], place: str, model: type[JobConfig]) -> None:
    for key in keys:
        names = key.split(".")
        if names[0] == "job":
            raise ConfigError(f"{place}: job is one for all cells; set base.job, or make another sweep")
        if names[0] == "output":
            raise ConfigError(f"{place}: {key}: a cell's folder lies in the sweep's output.path; remove it")
        if names[0] == "cluster":
            raise ConfigError(f"{place}: {key}: the workers are those of the whole sweep; set cluster beside matrix")
        known_setting(names, place, model)
        if above := [other for other in keys if key.startswith(f"{other}.")]:
            raise ConfigError(f"{place}: {key} lies in {above[0]}, which is set as a whole; set one of them")


def _refuse_duplicates(cells: Sequence[Cell], source: str) -> None:
    """Raises ConfigError for equal cells. It compares configs: 0 and 0.0 may be one setting, and a value may be the base's own."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        first = seen.setdefault(cell.config.model_dump_json(exclude={"output"}), cell)
        if first is not cell and first.name == cell.name:
            raise ConfigError(f"{source}: the cell {shown(cell.overrides)} stands twice; remove one of the two")
        if first is not cell:
            pair = f"{shown(first.overrides)} and {shown(cell.overrides)}"
            raise ConfigError(f"{source}: the cells {pair} have the same settings, so one would stand twice; remove one of the two")


def _checked(config: SweepConfig, overrides: Overrides, path: str, model: type[JobConfig], source: str) -> JobConfig | list[SettingProblem]:
    """Returns the base with ``overrides`` as a config whose run directory is ``path``, or the problems in it."""
    values = cast(Values, copy.deepcopy(config.base))
    for key, value in overrides.items():
        put(values, key.split("."), copy.deepcopy(value), f"{source}: {key}")
    values["cluster"] = cast(Values | None, config.cluster and config.cluster.model_dump(mode="json"))
    values["output"] = {"path": path, "fsync_seconds": config.output.fsync_seconds}
    made = checked(values, model)
    if not isinstance(made, list) and made.data.path in ("-", ["-"]):
        return [SettingProblem("data.path", "found -; a sweep reads its input once a cell, and stdin can be read once: give a file")]
    return made


def _value(base: Mapping[str, object], overrides: Overrides, made: JobConfig, key: str) -> Value:
    """Returns a setting of a cell as the sweep's config writes it, or else its default."""
    if key in overrides:
        return overrides[key]
    for written in (base, made.model_dump(mode="json")):
        place: object = written
        for name in key.split("."):
            place = place.get(name) if isinstance(place, Mapping) else None
        if place is not None:
            return cast(Value, place)
    return None


def _line(problem: SettingProblem, where: Sequence[Overrides], cells: int) -> str:
    """Returns a problem with its cells as a line. If all ``cells`` have it and none changes the setting, it is the base's problem."""
    key = problem.key
    changing = [cell for cell in where if any(key == name or f"{key}[".startswith((f"{name}.", f"{name}[")) for name in cell)]
    if not changing and len(where) == cells:
        return f"base.{line(problem)}" if key else f"base: {line(problem)}"
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    return f"the cell {shown(where[0])}{more}: {line(problem)}"


def _short(value: Value) -> str:
    """Returns a value for a folder's name. A path gives its last part without the ending."""
    text = value if isinstance(value, str) else _canonical(value)
    if isinstance(value, str) and "{" not in value:
        text = re.sub(r"\.(jsonl|json|parquet|arrow|csv|txt|gz|zst|bz2)\b", "", text.rstrip("/").rpartition("/")[2])
    return _safe(text)[:_VALUE_LENGTH].rstrip(".-")


def _safe(text: str) -> str:
    """Returns the text in letters, digits, dots, underscores and single dashes, which all file systems and shells take as they are."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip(".-")


def _canonical(value: object) -> str:
    """Returns a value as text, equal only for equal values: 1, 1.0, true and "1" differ. Keys have no order, and 5 and "5" are one key."""
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{json.dumps(str(key))}:{_canonical(inner)}' for key, inner in value.items()))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return json.dumps(value)

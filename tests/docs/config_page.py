"""Writes docs/config.md from the models of the configs: each key with what it accepts, its default and what it does.

``python -m tests.docs.config_page`` writes it; a test fails where the page is older than the schema. Words are the schema's.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

from mlx_bulk.configs.eval import EvalConfig
from mlx_bulk.configs.fields import Expected, Identity, Section
from mlx_bulk.configs.jobs import JOBS
from mlx_bulk.configs.schema import JobConfig
from pydantic.fields import FieldInfo

PAGE = Path(__file__).parents[2] / "docs" / "config.md"

_HEAD = """\
# Config reference

<!-- written by python -m tests.docs.config_page -->

A config is one YAML file, one job a file. Only the keys marked *required* must be given. A key that is not listed here, a value of
another type and two settings that contradict each other are refused before anything starts, with the nearest key that exists.

- `--set KEY=VALUE` overrides a key, by its dotted name: `--set sampling.n=4`. `--model`, `--data`, `--output` and `--limit` are short for
  `model.path`, `data.path`, `output.path` and `data.limit`. VALUE is read as YAML. A plain text is taken to the letter, with its spaces.
  With nothing behind `=` it is null; an empty text is `--set 'KEY=""'`.
- `model: demo` is short for `model: {path: demo}`. So are `data: rows.jsonl` and `output: outputs/mine`.
- Relative paths start at the working directory. `~` and `${VARIABLE}` in paths are expanded.
- The same settings as a JSON schema: [configs/schema.json](../configs/schema.json), installed beside the package's example configs. An
  editor with a YAML language server checks and completes a config whose first line is `# yaml-language-server: $schema=` and the path or
  URL of that file; `mlx-bulk init` prints a config that begins with it, with a path from the working directory if it lies below.
- **May change** says whether a run directory can be continued with another value. *no*: the setting shapes results, and the start is
  refused ([recovering](recovering.md#exit-code-4)). *yes*: it does not. *unless deterministic*: it does with `batch.deterministic` alone.
  Of paths, what the files hold counts, not where they lie.
"""


def page() -> str:
    """The whole page."""
    kinds: dict[str, type[Section]] = {**JOBS, "eval": EvalConfig}
    seen: dict[str, type[Section]] = {}
    parts = [_HEAD]
    for job, model in kinds.items():
        parts.append(f"## job: {job}\n\n{_text(model)}\n")
        # An evaluation has no run directory, and of a sweep the cells have.
        parts += _tables("", model, seen, changes=issubclass(model, JobConfig))
    return "\n".join(parts)


def _tables(key: str, model: type[Section], seen: dict[str, type[Section]], *, changes: bool) -> Iterator[str]:
    """A table of the section ``key``, then those of the sections within; what stands above already is referred to."""
    fields = {f"{key}.{name}" if key else name: field for name, field in model.model_fields.items()}
    plain = {name: field for name, field in fields.items() if _own_section(field) is None}
    before = seen.setdefault(key, model) if key else model
    if before is not model:
        known = before.model_fields
        plain = {name: field for name, field in plain.items() if repr(known.get(name.removeprefix(f"{key}."))) != repr(field)}
    if plain:
        yield _table(plain, changes)
    same: list[str] = []
    for name, field in fields.items():
        section = _section(field)
        if section is None:
            continue
        if section is seen.get(name):
            same.append(f"[{name}](#{name})")
        elif section in seen.values():
            above = next(key for key, other in seen.items() if other is section)
            yield f"### {_heading(name, seen)}\n\nThe settings of [{above}](#{above}).\n"
        else:
            more = f" As [above](#{name}), but for:" if name in seen else ""
            yield f"### {_heading(name, seen)}\n\n{_text(section)}{more}\n"
            yield from _tables(name, section, seen, changes=changes)
    if same:
        yield f"As above: {', '.join(same)}.\n"


def _heading(name: str, seen: dict[str, type[Section]]) -> str:
    """A section's heading; that of one which stands above in another kind of job has another link."""
    return f"{name}, of this job" if name in seen else name


def _text(model: type[Section]) -> str:
    return " ".join((model.__doc__ or "").replace("``", "`").split())


def _table(rows: dict[str, FieldInfo], changes: bool) -> str:
    last = "may change | " if changes else ""
    lines = [f"| key | accepts | default | {last}what it does |", f"|---|---|---|{'---|' if changes else ''}---|"]
    for key, field in rows.items():
        change = f" {_changes(field)} |" if changes else ""
        lines.append(f"| `{key}` | {_accepts(field)} | {_default(field)} |{change} {_cell(field.description or '')} |")
    return "\n".join(lines) + "\n"


def _accepts(field: FieldInfo) -> str:
    if words := [mark.words for mark in field.metadata if isinstance(mark, Expected)]:
        return _cell(re.sub(r"; --\w+ gives it too$", "", words[-1]))
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    raise TypeError(f"{field.description}: say what it accepts with Expected(…)")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    return "null" if field.default is None else f"`{json.dumps(field.default, ensure_ascii=False)}`"


def _changes(field: FieldInfo) -> str:
    marks = [mark.when for mark in field.metadata if isinstance(mark, Identity)]
    return {"never": "yes", "deterministic": "unless deterministic", "set": "no"}[marks[0]] if marks else "no"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("{{", "&#123;&#123;").replace("*", "\\*")


def _own_section(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _section(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds: by itself, beside null, in a list or as a mapping's values."""
    kinds = [field.annotation]
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, type) and kind is not NoneType and issubclass(kind, Section):
            return kind
        kinds += get_args(kind)
    return None


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""``mlx-bulk init``: prints a config with every setting of a job, its default and meaning. It runs as it is, on the demo model.

The descriptions are the schema's; this module only lists the values that each example sets.
"""

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from ...configs.explain import section_of
from ...configs.fields import Section
from ...configs.jobs import JOBS

_WIDTH = 88
_ORDER = (
    *("job", "base", "model", "data", "prompt", "sampling", "tools", "reasoning", "score", "embed", "classify", "rewards", "advantages"),
    *("drop_degenerate", "policy", "rounds", "matrix", "include", "exclude", "logprobs", "batch", "on_error"),
)

Values = dict[str, Any]

_QUESTIONS: Values = {"model": {"path": "demo"}, "data": {"path": "demo:questions.jsonl", "limit": 20}}
EXAMPLES: dict[str, tuple[str, Values]] = {
    "generate": (
        "A completion for each of 20 questions.",
        {
            **_QUESTIONS,
            "prompt": {"user": "{{ question }}"},
            "sampling": {"max_tokens": 32},
            "output": {"path": "outputs/generate"},
        },
    ),
    "score": (
        "The perplexity of 20 documents.",
        {
            "model": {"path": "demo"},
            "data": {"path": "demo:documents.jsonl", "limit": 20},
            "score": {"text": "{{ text }}"},
            "output": {"path": "outputs/score"},
        },
    ),
    "rollout": (
        "Four answers to each of 20 questions as training data, with a reward and an advantage for each.",
        {
            **_QUESTIONS,
            "prompt": {"user": "{{ question }}"},
            "sampling": {"n": 4, "max_tokens": 32},
            "rewards": [{"fn": "last_number", "args": {"column": "answer"}}],
            "output": {"path": "outputs/rollout"},
        },
    ),
    "embed": (
        "A vector for each of 20 documents.",
        {
            "model": {"path": "demo"},
            "data": {"path": "demo:documents.jsonl", "limit": 20},
            "prompt": {"text": "{{ text }}"},
            "embed": {"pooling": "mean", "normalize": True},
            "output": {"path": "outputs/embed"},
        },
    ),
    "classify": (
        "Which of two signs the model would say next, for each of 20 sums and differences.",
        {
            "model": {"path": "demo"},
            "data": {"path": "demo:choices.jsonl", "limit": 20},
            "prompt": {"user": "{{ question }}", "prefill": "{{ question.split()[2] }}"},
            "classify": {"true_token": " +", "false_token": " -", "label": "{{ operation == 'sum' }}"},
            "output": {"path": "outputs/classify"},
        },
    ),
    "sweep": (
        "20 questions, answered at two temperatures in two wordings: four runs, and one table of them.",
        {
            "base": {"job": "generate", **_QUESTIONS, "prompt": {"user": "{{ question }}"}, "sampling": {"max_tokens": 32}},
            "matrix": {"sampling.temperature": [0, 1.0], "prompt.user": ["{{ question }}", "Tell me: {{ question }}"]},
            "output": {"path": "outputs/sweep"},
        },
    ),
}


def config_text(job: str) -> str:
    """Returns the config of a ``job`` of EXAMPLES, as YAML with comments."""
    summary, values = EXAMPLES[job]
    others = " | ".join(other for other in EXAMPLES if other != job)
    head = [
        f"# yaml-language-server: $schema={_schema()}",
        *_comment(f"{summary} Every setting is here, as it is by default or as this example needs it.", ""),
        f"# Other jobs: mlx-bulk init {others}",
        "# It runs as it is: mlx-bulk run FILE",
    ]
    return "\n".join([*head, *_section(JOBS[job], {"job": job, **values}, "")]) + "\n"


def _schema() -> str:
    """Returns where the schema lies: a relative path if below the working folder, so that both can be moved together, else a URI."""
    path, here = Path(str(files("mlx_bulk.configs") / "schema.json")), Path.cwd()
    if not path.is_relative_to(here):
        return path.as_uri()
    below = path.relative_to(here).as_posix()
    return f"./{below}" if below.split() == [below] else path.as_uri()  # editors read up to the first space


def _section(model: type[Section], values: Values, indent: str) -> Iterator[str]:
    """Yields the lines of a section's settings; at the top level an empty line precedes each."""
    names = sorted(model.model_fields, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    for name in names if not indent else model.model_fields:
        field = model.model_fields[name]
        if not indent:
            yield ""
        yield from _comment(_description(field, set_here=name in values), indent)
        if section := section_of(field):
            yield f"{indent}{name}:"
            yield from _section(section, values.get(name, {}), f"{indent}  ")
        else:
            yield from _setting(name, values.get(name, field.default), indent)


def _description(field: FieldInfo, *, set_here: bool) -> str:
    words = [field.description or ""]
    choices = [str(choice) for choice in get_args(field.annotation)] if get_origin(field.annotation) is Literal else []
    if len(choices) > 1 and not all(choice in words[0] for choice in choices):
        words.append(f"One of {', '.join(choices)}.")
    if set_here and not field.is_required() and section_of(field) is None:
        words.append(f"Default: {_scalar(field.default)}.")
    return " ".join(words)


def _setting(name: str, value: Any, indent: str) -> Iterator[str]:
    """Yields a key with its value: a mapping has a line for each of its keys, all else stands on the key's line."""
    if isinstance(value, dict) and value:
        yield f"{indent}{name}:"
        for key, inner in value.items():
            yield from _setting(key, inner, f"{indent}  ")
    else:
        yield f"{indent}{name}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    """Returns a value as YAML on one line; a string has double quotes where it needs any."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20).removesuffix("\n").removesuffix("\n...")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and text != value else text


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in wrap(text, _WIDTH - len(indent) - 2)]

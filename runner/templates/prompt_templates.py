"""Renders a row's columns into a prompt: text by a Jinja template, or chat messages.

Templates run in a sandbox. Columns are only values in them, never templates. A null column counts as undefined, like an absent one, and
so does a null inside a column.
``row`` holds all columns by name.
Knows no tokens; the tokenizer applies the chat template.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

from jinja2 import TemplateSyntaxError, Undefined, UndefinedError, meta, nodes
from jinja2.exceptions import SecurityError

from ...configs.errors import ConfigError
from ...configs.schema import PromptConfig
from ..core.errors import DataError, RowError
from ..data.column_paths import missing_column, require_column
from .absent_values import NULL_INSIDE, Absent, as_json, is_null, undefined_nulls
from .chat_messages import Columns, Message, read_messages, shown_value
from .jinja_sandbox import render
from .metered_sandbox import MeteredEnvironment
from .render_costs import Unsure, start_budget
from .render_process import RenderRefused, TooMuch, render_apart
from .template_columns import ROW, columns_in_row, spelling_of_column, spelling_of_known, written_column


@dataclass(slots=True, frozen=True)
class Text:
    """A prompt whose text goes to the model as it is."""

    text: str


@dataclass(slots=True, frozen=True)
class Chat:
    """Messages for the chat template ({role, content: str, …}), and the beginning of the assistant's turn, if there is one."""

    messages: list[Message]
    prefill: str | None = None


@dataclass(slots=True, frozen=True)
class PromptIds:
    """A prompt that comes as token ids."""

    ids: tuple[int, ...]


Rendered = Text | Chat
AnyPrompt = Rendered | PromptIds


def compile_prompt(prompt: PromptConfig, columns: Collection[str], pictures: bool = False) -> Callable[[Columns], Rendered]:
    """Returns a function from a row's columns to its prompt. That function raises RowError (stage "template").

    columns: the names that the pre-scan found. They are empty if no row could be read, and then names are not checked. pictures: see
    ``read_messages``. Raises ConfigError for a template that can't be parsed, DataError for one that names a column no row has.
    """
    require_column(columns if prompt.images else [], prompt.images or "", "prompt.images")
    if prompt.text is not None:
        text = compile_template(prompt.text, "prompt.text", columns)
        return lambda row: Text(text(row))
    prefill = None if prompt.prefill is None else compile_template(prompt.prefill, "prompt.prefill", columns)
    turns = _compile_turns(prompt, columns, pictures)
    return lambda row: Chat(turns(row), prefill and prefill(row))


def compile_template(template: str, option: str, columns: Collection[str]) -> Callable[[Columns], str]:
    """Returns a function that renders ``template`` over a row's columns. ``option``: its config key. Raises as ``compile_prompt``."""
    return _compiled("text", template, option, columns)


def compile_value(template: str, option: str, columns: Collection[str]) -> Callable[[Columns], Any]:
    """Returns the same as ``compile_template``, but a single expression such as ``{{ answer }}`` keeps the type of its value."""
    return _compiled("value", template, option, columns)


def is_constant(template: str) -> bool:
    """Returns True for a template without Jinja syntax, which gives every row the same text."""
    return "{{" not in template and "{%" not in template


def told_of_single_braces(template: str, columns: Collection[str]) -> str:
    """Tells of a text without Jinja syntax that names a column as Python's ``format`` does, ``{name}``; "" where it names none."""
    name = next((name for name in columns if f"{{{name}}}" in template), None)
    if name is None or not is_constant(template):
        return ""
    return f"{{{name}}} stays as it is, the same text for each row; the column is written {written_column(name)}"


class _Parsed(NamedTuple):
    """A template, whatever the columns. evaluate: None where its costs are not known. names: those that it does not set itself."""

    evaluate: Callable[[Columns], Any] | None
    names: frozenset[str]
    in_row: frozenset[str]


@lru_cache(1024)
def _parsed(kind: str, template: str) -> _Parsed:
    """Compiles a template, once for all that ask for it: a run's checks, its workers' rows, the next run of a sweep."""
    environment, evaluate = _Environment(), None
    start_budget()  # Jinja computes constants as it compiles
    with suppress(Unsure):
        evaluate = _evaluation(kind, template, environment)
    tree = environment.parse(template)
    names = frozenset(meta.find_undeclared_variables(tree) - environment.globals.keys())
    return _Parsed(evaluate, names, columns_in_row(tree) if ROW in names else frozenset())


def _evaluation(kind: str, template: str, environment: "_Environment") -> Callable[[Columns], Any]:
    source = template.strip()
    if kind == "text" or not (source.startswith("{{") and source.endswith("}}") and _is_expression(environment.parse(source))):
        return partial(render, environment.from_string(template))
    expression = environment.compile_expression(source[2:-2].strip("-+"), undefined_to_none=False)
    return lambda row: _printable(expression(row))


def _compiled(kind: str, template: str, option: str, columns: Collection[str]) -> Callable[[Columns], Any]:
    """Returns the function from columns to a template's text or value. Checks its columns, and turns its errors into RowError.

    A row on which the template may cost much is left to a process with limits, which makes the same function.
    """
    try:
        evaluate, names, in_row = _parsed(kind, template)
    except TemplateSyntaxError as error:
        at, why = f"{option}, line {error.lineno}", (error.message or "").rstrip(".")
        raise ConfigError(f"{at}: the template cannot be parsed: {why}. {spelling_of_column(template)}") from None
    except (RecursionError, SyntaxError) as error:  # Jinja may parse a template that is too deep for it to compile, or for Python
        reason = "nested too deeply" if isinstance(error, RecursionError) else error.msg
        raise ConfigError(f"{option}: the template cannot be compiled: {reason}; write it simpler") from None
    takes_row = ROW in names and ROW not in columns
    names = (names - {ROW}) | in_row if takes_row else names
    for name in sorted(names) if columns else []:
        if name not in columns:
            raise missing_column(columns, name, option, spelling_of_known(template, columns))
    if is_constant(template) and template in columns:
        cure = f"a template writes it {written_column(template)}, and the text itself {{{{ {template!r} }}}}"
        raise DataError(f"{option}: found {shown_value(template)}, which is a column's name; {cure}")

    def render(row: Columns) -> Any:
        try:
            start_budget()
            if evaluate is not None:
                values = {name: value for name, value in row.items() if value is not None}
                for name in values if takes_row else names & values.keys():
                    values[name] = undefined_nulls(values[name], name)
                return evaluate({ROW: values, **values} if takes_row else values)
        except Unsure:
            pass
        except Exception as error:  # a template can raise any Python error; it costs only this row
            raise RowError("template", f"{option}: {_reason(error, names, row, option)}") from error
        try:
            return render_apart(kind, {"template": template, "option": option, "columns": tuple(columns), "row": row})
        except RenderRefused as error:
            raise RowError("template", str(error)) from error
        except TooMuch as error:
            raise RowError("template", f"{option}: the template {error.on('this row')}") from error

    return render


def _is_expression(template: nodes.Template) -> bool:
    """Returns True for a template that prints one value and nothing else."""
    body = template.body
    return len(body) == 1 and isinstance(body[0], nodes.Output) and [isinstance(x, nodes.TemplateData) for x in body[0].nodes] == [False]


def _compile_turns(prompt: PromptConfig, columns: Collection[str], pictures: bool) -> Callable[[Columns], list[Message]]:
    if prompt.messages is not None:
        path = prompt.messages
        require_column(columns, path, "prompt.messages")
        return lambda row: read_messages(row, path, pictures)
    parts = [("system", prompt.system), ("user", prompt.user)]
    turns = [(role, compile_template(part, f"prompt.{role}", columns)) for role, part in parts if part is not None]
    return lambda row: [{"role": role, "content": render(row)} for role, render in turns]


class _Environment(MeteredEnvironment):
    """The sandbox, with rules that turn mistakes in a template into errors instead of wrong prompts."""

    def __init__(self) -> None:
        super().__init__(undefined=Absent, keep_trailing_newline=True, finalize=_printable)
        self.filters["tojson"] = as_json
        self.tests["none"] = is_null
        self.meter_names()

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns the value of a key before a method of the same name: ``row.items`` is the column items, if there is one."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


class _UnprintableError(Exception):
    """Raised for a value that would print as None, or in Python's notation. ``value``: the container, if it is one."""

    def __init__(self, message: str, value: object = None):
        super().__init__(message)
        self.value = value


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Absent):
        str(value)  # raises
    if isinstance(value, Undefined):  # an if without else
        return ""
    if value is None:
        raise _UnprintableError("a value is null")
    if callable(value):
        raise _UnprintableError(f"{getattr(value, '__name__', 'a value')} is a function; call it with ()")
    if kind := _container(value):
        raise _UnprintableError(f"a value is {kind}", value)
    return value


def _container(value: object) -> str | None:
    """Names the kind of a value that is no text: one that holds several values, or bytes. Returns None for a single value."""
    kinds = ((dict, "a mapping"), ((list, tuple, set, frozenset), "a list"), (Iterator, "a sequence"), ((bytes, bytearray), "binary"))
    return next((words for kind, words in kinds if isinstance(value, kind)), None)


def _cure(name: str, kind: str) -> str:
    ways = {
        "a mapping": f"{{{{ {name}.key }}}} or {{{{ {name} | tojson }}}}",
        "a sequence": f"{{{{ {name} | join }}}}",
        "binary": f"{{{{ {name}.decode() }}}} where it is text in UTF-8",
    }
    return f"write {ways.get(kind, f'{{{{ {name} | join }}}} or {{{{ {name} | tojson }}}}')}"


def _reason(error: Exception, names: frozenset[str], row: Columns, option: str) -> str:
    """Says why a template failed on this row, and names the columns that are the likely cause."""
    if isinstance(error, UndefinedError):
        if (found := NULL_INSIDE.fullmatch(str(error))) and found["column"] in names:
            path = found["path"]
            return f"null in this row: {path}. Use {{% if {path} %}} or {path} | default('') where that is allowed"
        missing = [name for name in sorted(names) if row.get(name) is None]
        if any(f"'{name}' is undefined" in str(error) or f"'dict object' has no attribute {name!r}" == str(error) for name in missing):
            return f"null or missing in this row: {', '.join(missing)}. Use {{% if column %}} or column | default('') where that is allowed"
    if isinstance(error, _UnprintableError) and (kind := _container(error.value)):
        its = next(
            (name for name in sorted(names) if row.get(name) is error.value or undefined_nulls(row.get(name), name) == error.value), "value"
        )
        scored = ", or use score.choices" if kind == "a list" and option in ("score.text", "score.completion") else ""
        return f"{'a value' if its == 'value' else repr(its)} is {kind}; {_cure(its, kind)}{scored}"
    if isinstance(error, SecurityError):
        return f"the template may not do this: {error}"
    return f"{type(error).__name__.lstrip('_')}: {error} (the template uses {', '.join(sorted(names)) or 'no column'})"

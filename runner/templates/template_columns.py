"""The columns that a template reads by ``row["any name"]``, and how a column whose name is no Jinja name is written.

Knows Jinja's syntax, and no rows.
"""

import json
import re
from collections.abc import Collection

from jinja2 import Environment, TemplateSyntaxError, nodes

ROW = "row"  # holds all columns of the row in a template, unless a column has this name

_EXPRESSION = re.compile(r"\{\{[-+]?\s*(.*?)\s*[-+]?\}\}", re.DOTALL)
_NAME_IN_WORDS = re.compile(r"\w[\w .:/?#%&@$'-]*")
# Words of Jinja's own, which cannot be variables.
_WORDS = {"and", "else", "false", "False", "if", "in", "is", "loop", "none", "None", "not", "or", "recursive", "self", "true", "True"}


def columns_in_row(template: nodes.Template) -> frozenset[str]:
    """Returns the columns that a parsed template reads as ``row["name"]`` or ``row.name``.

    None where it sets a variable ``row`` of its own, because then it cannot be told which is meant.
    """
    if any(name.name == ROW and name.ctx != "load" for name in template.find_all(nodes.Name)):
        return frozenset()
    by_item = {
        item.arg.value
        for item in template.find_all(nodes.Getitem)
        if _is_row(item.node) and isinstance(item.arg, nodes.Const) and isinstance(item.arg.value, str)
    }
    by_attribute = {item.attr for item in template.find_all(nodes.Getattr) if _is_row(item.node)} - set(dir(dict))
    return frozenset(by_item | by_attribute)


def spelling_of_column(template: str) -> str:
    """Returns a sentence on how columns are written in a template that cannot be parsed, for its own expression where that is a name."""
    for expression in _EXPRESSION.findall(template):
        name = expression.partition("|")[0].strip()
        if not _is_variable(name) and _NAME_IN_WORDS.fullmatch(name) and not _parses(name):
            return f"Where {name!r} is a column, write {_written(name)}."
    return f"A column is written {{{{ name }}}}, or {_written('any name')}."


def spelling_of_known(template: str, columns: Collection[str]) -> str:
    """Returns the same for a template that names a column wrongly: of the column whose name stands in it, or "" where none does."""
    expressions = _EXPRESSION.findall(template)
    odd = [name for name in columns if not _is_variable(name)]
    meant = [name for name in odd if any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", expression) for expression in expressions)]
    return f"The column {max(meant, key=len)!r} is written {_written(max(meant, key=len))}." if meant else ""


def written_column(name: str) -> str:
    """Returns how a template writes a column: by its name, or in ``row`` where that is no variable's."""
    return f"{{{{ {name} }}}}" if _is_variable(name) else _written(name)


def _written(name: str) -> str:
    return f"{{{{ {ROW}[{json.dumps(name, ensure_ascii=False)}] }}}}"


def _is_variable(name: str) -> bool:
    return name.isidentifier() and name not in _WORDS


def _is_row(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == ROW


def _parses(expression: str) -> bool:
    try:
        Environment(autoescape=False).compile_expression(expression)
    except TemplateSyntaxError:
        return False
    return True

"""Reads strict YAML into plain values, by the types of YAML 1.2: 1e-4 is a number and ``no`` a string.

Duplicate keys, aliases and tags are errors with line and column. Knows no settings.
"""

import re

import yaml

from .errors import ConfigError

Scalar = str | int | float | bool | None
Value = Scalar | list["Value"] | dict[Scalar, "Value"]

_TAG = "tag:yaml.org,2002:"


class _Yaml12(yaml.SafeLoader):
    """PyYAML's reader with the core schema of YAML 1.2 in place of YAML 1.1's."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - the name and the type are PyYAML's

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # An alias can stand for itself or for an exponential copy; a config has no use for one.
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*name) are not read in a config; write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.peek_event().start_mark)
        return super().compose_node(parent, index)


for _kind, _pattern, _first in (
    ("null", r"(~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("bool", r"(true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z", list("-+.0123456789")),
    ("float", r"([-+]?\.(inf|Inf|INF)|\.nan|\.NaN|\.NAN)\Z", list("-+.")),
):
    _Yaml12.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


def parse(text: str, source: str) -> Value:
    """Returns the one YAML document in ``text``, None if there is none. Raises ConfigError, which names the text by ``source``."""
    try:
        loader = _Yaml12(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _value(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        what = "; ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{source}: {place}{what}") from None
    except yaml.reader.ReaderError as error:
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise ConfigError(f"{source}: character {error.position + 1} is U+{code:04X}, which YAML does not allow; remove it") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be a config") from None
    except (ValueError, OverflowError) as error:
        # PyYAML lets an escape such as "\UFFFFFFFF" through to chr().
        raise ConfigError(f"{source}: not valid YAML: {error}") from None


def parse_setting(text: str, source: str, texts: bool, lists: bool) -> Value:
    """Returns the value that ``text`` writes for one setting: one in YAML, or where the setting holds texts that text to the letter.

    YAML would drop spaces around a plain text and what comes behind " #", and read [0-9] as a list. Quotes are YAML's. texts, lists: the
    setting holds a text, a list. Raises ConfigError as ``parse``.
    """
    begin = text.lstrip()
    if begin.startswith(("{{", "{%")):  # in YAML {{ opens a mapping in a mapping, which no setting is: it is a template
        return text
    if not (texts or lists) or begin.startswith(("'", '"')):
        return parse(text, source)
    try:
        value = parse(text, source)
    except ConfigError:
        if lists:
            raise
        return text
    # A text with a colon, such as the column "Unnamed: 0", is a mapping in YAML.
    other = texts and ((isinstance(value, dict) and not begin.startswith("{")) or (isinstance(value, list) and not lists))
    return text if isinstance(value, str) or other else value


def _value(node: yaml.Node) -> Value:
    kind = node.tag.removeprefix(_TAG)
    match node:
        case yaml.MappingNode() if kind == "map":
            return _mapping(node)
        case yaml.SequenceNode() if kind == "seq":
            return [_value(item) for item in node.value]
        case yaml.ScalarNode():
            return _scalar(node, kind)
        case _:
            raise _problem(node, f"the tag {node.tag} is not read in a config; remove it")


def _mapping(node: yaml.MappingNode) -> dict[Scalar, Value]:
    mapping: dict[Scalar, Value] = {}
    lines: dict[Scalar, int] = {}
    for key_node, value_node in node.value:
        key = _value(key_node)
        if isinstance(key, list | dict):
            raise _problem(key_node, "a key is a list or a mapping; quote it if it is meant as text (a template needs quotes)")
        if key in lines:
            raise _problem(key_node, f"the key {key!r} stands here and on line {lines[key]}; remove one of them")
        lines[key] = key_node.start_mark.line + 1
        mapping[key] = _value(value_node)
    return mapping


def _scalar(node: yaml.ScalarNode, kind: str) -> Scalar:
    text: str = node.value
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return _integer(node, text)
        case "float":
            return float(re.sub(r"\.(inf|nan)", r"\1", text.lower()))
        case "str":
            return _joined(node, text)
        case _:
            raise _problem(node, f"the tag {node.tag} is not read in a config; remove it")


def _joined(node: yaml.ScalarNode, text: str) -> str:
    """Joins the surrogate pairs of JSON's escapes in ``text`` to characters."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _problem(node, "half of a surrogate pair is not a character; write the character itself") from None


def _integer(node: yaml.ScalarNode, text: str) -> int:
    if len(text) > 30:
        raise _problem(node, "a number of this length has no use in a config")
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text.removeprefix("0o") if base == 8 else text, base)


def _problem(node: yaml.Node, what: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)

"""How messages travel: as dicts of plain values, one key a field. What comes in is checked, whoever sent it."""

from dataclasses import asdict, fields
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from ..cluster.messages import FromWorker, Message, ToWorker

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(ToWorker), *get_args(FromWorker))}
_TYPE = "type"  # the key of a message's class; no field has this name
_CHECKS: dict[str, TypeAdapter[Any]] = {}


def to_wire(message: Message) -> dict[str, Any]:
    """Returns a message as a dict of plain values (numbers, texts, bytes, lists, dicts), with its kind."""
    return {_TYPE: type(message).__name__, **asdict(message)}


def from_wire(wire: dict[str, Any]) -> Message:
    """Returns the message of a dict that ``to_wire`` made. Raises ValueError for anything else."""
    kind = wire.get(_TYPE)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"found a message of kind {kind!r}; expected one of {', '.join(_KINDS)}")
    values = {key: value for key, value in wire.items() if key != _TYPE}
    known = {each.name for each in fields(_KINDS[kind])}
    if unknown := values.keys() - known:
        raise ValueError(f"{kind}: found unknown fields {', '.join(sorted(map(str, unknown)))}")
    try:
        return _check(kind).validate_python(values)
    except ValidationError as error:
        raise ValueError(f"{kind}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def _check(kind: str) -> TypeAdapter[Any]:
    """Returns what checks the fields of a message. Made at the first use, as it takes some milliseconds."""
    if kind not in _CHECKS:
        _CHECKS[kind] = TypeAdapter(_KINDS[kind])
    return _CHECKS[kind]

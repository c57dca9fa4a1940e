"""Checks what callers pass to the public functions, where the config's own checks would not name the argument."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar, get_args

_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


P = ParamSpec("P")
R = TypeVar("R")


def names_nearest(function: Callable[P, R]) -> Callable[P, R]:
    """Makes the TypeError for an argument that a function does not have name the nearest that it has, as configs do."""
    known = [name for name, parameter in signature(function).parameters.items() if name != "self" and parameter.kind in _BY_NAME]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if unknown := [name for name in kwargs if name not in known]:
            from mlx_bulk.configs.fields import nearest  # late, as below

            near = nearest(unknown[0], known)
            cure = f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
            raise TypeError(f"{function.__name__}() has no argument {unknown[0]}; {cure}")
        return function(*args, **kwargs)

    return checked


def as_strings(values: object, name: str, example: str) -> tuple[str, ...]:
    """Returns the strings; one string stands for itself. Raises TypeError for what is no list of strings."""
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Sequence) or not all(isinstance(value, str) for value in values):
        found = "a mapping" if isinstance(values, Mapping) else repr(values)
        raise TypeError(f"{name}: found {found}; expected a list of strings such as {example}")
    return tuple(map(str, values))


def require_progress(progress: object) -> None:
    """Raises ValueError for a ``progress`` that there is not."""
    from mlx_bulk.runner.pipeline.progress_display import Show  # late: results are read without what it imports

    if progress not in get_args(Show):
        raise ValueError(f"progress: found {progress!r}; expected one of {', '.join(map(repr, get_args(Show)))}")


def as_mapping(value: object, name: str, example: str) -> dict[str, Any]:
    """Returns the settings, {} for None. Raises TypeError for what is no mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: found {value!r}; expected a mapping such as {example}")
    return {str(key): setting for key, setting in value.items()}


def as_texts(values: object, name: str) -> list[str]:
    """Returns the texts as a list. Raises TypeError for one string, which is a sequence of strings too, and for what is no text."""
    texts: list[str] = []
    for position, text in enumerate(_listed(values, name, "texts")):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{position}]: found {type(text).__name__}; expected a string")
        texts.append(text)
    return texts


def as_texts_and_images(values: object, name: str) -> tuple[list[str | None], list[list[object]]]:
    """Returns the text of each input, None without one, and its pictures. Raises TypeError for what is neither text nor such a mapping."""
    texts: list[str | None] = []
    images: list[list[object]] = []
    for position, value in enumerate(_listed(values, name, "texts, or of mappings with text and image")):
        given = {"text": value} if isinstance(value, str) else value
        if not isinstance(given, Mapping) or not given or given.keys() - {"text", "image"}:
            found = f"the keys {', '.join(map(str, given))}" if isinstance(given, Mapping) else type(value).__name__
            raise TypeError(f"{name}[{position}]: found {found}; expected a string, or a mapping with text, image or both")
        text, image = given.get("text"), given.get("image")
        if not (text is None or isinstance(text, str)):
            raise TypeError(f"{name}[{position}]: found {type(text).__name__} as text; expected a string")
        texts.append(text)
        images.append([] if image is None else list(image) if isinstance(image, list | tuple) else [image])
    return texts, images


def as_pairs(values: object, name: str) -> tuple[list[str], list[str]]:
    """Returns the first texts and the second texts of pairs. Raises TypeError for what is no list of pairs of texts."""
    firsts: list[str] = []
    seconds: list[str] = []
    for position, pair in enumerate(_listed(values, name, "pairs of texts")):
        match pair:
            case [str() as first, str() as second]:
                firsts.append(first)
                seconds.append(second)
            case _:
                raise TypeError(f"{name}[{position}]: found {pair!r:.80}; expected two texts, (query, document)")
    return firsts, seconds


def as_chats(values: object) -> list[list[dict[str, Any]]]:
    """Returns the chats as lists of messages; a text is one turn of the user. Raises TypeError for what is neither."""
    return [_chat(chat, position) for position, chat in enumerate(_listed(values, "chats", "texts or of lists of messages"))]


def _chat(chat: object, position: int) -> list[dict[str, Any]]:
    if isinstance(chat, str):
        return [{"role": "user", "content": chat}]
    if isinstance(chat, Mapping):
        raise TypeError(f"chats[{position}]: found one message; expected a text or a list of messages: a single chat is [[message, …]]")
    if not isinstance(chat, Sequence):
        raise TypeError(f"chats[{position}]: found {type(chat).__name__}; expected a text or a list of messages")
    turns: list[dict[str, Any]] = []
    for number, turn in enumerate(chat):
        if not isinstance(turn, Mapping):
            raise TypeError(f"chats[{position}][{number}]: found {type(turn).__name__}; expected a message with role and content")
        turns.append({str(key): value for key, value in turn.items()})
    return turns


def _listed(values: object, name: str, of: str) -> Sequence[object]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        found = "one string" if isinstance(values, str) else type(values).__name__
        raise TypeError(f"{name}: found {found}; expected a list of {of}")
    return values

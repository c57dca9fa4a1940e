"""Escapes foreign text (rows, column and file names, models' errors) in messages, so that a terminal shows it and never obeys it.

JSON does not need this: it has its own escapes.
"""

import unicodedata

_JOINERS = "\u200c\u200d"  # parts of words and of emoji; they are harmless


def visible(text: str) -> str:
    """Returns ``text`` on one line. Escapes control characters, marks that change the direction of writing, and half surrogate pairs.

    >>> visible("a\\nb\\x1b[2J\\u202ec"), visible("naïve　東京 🙂")
    ('a\\\\nb\\\\x1b[2J\\\\u202ec', 'naïve　東京 🙂')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text)


def visible_lines(text: str) -> str:
    """Returns ``text`` with each line made visible, for our own messages of several lines."""
    return "\n".join(map(visible, text.split("\n")))

"""Text of others' making (rows, column and file names, models' errors) as it may stand in a message: shown by a terminal, never obeyed.

Knows no message. JSON needs none of this: it has escapes of its own.
"""

import unicodedata

_JOINERS = "\u200c\u200d"  # parts of words and of emoji; they move nothing


def visible(text: str) -> str:
    """``text`` on one line; control characters, marks that turn the direction of writing, and halves of surrogate pairs escaped.

    >>> visible("a\\nb\\x1b[2J\\u202ec"), visible("naïve　東京 🙂")
    ('a\\\\nb\\\\x1b[2J\\\\u202ec', 'naïve　東京 🙂')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text)


def visible_lines(text: str) -> str:
    """The same of each line of ``text``, a block of our own making in which others' words stand."""
    return "\n".join(map(visible, text.split("\n")))

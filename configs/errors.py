"""The root of every error that a user can mend; each message is one readable line or block that names the fix."""

from .visible import visible_lines


class BulkError(Exception):
    """Something the user can mend. ``exit_code`` is what the command line returns for it (the contract's table).

    What a terminal would obey in its message is escaped, since files, rows and models have their words in it.
    """

    exit_code = 5

    def __init__(self, message: str):
        super().__init__(visible_lines(message))


class ConfigError(BulkError):
    """The config or the command line is wrong; nothing was started."""

    exit_code = 2

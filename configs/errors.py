"""The base class of all errors that a user can fix. Each message is one readable line or block that names the fix."""

from .visible import visible_lines


class BulkError(Exception):
    """An error that the user can fix. The command line returns its ``exit_code``.

    Control characters in its message are escaped, because messages quote files, rows and models.
    """

    exit_code = 5

    def __init__(self, message: str):
        super().__init__(visible_lines(message))


class ConfigError(BulkError):
    """The config or the command line is wrong; nothing was started."""

    exit_code = 2

"""The root of every error that a user can mend; each message is one readable line or block that names the fix."""


class BulkError(Exception):
    """Something the user can mend. ``exit_code`` is what the command line returns for it (the contract's table)."""

    exit_code = 5


class ConfigError(BulkError):
    """The config or the command line is wrong; nothing was started."""

    exit_code = 2

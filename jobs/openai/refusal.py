"""A request that is refused, as an API would answer it: with the parameter at fault, and a code.

The record of such a row holds the code as its error and begins its message with the parameter; ``parameter_of`` takes both apart.
"""

from ...configs.visible import visible
from ...runner.core.errors import RowError

STAGE = "request"

_STATUS = {"model_not_found": 404}


class RequestRefused(RowError):
    """A request of a Batch file that cannot be answered as it is. param: a path into the body, such as "tools[0].type"."""

    def __init__(self, param: str, code: str, text: str):
        name = visible(param).replace(":", "")[:200] or "body"
        super().__init__(STAGE, f"{name}: {text}", code)


def parameter_of(message: str) -> tuple[str, str]:
    """Returns the parameter and the rest of a refused request's message."""
    param, _, text = message.partition(": ")
    return param, text


def status_of(code: str) -> int:
    """Returns the HTTP status of a refusal."""
    return _STATUS.get(code, 400)

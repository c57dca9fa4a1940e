"""How a driver and the workers that it has started know each other: by a secret that both have and neither sends.

Each end shows that it has the secret, for random bytes of the other end, before anything else is read. So nobody else on the machine
can join the driver, nor give these workers anything to do from its port once it is gone.

    worker ─► random bytes
    driver ─► random bytes, and its proof
    worker ─► its proof
"""

import hmac
import secrets
from collections.abc import Awaitable
from typing import Protocol

_BYTES = 32  # of random bytes, and of a proof


class Stream(Protocol):
    """A connection of bytes. Both methods raise OSError where it is gone."""

    def read_bytes(self, num_bytes: int) -> Awaitable[bytes]:
        """Returns so many bytes."""
        ...

    def write(self, data: bytes) -> Awaitable[None]:
        """Sends bytes."""
        ...


def new_secret() -> str:
    """Returns a secret for a driver and its workers."""
    return secrets.token_hex(_BYTES)


async def is_own_worker(stream: Stream, secret: str) -> bool:
    """Returns whether a worker at the other end has the secret. Shows it first that this end has it."""
    theirs, ours = await stream.read_bytes(_BYTES), secrets.token_bytes(_BYTES)
    await stream.write(ours + _proof(secret, "driver", theirs, ours))
    return hmac.compare_digest(await stream.read_bytes(_BYTES), _proof(secret, "worker", theirs, ours))


async def is_own_driver(stream: Stream, secret: str) -> bool:
    """Returns whether a driver at the other end has the secret; shows it then that this end has it."""
    ours = secrets.token_bytes(_BYTES)
    await stream.write(ours)
    theirs = await stream.read_bytes(_BYTES)
    if not hmac.compare_digest(await stream.read_bytes(_BYTES), _proof(secret, "driver", ours, theirs)):
        return False
    await stream.write(_proof(secret, "worker", ours, theirs))
    return True


def _proof(secret: str, who: str, worker: bytes, driver: bytes) -> bytes:
    """Returns what only an end with the secret can make. worker, driver: their random bytes."""
    return hmac.digest(secret.encode(), who.encode() + worker + driver, "sha256")

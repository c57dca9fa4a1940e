"""Dask's connections as a cluster uses them: messages of plain values, its own settings, and silence on the terminal.

Dask's own connections unpickle what a peer puts into a message, also in the scheduler and before the peer has said who it is
(``__Pickled__`` in distributed/protocol/core.py). The connections made here read msgpack alone, and refuse all else. Importing this
module needs the extra ``cluster``.
"""

import asyncio
import logging
import ssl
import struct
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from ...configs.errors import ConfigError
from .shared_secret import is_own_driver, is_own_worker

try:
    import distributed
    import msgpack
    from dask import config as dask_config
    from distributed import Scheduler, Worker
    from distributed.comm.addressing import get_address_host
    from distributed.comm.core import Comm, CommClosedError, FatalCommClosedError, connect
    from distributed.comm.registry import backends
    from distributed.comm.tcp import TCP, TLS, TCPBackend, TCPConnector, TCPListener, TLSBackend, TLSListener
    from tornado.ioloop import PeriodicCallback
    from tornado.iostream import StreamClosedError
except ImportError as error:
    raise ConfigError(
        f"a run over several workers needs Dask's package distributed ({error}); install it: pip install 'mlx-bulk[cluster]'"
    ) from None

__all__ = [
    "Comm",
    "CommClosedError",
    "FatalCommClosedError",
    "PeriodicCallback",
    "Scheduler",
    "StreamClosedError",
    "Worker",
    "connect",
    "get_address_host",
]

log = logging.getLogger("mlx_bulk")

MOST_BYTES = 1 << 30  # of what is read at once: a worker has 64 MB under way, and what it sends again after a reconnect
OP = "mlx-bulk"  # of our messages in Dask's streams
REFUSED = "mlx-bulk-refused"  # of the driver's last words to a worker
ALIVE = "keep-alive"  # of signs of life, from both ends
ALIVE_SECONDS = 3.0  # between two of them
HANGING = 2.0  # times lost_after without any: the other end hangs, or its system does not say that the connection is gone
_SECRET_SECONDS = 10.0  # for a worker to show that it has the driver's secret
_WORD = struct.Struct("Q")
_MOST_TOLD = 100
_LOGGERS = ("distributed", "tornado", "tornado.application")


class NotPlain(CommClosedError):
    """A peer sent what is no message of plain values. The connection is closed."""


def unpacked(content: Any) -> Any:
    """Returns the value of one msgpack message. Raises NotPlain for anything else, and for types beyond msgpack's own."""
    try:
        return msgpack.unpackb(content, raw=False, ext_hook=_refuse_extension)
    except Exception as error:  # of any kind, since the bytes are a stranger's
        raise NotPlain(f"a message that is no msgpack ({type(error).__name__})") from None


def _refuse_extension(code: int, content: bytes) -> Any:
    raise ValueError("found an extension type")


class PlainComm:
    """The part of a connection that reads: messages of one frame, which is msgpack. nbytes: of the last one.

    room: held while a message is read, so that those of many connections do not fill the memory.
    """

    stream: Any
    nbytes: int = 0
    room: Callable[[int], AbstractAsyncContextManager[None]] | None = None

    async def read(self, deserializers: object = None) -> Any:
        """Returns the next message. Raises CommClosedError when the connection is gone, NotPlain for what is no plain message."""
        if self.stream is None:
            raise CommClosedError
        try:
            (size,) = await self._words(1)
            if not 2 * _WORD.size <= size <= MOST_BYTES:
                raise NotPlain(f"a message of {size} bytes")
            (frames,) = await self._words(1)
            if frames != 1:
                raise NotPlain(f"a message of {frames} frames, which holds more than plain values")
            (self.nbytes,) = await self._words(1)
            # Dask reads a large frame apart from its header.
            if self.nbytes > MOST_BYTES or size - 2 * _WORD.size not in (0, self.nbytes):
                raise NotPlain(f"a frame of {self.nbytes} bytes in a message of {size}")
            async with nullcontext() if self.room is None else self.room(self.nbytes):
                content = await self.stream.read_bytes(self.nbytes)
        except (StreamClosedError, OSError) as error:
            self.abort()
            raise error if isinstance(error, CommClosedError) else CommClosedError(str(error)) from None
        except BaseException:
            self.abort()
            raise
        try:
            return unpacked(content)
        except NotPlain:
            self.abort()
            raise

    async def _words(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"{count}Q", await self.stream.read_bytes(count * _WORD.size))

    def abort(self) -> None:
        """Closes the connection at once."""
        super().abort()  # pyright: ignore[reportAttributeAccessIssue] - TCP's, which stands behind this class


class PlainTCP(PlainComm, TCP):
    """A connection without encryption."""


class PlainTLS(PlainComm, TLS):
    """A connection on which both ends have shown their certificates."""


class _Refusals:
    """Says in the log which hosts were refused, of each once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, address: str, why: str) -> None:
        """Notes that a connection from an address was refused."""
        host = get_address_host(address)
        if host not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(host)
            log.warning("refused a connection from %s, which %s", host, why)


class _PlainTCPListener(TCPListener):
    comm_class: ClassVar[type[TCP]] = PlainTCP

    def __init__(self, *arguments: Any, secret: str | None = None, **more: Any):
        super().__init__(*arguments, **more)
        self._secret, self._refusals = secret, _Refusals()

    async def _prepare_stream(self, stream: Any, address: str) -> Any:
        """Returns the connection; None where the other end does not have the driver's secret, or does not speak."""
        try:
            if self._secret is None or await asyncio.wait_for(is_own_worker(stream, self._secret), _SECRET_SECONDS):
                return stream
            self._refusals.tell(address, "is no worker that this run has started")
        except (OSError, TimeoutError):  # it only looked whether someone listens
            pass
        stream.close()
        return None


class StrangerFound(Exception):
    """What listens at the address of a driver does not have its secret. Dask tries again after an OSError, and this is none."""


class _PlainTCPConnector(TCPConnector):
    """Connects to a driver that has the secret, and to no other."""

    comm_class: ClassVar[type[TCP]] = PlainTCP

    async def connect(self, address: str, deserialize: bool = True, *, secret: str, **arguments: Any) -> Any:
        comm: Any = await super().connect(address, deserialize, **arguments)
        try:
            if await is_own_driver(comm.stream, secret):
                return comm
            raise StrangerFound
        except BaseException:
            comm.abort()
            raise


class _PlainTLSListener(TLSListener):
    comm_class: ClassVar[type[TCP]] = PlainTLS

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        self._refusals = _Refusals()

    async def _prepare_stream(self, stream: Any, address: str) -> Any:
        """Waits until both ends have shown their certificates. Returns None for a stranger, of which the log tells once."""
        try:
            return await stream.wait_for_handshake()
        except OSError as error:
            why = getattr(error, "real_error", None) or error
            silent = not isinstance(why, ssl.SSLError) or isinstance(why, ssl.SSLEOFError)  # it only looked whether someone listens
            if not silent:
                self._refusals.tell(address, f"did not show a certificate of this cluster ({getattr(why, 'reason', None) or why})")
            return None


class _PlainTCPBackend(TCPBackend):
    _connector_class = _PlainTCPConnector
    _listener_class = _PlainTCPListener


class _PlainTLSBackend(TLSBackend):
    _listener_class = _PlainTLSListener


# Schemes of our own for listening, and for connecting with a secret: Dask's stay as they are for others in this process. The bytes on the
# wire are Dask's.
PLAIN_SCHEMES = {"tcp": "mlx-bulk-tcp", "tls": "mlx-bulk-tls"}
backends.setdefault(PLAIN_SCHEMES["tcp"], _PlainTCPBackend())
backends.setdefault(PLAIN_SCHEMES["tls"], _PlainTLSBackend())


class _Secret(distributed.Security):
    """What a driver and the workers that it has started know each other by, without certificates."""

    def __init__(self, secret: str):
        super().__init__(require_encryption=False, **dict.fromkeys(_tls_fields()))
        self._secret = secret

    def get_listen_args(self, role: str) -> dict[str, Any]:
        """Returns what a listener is made with."""
        return {**super().get_listen_args(role), "secret": self._secret}

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """Returns what a connection is made with."""
        return {**super().get_connection_args(role), "secret": self._secret}


def security(tls: str | None, secret: str | None = None) -> distributed.Security:
    """Returns what both ends know each other by: the certificates in the folder ``tls``, or a ``secret``, or nothing.

    Raises ConfigError for bad certificates.
    """
    if tls is None:
        return distributed.Security(require_encryption=False, **dict.fromkeys(_tls_fields())) if secret is None else _Secret(secret)
    ends = {"_file": "ca.pem", "_cert": "node.pem", "_key": "node.key"}
    files = {field: str(Path(tls) / ends[field[field.rindex("_") :]]) for field in _tls_fields()}
    keys = distributed.Security(require_encryption=True, **files)
    try:
        keys.get_listen_args("scheduler")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{tls}: cannot use these keys ({error}); expected files that mlx-bulk cluster-keys made") from None
    return keys


def _tls_fields() -> list[str]:
    roles = ("client", "scheduler", "worker")
    return ["tls_ca_file", *(f"tls_{role}_{part}" for role in roles for part in ("cert", "key"))]


@contextmanager
def dask_settings(lost_after: float) -> Generator[None]:
    """Puts a cluster's settings in place of the user's, which are for other programs: preloads, plugins, timeouts, dashboards.

    lost_after: seconds after which a silent connection is closed. Nothing of Dask or tornado is logged meanwhile: what a user must
    know, the fleet and the link say in words of their own.
    """
    defaults: dict[str, Any] = dask_config.merge(*dask_config.defaults)
    ours = {
        "comm": {"timeouts": {"connect": "3s", "tcp": f"{int(lost_after)}s"}, "compression": False},
        "admin": {
            "low-level-log-length": 1,
            "tick": {"interval": "1s"},
            "system-monitor": {"interval": "5s", "disk": False, "gil": {"enabled": False}},
        },
        "diagnostics": {"nvml": False},
        "scheduler": {"worker-ttl": None, "http": {"routes": []}, "work-stealing": False, "active-memory-manager": {"start": False}},
        "worker": {"profile": {"enabled": False}, "http": {"routes": []}},
    }
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    warnings.filterwarnings("ignore", module=r"distributed\.")
    with dask_config.set({"distributed": dask_config.merge(defaults["distributed"], ours)}):
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)

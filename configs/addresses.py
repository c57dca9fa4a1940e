"""Addresses of drivers as text: nothing is opened or looked up here. Loads no other library, as each worker reads it."""

import ipaddress


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and the port of ``host:port``; an IPv6 address stands in brackets. Raises ValueError for anything else.

    >>> split_address("127.0.0.1:8786"), split_address("[::1]:0")
    (('127.0.0.1', 8786), ('::1', 0))
    """
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host != bare and f"[{bare}]" == host
    plain = bare != "" and bare.isascii() and bare.isprintable() and not set(bare) & set("[]/@ ")
    if not colon or not plain or bracketed != (":" in bare) or not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ValueError("no host:port")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Returns True for a host that this machine alone can reach: localhost, 127.x.x.x and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

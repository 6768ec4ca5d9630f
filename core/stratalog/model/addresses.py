"""Addresses: HOST:PORT, as users write it and nothing else, and those that connections come from. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

LAST_PORT: Final = 65_535

_LONGEST_NAME: Final = 253
_LONGEST_LABEL: Final = 63
_HOST: Final = re.compile(r"[^\s:/@\[\]?#,]+")
_IPV6: Final = re.compile(r"[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?")
_NAME: Final = re.compile(r"[\w-]+(\.[\w-]+)*\.?", re.ASCII)
_ANYWHERE: Final = frozenset({"0.0.0.0", "::", "*"})


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` -> (host, port); an IPv6 host may be in brackets, which are removed.

    Raises: ValueError with what is expected and what was found instead.
    """
    expected = f"expected HOST:PORT with a port from 0 to {LAST_PORT}"
    if "://" in text:
        raise ValueError(f"{expected}, without a listener's name or a protocol before it")
    if "," in text:
        raise ValueError(f"{expected}, and one address only")
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > LAST_PORT:
        raise ValueError(expected)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        is_host = _IPV6.fullmatch(host) is not None
    else:
        is_host = _HOST.fullmatch(host) is not None or _IPV6.fullmatch(host) is not None
    if not is_host:
        raise ValueError(f"{expected}; the host is a name or an address, an IPv6 one in brackets")
    return host, int(port)


def written(host: str, port: int) -> str:
    """As `parse_address` reads it: an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_name(host: str) -> bool:
    """Whether this may be a host's name, or an IPv4 address."""
    return _NAME.fullmatch(host) is not None


def is_host(host: str) -> bool:
    """Whether this may be a host that one connects to: a name that DNS can hold, or an address without brackets."""
    is_short = len(host) <= _LONGEST_NAME and all(len(label) <= _LONGEST_LABEL for label in host.split("."))
    return (is_name(host) and is_short) or (len(host) <= _LONGEST_NAME and _IPV6.fullmatch(host) is not None)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_anywhere(host: str) -> bool:
    """Whether the host means all addresses of a machine: a process can listen there, but no client can connect to
    it."""
    return host in _ANYWHERE


def source_of(address: str) -> str:
    """What is counted as one client: an IPv4 address, or the network of 64 bits of an IPv6 address, since one machine
    may choose the rest of that."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 6:
        return str(ip.ipv4_mapped or ipaddress.IPv6Address(int(ip) >> 64 << 64))
    return str(ip)

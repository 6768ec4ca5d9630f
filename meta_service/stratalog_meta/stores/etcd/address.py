"""Where an etcd store is: `etcd://HOST:PORT,HOST:PORT,HOST:PORT[/PREFIX]`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import InvalidRequest

SCHEME: Final = "etcd://"
DEFAULT_PREFIX: Final = "stratalog"
MAX_PREFIX_BYTES: Final = 256
"""It is a part of every key, and counts towards the size of each transaction."""


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The members' client addresses, and what every key of this cluster's metadata begins with."""

    endpoints: tuple[str, ...]
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.endpoints)}/{self.prefix}"

    @property
    def key_prefix(self) -> bytes:
        return f"/{self.prefix}/".encode()


def parse_address(url: str) -> EtcdAddress:
    """Raises InvalidRequest, which says what is wrong with `url`."""
    if not url.startswith(SCHEME):
        raise InvalidRequest(f"{url!r} is not an etcd address: write {SCHEME}HOST:PORT[,HOST:PORT...][/PREFIX]")
    hosts, _, path = url.removeprefix(SCHEME).partition("/")
    endpoints = tuple(_endpoint(host, url) for host in hosts.split(","))
    if len(set(endpoints)) != len(endpoints):
        raise InvalidRequest(f"{url!r} names a member twice: name each once")
    prefix = path.strip("/") or DEFAULT_PREFIX
    if not prefix.isprintable() or " " in prefix or len(prefix.encode()) > MAX_PREFIX_BYTES:
        raise InvalidRequest(
            f"{url!r}: the prefix {prefix!r} has blanks or more than {MAX_PREFIX_BYTES} bytes: choose a plain one"
        )
    return EtcdAddress(endpoints, prefix)


def _endpoint(text: str, url: str) -> str:
    host, colon, port = text.rpartition(":")
    is_bare_v6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not (host and colon) or is_bare_v6 or any(char.isspace() or char in "@?#" for char in host):
        raise InvalidRequest(f"{url!r}: {text!r} is not HOST:PORT (write an IPv6 address in brackets)")
    if not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65_535:
        raise InvalidRequest(f"{url!r}: {port!r} is not a port: write 1 to 65535, etcd's own is 2379")
    return f"{host}:{int(port)}"

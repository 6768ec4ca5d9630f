"""Checks whether addresses can be listened on before anything is created, and names the process that has one.

Another process may take an address between the question and the start: then the start says so itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stratalog.model.addresses import parse_address, written
from stratalog.model.errors import Unavailable
from stratalog.settings.process import ProcessSettings

_LISTENS: Final = "0A"
_PROC: Final = Path("/proc")
_MOST_LINES: Final = 200_000


def addresses_of(listen: str, settings: ProcessSettings, *, of_node: bool, of_meta: bool) -> list[tuple[str, str]]:
    """What a process with these settings listens on, each with what names it; `of_meta` where that has an address
    beside --listen."""
    found = [("--listen", listen), ("metrics.listen", settings.metrics_listen)]
    if of_node:
        found += [(f"listeners ({one.name})", written(one.host, one.port)) for one in settings.further_listeners]
    if of_meta:
        found.append(("meta.listen", settings.meta_listen))
    return [(named_by, address) for named_by, address in found if address]


def require_free(addresses: Iterable[tuple[str, str]]) -> None:
    """Raises: Unavailable for one that is taken, with the process that has it, or that cannot be listened on."""
    for named_by, address in addresses:
        host, port = parse_address(address)
        if (why := why_not_free(host, port)) is None:
            continue
        key, _, listener = named_by.partition(" ")
        option = f"{key} HOST:PORT" if key.startswith("--") else f"--set {key}={'…' if listener else 'HOST:PORT'}"
        raise Unavailable(f"{named_by}={address}: cannot listen there ({why}); choose another with {option}")


def why_not_free(host: str, port: int) -> str | None:
    """None if it is free, or is port 0, which means any free port."""
    if port == 0:
        return None
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except socket.gaierror as error:
        return None if _is_known(host, port) else f"{error.strerror}"
    except OSError as error:
        return f"{error.strerror}{_holder(port)}"
    return None


def _is_known(host: str, port: int) -> bool:
    """Whether the name has any address, of the family that was not tried as well."""
    try:
        return bool(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except socket.gaierror:
        return False


def _holder(port: int) -> str:
    """Who listens on the port, as far as this user can see; with no word of its command line, where secrets may be."""
    inodes = _listening(port)
    for process in _PROC.glob("[0-9]*") if inodes else ():
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                if os.readlink(file) in inodes:
                    name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                    return f": process {process.name}, {name!r}, has it"
    return f": another user's process has it, `ss -ltnp 'sport = :{port}'` as root shows which" if inodes else ""


def _listening(port: int) -> set[str]:
    """The sockets that listen on it, as links of open files name them."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), (_PROC / "net" / table).open(encoding="ascii") as lines:
            for _, line in zip(range(_MOST_LINES), lines, strict=False):
                words = line.split()
                if len(words) > 9 and words[3] == _LISTENS and words[1].endswith(f":{port:04X}"):
                    found.add(f"socket:[{words[9]}]")
    return found

"""The sockets of a node's listeners: all addresses are bound before any is registered.

The caller closes them. Raises: Unavailable if an address is in use; no socket is left open.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from stratalog.model.errors import Unavailable
from stratalog.model.listeners import INTERNAL, Listener, advertised_address
from stratalog.model.metadata import NodeInfo
from stratalog.settings.process import ProcessSettings


@dataclass(frozen=True, slots=True)
class BoundListener:
    """A socket with its address taken; it refuses connections until it listens."""

    socket: socket.socket
    listening: Listener
    announced: Listener
    """What clients of this listener get as the node's address."""


@dataclass(frozen=True, slots=True)
class NodeListeners:
    internal: BoundListener
    further: tuple[BoundListener, ...]

    def all(self) -> tuple[BoundListener, ...]:
        return self.internal, *self.further

    def listening(self) -> dict[str, tuple[str, int]]:
        return {one.listening.name: (one.listening.host, one.listening.port) for one in self.all()}

    def close(self) -> None:
        for one in self.all():
            one.socket.close()

    def of_node(self, node_id: int, storage_id: str, rack: str, *, reads_bucket: bool = True) -> NodeInfo:
        """What a node registers. `reads_bucket`: by its own `remote.read.policy`."""
        inside, further = self.internal.announced, tuple(one.announced for one in self.further)
        return NodeInfo(node_id, storage_id, inside.host, inside.port, rack or None, further, reads_bucket)


def bind_listeners(host: str, port: int, settings: ProcessSettings) -> NodeListeners:
    """The internal one at `host` and `port`, the others where the settings say."""
    wanted = (Listener(INTERNAL, host, port), *settings.further_listeners)
    with ExitStack() as taken:
        bound: list[BoundListener] = []
        for one in wanted:
            sock = bind(one.host, one.port, "--listen" if one.name == INTERNAL else f"listeners ({one.name})")
            taken.callback(sock.close)
            listening = Listener(one.name, one.host, sock.getsockname()[1])
            bound.append(BoundListener(sock, listening, advertised_address(listening, settings.advertised_addresses)))
        taken.pop_all()
    return NodeListeners(bound[0], tuple(bound[1:]))


def bind(host: str, port: int, named_by: str = "--listen") -> socket.socket:
    """A socket with its address taken; it refuses connections until opened. Raises: Unavailable (address in use)."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}; choose another {named_by}") from error
    return sock

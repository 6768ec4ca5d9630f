"""TLS of an HTTP port: what the next connection speaks it with, and which member of the cluster the other end is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stratalog.event_loop.tls_sessions import ServerContext
from stratalog.machines.rights.members import why_not_of_cluster
from stratalog.model.errors import InvalidRequest
from stratalog.model.members import Member


@dataclass(frozen=True, slots=True)
class Shown:
    """The identity that the other end of a connection has proven, or what is wrong with its certificate."""

    member: Member | None = None
    trouble: str = ""


NOBODY: Final = Shown()


@dataclass(frozen=True, slots=True)
class PortTls:
    context: Callable[[], ServerContext]
    """For the next connection."""
    own: Callable[[], Member | None]
    """As which this process's certificate names it, where callers are asked for theirs."""
    named: Callable[[bytes], Member | None]
    """The member that a verified certificate (DER) names. Raises: InvalidRequest."""

    def shown(self, certificate: bytes | None) -> Shown:
        own = self.own()
        if own is None or not certificate:
            return NOBODY
        try:
            member = self.named(certificate)
        except InvalidRequest as error:
            return Shown(trouble=str(error))
        why = None if member is None else why_not_of_cluster(own, member)
        return Shown(member) if why is None else Shown(trouble=why)

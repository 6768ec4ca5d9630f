"""What a process speaks TLS with: on its HTTP ports, and with the other processes of its cluster."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.event_loop.task_set import TaskSet
from stratalog.model.members import Member, Part
from stratalog.model.tokens import Token
from stratalog.settings.choices import ClientAuth
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.http_tls import PortTls
from stratalog.tls.outgoing import ClientTls

if TYPE_CHECKING:
    from stratalog.tls.contexts import TlsRules
    from stratalog.tls.identity import TlsIdentity


@dataclass(frozen=True, slots=True)
class ProcessTls:
    identity: TlsIdentity | None = None
    """None without certificates in the settings."""
    http: TlsRules | None = None
    """None: the HTTP ports speak plain text."""

    @property
    def scheme(self) -> str:
        return "http" if self.http is None else "https"

    @property
    def is_for_members(self) -> bool:
        """Whether callers of the HTTP ports are asked for the certificates of members."""
        return self._asked() is not None

    def token_for_nodes(self, token: Token | None) -> Token | None:
        """What the pages show to nodes. Nodes report the addresses at which the pages ask them, so one of them could
        have the token sent to itself, or in plain text: where the certificate of this process is enough, none is
        shown."""
        return None if self.is_for_members else token

    def _asked(self) -> Member | None:
        is_asking = self.http is not None and self.http.client_auth is not ClientAuth.NONE
        return self.identity.member if is_asking and self.identity is not None else None

    @property
    def port(self) -> PortTls | None:
        identity, rules = self.identity, self.http
        if identity is None or rules is None:
            return None
        from stratalog.tls.subjects import member_of

        return PortTls(lambda: identity.streaming(rules), self._asked, member_of)

    def to(self, part: Part) -> ClientTls | None:
        """For connections to processes that are this part of the cluster."""
        identity = self.identity
        return None if identity is None else lambda: identity.to(part)


PLAIN = ProcessTls()


async def open_tls(settings: ProcessSettings, part: Part, node_id: int | None, running: AsyncExitStack) -> ProcessTls:
    """Its files are read again until `running` closes. Raises: InvalidRequest for what cannot be used, or is another
    process's."""
    is_needed = any(one.is_tls for one in settings.security_protocols.values())
    if not (settings.has_certificate or settings.ssl_truststore_location or is_needed):
        return PLAIN
    from stratalog.tls.identity import http_rules, identity_of  # with a library that plain text does not need

    identity = await asyncio.to_thread(identity_of, settings, part, node_id)
    if identity is None:
        return PLAIN
    tasks = TaskSet()
    running.push_async_callback(tasks.cancel)
    tasks.start(identity.watch())
    return ProcessTls(identity, http_rules(settings))

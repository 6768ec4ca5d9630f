"""The certificate of this process, as it is now: new connections use what was read last and was found usable.

A file that changed is read within `POLL_S`. What cannot be used (no key for it, expired, not valid yet, cut off) is
refused: the certificate that was used before stays, and a counter, a gauge and a log line say so.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from stratalog.event_loop.bounded_tls import AcceptedTls
from stratalog.event_loop.tls_sessions import ServerContext
from stratalog.machines.rights.members import why_not_dialled, why_not_of_cluster, why_not_own
from stratalog.model.errors import InvalidRequest
from stratalog.model.members import Member, Part
from stratalog.model.rights import Principal
from stratalog.settings.choices import ClientAuth, PortProtocol
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog.tls.contexts import (
    MembersContext,
    TlsRules,
    check_times,
    client_context,
    expires,
    now_utc,
    server_context,
)
from stratalog.tls.material import TlsFiles, TlsMaterial
from stratalog.tls.subjects import member_of, member_of_chain

POLL_S: Final = 5.0

log = logger(__name__)


@dataclass(slots=True)
class TlsStats:
    reloads: int = counter("Changed certificates that were taken into use.")
    rejected: int = counter("Changed certificates that could not be used.")
    is_rejected: int = gauge(
        "1 while the files hold a certificate that cannot be used, and an earlier one stays in use."
    )
    expires_ms: int = gauge("Time at which the certificate in use expires, since 1970; 0 without one.")


def tls_files(settings: ProcessSettings) -> TlsFiles:
    return TlsFiles(settings.ssl_certificate_folder, settings.ssl_keystore_location, settings.ssl_truststore_location)


def tls_rules(settings: ProcessSettings) -> TlsRules:
    """Of Kafka listeners without SASL. Raises: InvalidRequest."""
    versions = tuple(one.strip() for one in settings.ssl_enabled_protocols.split(","))
    ciphers = settings.ssl_cipher_suites
    return TlsRules(settings.ssl_client_auth, takes_clients=True, versions=versions, cipher_suites=ciphers)


def _rules_of_members(settings: ProcessSettings, client_auth: ClientAuth, asked_by: str) -> TlsRules:
    """Of ports at which members prove who they are: an authority of clients must not name one."""
    return replace(tls_rules(settings), client_auth=client_auth, asked_by=asked_by, takes_clients=False)


def login_rules(settings: ProcessSettings) -> TlsRules:
    """Of Kafka listeners with SASL, whose clients show no certificate: as in Kafka, where `ssl.client.auth` without a
    listener's prefix is about SSL alone. Raises: InvalidRequest."""
    return replace(tls_rules(settings), client_auth=ClientAuth.NONE)


def http_rules(settings: ProcessSettings) -> TlsRules | None:
    """Of HTTP ports; None: they speak plain text. Raises: InvalidRequest."""
    if settings.http_security_protocol is not PortProtocol.SSL:
        return None
    return _rules_of_members(settings, settings.http_ssl_client_auth, "http.ssl.client.auth")


def internal_rules(settings: ProcessSettings) -> TlsRules | None:
    """Of the listener through which nodes reach each other; None: it speaks plain text. Raises: InvalidRequest."""
    if settings.security_inter_broker_protocol is not PortProtocol.SSL:
        return None
    return _rules_of_members(settings, ClientAuth.REQUIRED, "security.inter.broker.protocol=SSL")


def identity_of(settings: ProcessSettings, part: Part, node_id: int | None = None) -> TlsIdentity | None:
    """Of a process; None where the settings name no certificates. Blocking. Raises: InvalidRequest for certificates
    that cannot be used, or are another process's."""
    ports = [one for one in (http_rules(settings), internal_rules(settings)) if one is not None]
    is_serving = bool(ports) or any(one.is_tls for one in settings.security_protocols.values())
    files = tls_files(settings)
    if not is_serving and files == TlsFiles():
        return None
    is_needed = part is Part.NODE and settings.security_inter_broker_protocol is PortProtocol.SSL
    return TlsIdentity(
        files,
        tls_rules(settings),
        servers=[tls_rules(settings), login_rules(settings), *ports] if is_serving else [],
        why_not=lambda own: why_not_own(own, part, node_id, is_needed=is_needed),
    )


class TlsIdentity:
    """Invariant: all contexts are of the same usable material, which names the same member as at the start."""

    def __init__(
        self,
        files: TlsFiles,
        rules: TlsRules,
        *,
        servers: Iterable[TlsRules] | None = None,
        why_not: Callable[[Member | None], str | None] = lambda own: None,
        now: Callable[[], datetime] = now_utc,
    ) -> None:
        """`servers`: the rules of each kind of port that this process serves; by default those of `rules` alone.
        `why_not` says what is wrong with the member that its certificate names. Reads the files: blocking.
        Raises: InvalidRequest for what cannot be used."""
        self.stats = TlsStats()
        self._files = files
        self._rules = rules
        self._server_rules = tuple(servers) if servers is not None else (rules,)
        self._why_not = why_not
        self._now = now
        self._trouble = ""
        self._material = files.read()
        try:
            self.member = member_of_chain(self._material.chain) if self._material.chain else None
            """As which its certificate names this process."""
        except InvalidRequest as error:
            raise InvalidRequest(f"{error} ({files})") from None
        self._servers: dict[TlsRules, ServerContext] = {}
        self._to_members: dict[tuple[Part, int | None], ssl.SSLContext] = {}
        self._client: ssl.SSLContext
        self._members: MembersContext | None = None
        """None for a process that is not a member, or trusts no authority."""
        self._use(self._material)

    @property
    def material(self) -> TlsMaterial:
        """What is in use; another object once it was renewed."""
        return self._material

    @property
    def server(self) -> ServerContext:
        """For the next connection that a Kafka listener without SASL accepts."""
        return self.serving(self._rules)

    def serving(self, rules: TlsRules) -> ServerContext:
        """For the next connection that a port of these rules accepts."""
        return self._servers[rules]

    def streaming(self, rules: TlsRules) -> ServerContext:
        """As `serving`, for ports whose transports are those of asyncio or uvloop, and for them alone: what clients
        send without any data is bounded there."""
        context = self._servers[rules]
        context.sslobject_class = AcceptedTls
        return context

    @property
    def client(self) -> ssl.SSLContext:
        """For the next connection to another process."""
        return self._client

    def to(self, part: Part, node_id: int | None = None) -> ssl.SSLContext:
        """For the next connection to a member of this part, and to that node where one is named. A process that is a
        member itself knows others by the members that their certificates name, another one by the names of their
        hosts. Raises: InvalidRequest for a member that trusts no authority."""
        own = self.member
        if own is None:
            return self._client
        wanted = part, node_id
        known = self._to_members.get(wanted)
        if known is None:
            members = self._members or self._members_context(self._material)  # which says why there is none
            known = self._to_members[wanted] = members.to(partial(_why_not_dialled, own, part, node_id))
        return known

    def to_node(self, node_id: int) -> ssl.SSLContext:
        return self.to(Part.NODE, node_id)

    def principal_of(self, certificate: bytes) -> Principal | None:
        """The member of this cluster that a verified certificate (DER) names; None where it names none, or another
        cluster's."""
        try:
            shown = member_of(certificate)
        except InvalidRequest:
            return None
        own = self.member
        is_ours = own is not None and shown is not None and why_not_of_cluster(own, shown) is None
        return shown.principal if is_ours and shown is not None else None

    async def watch(self) -> None:
        """Reads the files again, in a thread, until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Take into use what the files hold now, if it is usable and new. Blocking."""
        try:
            material = self._files.read()
            if material != self._material:
                self._use(material)
                self.stats.reloads += 1
                log.info("a new certificate is in use", expires_s=self.stats.expires_ms // 1_000)
        except InvalidRequest as error:
            self._refuse(str(error))
            return
        self._trouble, self.stats.is_rejected = "", 0

    def _refuse(self, trouble: str) -> None:
        """Once for each reason; it is tried again each time, as times may only have to come."""
        self.stats.is_rejected = 1
        if trouble != self._trouble:
            self._trouble = trouble
            self.stats.rejected += 1
            log.error("the changed certificate cannot be used; the earlier one stays in use", reason=trouble)

    def _use(self, material: TlsMaterial) -> None:
        """All of it, or nothing. Raises: InvalidRequest."""
        try:
            self._check(material)
            servers = {rules: server_context(material, rules) for rules in self._server_rules}
            client = client_context(material, self._rules)
        except InvalidRequest as error:
            raise InvalidRequest(f"{error} ({self._files})") from None
        # A member that has trusted authorities does not come to trust none.
        is_needed = self.member is not None and (material.authorities or self._members is not None)
        members = self._members_context(material) if is_needed else None
        self._material, self._servers, self._client, self._members = material, servers, client, members
        self._to_members = {}
        end = expires(self._material)
        self.stats.expires_ms = int(end.timestamp()) * 1_000 if end is not None else 0

    def _members_context(self, material: TlsMaterial) -> MembersContext:
        try:
            return MembersContext(material, self._rules)
        except InvalidRequest as error:
            raise InvalidRequest(f"{error} ({self._files})") from None

    def _check(self, material: TlsMaterial) -> None:
        if material.chain:
            check_times(material, self._now())
        own = member_of_chain(material.chain) if material.chain else None
        if (why := self._why_not(own)) is not None:
            raise InvalidRequest(why)
        if own != self.member:
            raise InvalidRequest(
                f"the changed certificate names {own or 'no member of a cluster'}, and this process is "
                f"{self.member or 'none'}: restart it if that is intended"
            )


def meta_context(material: TlsMaterial) -> ssl.SSLContext:
    """For connections of a member that has its certificate from elsewhere than files to the meta service of its
    cluster. Raises: InvalidRequest for what cannot be used."""
    check_times(material, now_utc())
    own = member_of_chain(material.chain)
    if own is None:
        raise InvalidRequest("the certificate names no member of a cluster")
    return MembersContext(material, TlsRules()).to(partial(_why_not_dialled, own, Part.META, None))


def _why_not_dialled(own: Member, part: Part, node_id: int | None, certificate: bytes) -> str | None:
    try:
        shown = member_of(certificate)
    except InvalidRequest as error:
        return str(error)
    return why_not_dialled(own, shown, part, node_id)

"""What `cluster start --secure` makes of certificates and secrets, once, in DIR/security:

    authority/ca.crt, ca.key     the cluster's own authority
    node-1/tls.crt, tls.key, …   a certificate for each node, each instance of the meta service, and the UI (page)
    operator/tls.crt, …          what commands show to them; no part of the cluster reads it
    etcd-authority/ca.crt, …     another authority, for etcd alone: no node and no client is let in there
    etcd-1/tls.crt, …            for each member of etcd, and for its clients (etcd-client)
    token                        what people log in to the UI with
    roles                        its hash, with the role of a viewer, for the HTTP ports of the parts
    admin.properties             how the user `admin` logs in, for Java's tools and our commands
    admin.conf                   the same for librdkafka and kcat
    admin.new                    there until the user exists in the metadata

Only its owner can read the folder. What is there is kept; `make` renews certificates within a month of their end.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from stratalog.connect.client_settings import read_client_settings
from stratalog.machines.sasl.scram import credential_from
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.rights_commands import AlterCredentials
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.roles import Role as TokenRole
from stratalog.model.scram import LEAST_ITERATIONS, ScramMechanism, UserCredential
from stratalog.model.tokens import NamedToken, Token, digest_of, hashed_line
from stratalog.telemetry.http_tls import PortTls
from stratalog.telemetry.token_file import TokenFile
from stratalog.tls.authority import (
    Authority,
    Holder,
    client_holder,
    load_certificate,
    meta_holder,
    node_holder,
    operator_holder,
)
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog.tls.outgoing import ClientTls
from stratalog.tls.subjects import member_of
from stratalog_cli.cluster.plan import (
    ADMIN_USER,
    AUTHORITY_FOLDER,
    CLIENT_FILE,
    ETCD_AUTHORITY_FOLDER,
    ETCD_CLIENT,
    HOST,
    MECHANISMS_SETTING,
    OPERATOR,
    PAGE,
    ROLES_FILE,
    SECURITY_FOLDER,
    TOKEN_FILE,
    Choices,
    Part,
    Plan,
    Role,
)
from stratalog_cli.security.certificate_folder import (
    AUTHORITY_CERTIFICATE,
    CERTIFICATE,
    read_authority,
    read_file,
    write_authority,
    write_holder,
    write_private,
)
from stratalog_cli.security.passwords import generated_password, salted_password

_HOSTS: Final = (HOST, "localhost", "::1")
_LIBRDKAFKA_FILE: Final = "admin.conf"
_NEW_ADMIN_FILE: Final = "admin.new"
_VALID: Final = timedelta(days=365)
_AUTHORITY_VALID: Final = timedelta(days=3650)
_RENEWED_BEFORE: Final = timedelta(days=30)
_TOKEN_BYTES: Final = 32
_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.2
_MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
_PLAIN: Final = "PLAIN"
_UI_NAME: Final = "ui"
"""How the audit log names whoever shows the token."""
_JAAS: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


class SecureFiles:
    def __init__(self, directory: Path) -> None:
        self.folder = directory / SECURITY_FOLDER

    @property
    def token_file(self) -> Path:
        return self.folder / TOKEN_FILE

    @property
    def client_file(self) -> Path:
        return self.folder / CLIENT_FILE

    @property
    def librdkafka_file(self) -> Path:
        return self.folder / _LIBRDKAFKA_FILE

    def make(self, plan: Plan) -> list[str]:
        """What is missing, and the certificates that end soon. Returns the names of those that were renewed.
        Blocking. Raises: Unavailable, InvalidRequest for files that cannot be used."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_authority(AUTHORITY_FOLDER)
        if plan.choices.etcd_has_tls:
            self._make_authority(ETCD_AUTHORITY_FOLDER)
        if not self.token_file.exists():
            token = secrets.token_hex(_TOKEN_BYTES)
            write_private(self.token_file, token.encode() + b"\n", is_replacing=False)
        if plan.choices.parts_have_tls:
            self._write_roles()
        if not self.client_file.exists():
            self._make_client(plan)
        return [name for name, holder, by in _certificates(plan) if self._make_certificate(name, holder, by)]

    def _write_roles(self) -> None:
        """Parts never see the token itself: with the hash they take it for a viewer's, and cannot show it elsewhere."""
        text = _lines(
            hashed_line(replace(one, role=TokenRole.VIEWER)) for one in page_tokens(TokenFile(self.token_file))
        )
        path = self.folder / ROLES_FILE
        if not path.exists() or read_file(path) != text:
            write_private(path, text, is_replacing=True)

    def _make_authority(self, name: str) -> None:
        if not (self.folder / name / AUTHORITY_CERTIFICATE).exists():
            write_authority(self.folder / name, Authority.create(str(uuid.uuid4()), _AUTHORITY_VALID, _now()))

    def _make_certificate(self, name: str, holder: Holder, by: str) -> bool:
        """Where it is missing, or ends soon. Returns whether there was one that was renewed."""
        authority = read_authority(self.folder / by)
        folder, now = self.folder / name, _now()
        is_renewal = (folder / CERTIFICATE).exists()
        if is_renewal:
            known = read_file(folder / CERTIFICATE)
            if load_certificate(known).not_valid_after_utc > now + _RENEWED_BEFORE:
                return False
            issued = authority.renew(known, _VALID, now)
        else:
            issued = authority.issue(holder, _VALID, now)
        write_holder(folder, issued, authority, is_replacing=True, is_renewal=is_renewal)
        return is_renewal

    def page_tls(self) -> tuple[TlsIdentity, PortTls]:
        """Of the cluster UI, whose browsers show no certificate; with what reads its files again. Blocking."""
        rules = TlsRules()
        identity = TlsIdentity(TlsFiles(str(self.folder / PAGE)), rules)
        return identity, PortTls(lambda: identity.streaming(rules), lambda: None, member_of)

    def _make_client(self, plan: Plan) -> None:
        password, authority = generated_password(), self.folder / AUTHORITY_FOLDER / AUTHORITY_CERTIFICATE
        common = (f"bootstrap.servers={plan.bootstrap}", "security.protocol=SASL_SSL")
        scram = f"sasl.mechanism={_MECHANISM.mechanism_name}"
        has_plain = _PLAIN in plan.choices.settings.get(MECHANISMS_SETTING, "").split(",")
        java = (
            *common,
            scram,
            f'sasl.jaas.config={_JAAS} required username="{ADMIN_USER}" password="{password}";',
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={authority}",
        )
        librdkafka = (
            *common,
            # librdkafka before 2.6.1, as kcat of Debian 12 has it, cannot log in by SCRAM. TLS protects PLAIN.
            f"sasl.mechanism={_PLAIN}" if has_plain else scram,
            f"sasl.username={ADMIN_USER}",
            f"sasl.password={password}",
            f"ssl.ca.location={authority}",
        )
        write_private(self.folder / _NEW_ADMIN_FILE, b"", is_replacing=True)
        write_private(self.librdkafka_file, _lines(librdkafka), is_replacing=True)
        write_private(self.client_file, _lines(java), is_replacing=False)  # last: with it all is made

    async def create_admin(self, meta_urls: str, token: Token | None, tls: ClientTls | None) -> None:
        """Where no start has done so yet. It is repeated after a lost answer, because the user is new.

        Raises: what the meta service says; Unavailable when no instance of it leads in time.
        """
        pending = self.folder / _NEW_ADMIN_FILE
        if not pending.exists():
            return
        password = read_client_settings(self.client_file, {}).password
        salted = await asyncio.to_thread(salted_password, password, _MECHANISM, LEAST_ITERATIONS)
        kept = credential_from(_MECHANISM, salted.salted, salted.salt, salted.iterations)
        client = HttpMetaClient(meta_urls, token=token, tls=tls)
        try:
            await _put(client, UserCredential(ADMIN_USER, _MECHANISM, kept))
        finally:
            await client.close()
        pending.unlink()


def page_tokens(tokens: TokenFile) -> tuple[NamedToken, ...]:
    """What opens the cluster UI, with the role that it has there: pages show records, and change nothing."""
    return tuple(NamedToken(_UI_NAME, TokenRole.OPERATOR, digest_of(one.encode())) for one in tokens.all())


def _certificates(plan: Plan) -> Iterator[tuple[str, Holder, str]]:
    """The folder of each certificate, its holder, and the folder of the authority that issues it."""
    choices = plan.choices
    for part in plan.parts:
        holder = _holder(part, choices)
        if holder is not None:
            yield part.name, holder, ETCD_AUTHORITY_FOLDER if part.role is Role.ETCD else AUTHORITY_FOLDER
    if choices.parts_have_tls:
        yield PAGE, Holder(PAGE, _HOSTS), AUTHORITY_FOLDER
        yield OPERATOR, operator_holder(()), AUTHORITY_FOLDER
    if choices.etcd_has_tls:
        yield ETCD_CLIENT, client_holder(ETCD_CLIENT), ETCD_AUTHORITY_FOLDER


def _holder(part: Part, choices: Choices) -> Holder | None:
    """None for a part that speaks no TLS."""
    match part.role:
        case Role.NODE:
            return node_holder(part.number, _HOSTS)
        case Role.META:
            return meta_holder(_HOSTS) if choices.parts_have_tls else None
        case Role.ETCD:
            return Holder(part.name, _HOSTS) if choices.etcd_has_tls else None


async def _put(client: HttpMetaClient, credential: UserCredential) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_S
    while True:
        try:
            (error,) = await client.perform(AlterCredentials(put=(credential,)))
        except (Unavailable, OutcomeUnknown):
            if loop.time() > deadline:
                raise
            await asyncio.sleep(_PAUSE_S)
            continue
        if error is not None:
            raise error
        return


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _now() -> datetime:
    return datetime.now(UTC)

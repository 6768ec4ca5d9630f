"""What `cluster start --secure` makes of certificates and secrets, once, in DIR/security:

    authority/ca.crt, ca.key     the cluster's own authority
    node-1/tls.crt, tls.key, …   a certificate for each node, renewed by a start within a month of its end
    token                        what HTTP ports ask for
    admin.properties             how the user `admin` logs in, for Java's tools and our commands
    admin.conf                   the same for librdkafka and kcat
    admin.new                    there until the user exists in the metadata

Only its owner can read the folder. What is there is kept.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from stratalog.machines.sasl.scram import credential_from
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.rights_commands import AlterCredentials
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.scram import LEAST_ITERATIONS, ScramMechanism, UserCredential
from stratalog.model.tokens import Token
from stratalog.tls.authority import Authority, load_certificate, node_holder
from stratalog_cli.cluster.plan import ADMIN_USER, CLIENT_FILE, HOST, SECURITY_FOLDER, TOKEN_FILE, Part
from stratalog_cli.connect.client_settings import read_client_settings
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

_AUTHORITY: Final = "authority"
_LIBRDKAFKA_FILE: Final = "admin.conf"
_NEW_ADMIN_FILE: Final = "admin.new"
_VALID: Final = timedelta(days=365)
_AUTHORITY_VALID: Final = timedelta(days=3650)
_RENEWED_BEFORE: Final = timedelta(days=30)
_TOKEN_BYTES: Final = 32
_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.2
_MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
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

    def make(self, nodes: Iterable[Part], bootstrap: str) -> None:
        """What is missing. Blocking. Raises: Unavailable, InvalidRequest for files that cannot be used."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / _AUTHORITY / AUTHORITY_CERTIFICATE).exists():
            authority = Authority.create(str(uuid.uuid4()), _AUTHORITY_VALID, _now())
            write_authority(self.folder / _AUTHORITY, authority)
        if not self.token_file.exists():
            token = secrets.token_hex(_TOKEN_BYTES)
            write_private(self.token_file, token.encode() + b"\n", is_replacing=False)
        if not self.client_file.exists():
            self._make_client(bootstrap)
        for part in nodes:
            self.make_certificate(part)

    def make_certificate(self, node: Part) -> None:
        """Where it is missing, or ends soon."""
        authority = read_authority(self.folder / _AUTHORITY)
        folder, now = self.folder / node.name, _now()
        if (folder / CERTIFICATE).exists():
            known = read_file(folder / CERTIFICATE)
            if load_certificate(known).not_valid_after_utc > now + _RENEWED_BEFORE:
                return
            issued = authority.renew(known, _VALID, now)
        else:
            issued = authority.issue(node_holder(node.number, (HOST, "localhost", "::1")), _VALID, now)
        write_holder(folder, issued, authority, is_replacing=True)

    def _make_client(self, bootstrap: str) -> None:
        password, authority = generated_password(), self.folder / _AUTHORITY / AUTHORITY_CERTIFICATE
        common = ("security.protocol=SASL_SSL", f"sasl.mechanism={_MECHANISM.mechanism_name}")
        java = (
            f"bootstrap.servers={bootstrap}",
            *common,
            f'sasl.jaas.config={_JAAS} required username="{ADMIN_USER}" password="{password}";',
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={authority}",
        )
        librdkafka = (
            f"bootstrap.servers={bootstrap}",
            *common,
            f"sasl.username={ADMIN_USER}",
            f"sasl.password={password}",
            f"ssl.ca.location={authority}",
        )
        write_private(self.folder / _NEW_ADMIN_FILE, b"", is_replacing=True)
        write_private(self.librdkafka_file, _lines(librdkafka), is_replacing=True)
        write_private(self.client_file, _lines(java), is_replacing=False)  # last: with it all is made

    async def create_admin(self, meta_urls: str, token: Token | None) -> None:
        """Where no start has done so yet. It is repeated after a lost answer, because the user is new.

        Raises: what the meta service says; Unavailable when no instance of it leads in time.
        """
        pending = self.folder / _NEW_ADMIN_FILE
        if not pending.exists():
            return
        password = read_client_settings(self.client_file, {}).password
        salted = await asyncio.to_thread(salted_password, password, _MECHANISM, LEAST_ITERATIONS)
        kept = credential_from(_MECHANISM, salted.salted, salted.salt, salted.iterations)
        await _put(meta_urls, token, UserCredential(ADMIN_USER, _MECHANISM, kept))
        pending.unlink()


async def _put(meta_urls: str, token: Token | None, credential: UserCredential) -> None:
    client, loop = HttpMetaClient(meta_urls, token=token), asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_S
    try:
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
    finally:
        await client.close()


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _now() -> datetime:
    return datetime.now(UTC)

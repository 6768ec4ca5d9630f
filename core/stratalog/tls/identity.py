"""The certificate of this process, as it is now: new connections use what was read last and was found usable.

A file that changed is read within `POLL_S`. What cannot be used (no key for it, expired, not valid yet, cut off) is
refused: the certificate that was used before stays, and a counter, a gauge and a log line say so.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stratalog.model.errors import InvalidRequest
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog.tls.contexts import TlsRules, check_times, client_context, expires, now_utc, server_context
from stratalog.tls.material import TlsFiles, TlsMaterial

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
    """Raises: InvalidRequest."""
    versions = tuple(one.strip() for one in settings.ssl_enabled_protocols.split(","))
    return TlsRules(settings.ssl_client_auth, versions, settings.ssl_cipher_suites)


class TlsIdentity:
    """Invariant: `server` and `client` are contexts of the same usable material."""

    def __init__(
        self, files: TlsFiles, rules: TlsRules, *, is_server: bool = True, now: Callable[[], datetime] = now_utc
    ) -> None:
        """Reads the files: blocking. Raises: InvalidRequest for what cannot be used."""
        self.stats = TlsStats()
        self._files = files
        self._rules = rules
        self._is_server = is_server
        self._now = now
        self._material = files.read()
        self._trouble = ""
        self._server, self._client = self._contexts(self._material)
        self._note_expiry()

    @property
    def server(self) -> ssl.SSLContext:
        """For the next connection that is accepted."""
        assert self._server is not None, "this process has no certificate to serve with"
        return self._server

    @property
    def client(self) -> ssl.SSLContext:
        """For the next connection to another process."""
        return self._client

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
                self._server, self._client = self._contexts(material)
                self._material = material
                self.stats.reloads += 1
                self._note_expiry()
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

    def _contexts(self, material: TlsMaterial) -> tuple[ssl.SSLContext | None, ssl.SSLContext]:
        if material.chain:
            check_times(material, self._now())
        server = server_context(material, self._rules) if self._is_server else None
        return server, client_context(material, self._rules)

    def _note_expiry(self) -> None:
        end = expires(self._material)
        self.stats.expires_ms = int(end.timestamp()) * 1_000 if end is not None else 0

"""Contexts of servers that keep no sessions: no client resumes one, and shows no certificate.

OpenSSL keeps 20,480 sessions of TLS 1.2 for each context, with all certificates that their clients have shown: 9 KiB
each, and 390 KiB where a client shows 30 KiB of certificates. `ssl` has no call against it. So a connection that is not
of TLS 1.3 begins with a context of its own, whose sessions end with it. Once its hello is read, it continues with the
certificate and the authorities of the one that all share.
"""

from __future__ import annotations

import ssl
from typing import Self


class ServerContext(ssl.SSLContext):
    def __new__(cls) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def is_safe_for(self, *, offers_1_3: bool) -> bool:
        """Whether a client that does or does not offer TLS 1.3 leaves no session here."""
        return offers_1_3 and self.maximum_version >= ssl.TLSVersion.TLSv1_3

    def wrap_alone(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """For one connection, whose sessions end with it. Cost: 120 us and 14 KiB."""
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.options = self.options
        own.minimum_version, own.maximum_version = self.minimum_version, self.maximum_version
        own.verify_mode = self.verify_mode
        own.sslobject_class = self.sslobject_class
        own.sni_callback = self._take_over
        made = own.wrap_bio(incoming, outgoing, server_side=True)
        made.began_with = own  # type: ignore[attr-defined]  # OpenSSL keeps a bare pointer to it
        return made

    def _take_over(self, tls: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _own: ssl.SSLContext) -> None:
        """OpenSSL calls it for each hello, with a name of a server or without."""
        tls.context = self

"""How a store's etcd is reached: in the open or by TLS, with or without a user. Secrets come from files and the
environment only, and no text that is made here shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from stratalog.model.errors import InvalidRequest

PASSWORD_VARIABLE: Final = "STRATALOG_ETCD_PASSWORD"
CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),  # pages are bounded by their number of keys
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A pod that comes back has another address under its name; half a minute, as it is otherwise, is long for a lead.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


@dataclass(frozen=True, slots=True)
class AccessFiles:
    """Where what etcd asks for lies; None for what it does not ask."""

    user: str | None = None
    password: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """By default: in the open, without a user."""

    user: str | None = None
    password: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)
    """PEM; with it all goes over TLS, and members must prove themselves by it."""
    certificate: bytes | None = field(default=None, repr=False)
    """PEM, with its key, where members ask who connects."""
    key: bytes | None = field(default=None, repr=False)
    files: AccessFiles | None = field(default=None, compare=False)
    """From where it was read."""

    def channel(self, member: str) -> grpc.aio.Channel:
        """To one member, for the event loop."""
        if self.ca is None:
            return grpc.aio.insecure_channel(member, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(member, self._credentials(), options=CHANNEL_OPTIONS)

    def blocking_channel(self, member: str) -> grpc.Channel:
        """To one member, for a thread."""
        if self.ca is None:
            return grpc.insecure_channel(member, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(member, self._credentials(), options=CHANNEL_OPTIONS)

    def _credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def read_access(files: AccessFiles, environment: Mapping[str, str]) -> EtcdAccess:
    """Raises InvalidRequest: what is missing, or a file that cannot be read; never what is in it."""
    password = environment.get(PASSWORD_VARIABLE, "")
    if files.password is not None:
        password = _read(files.password, "--etcd-password-file").decode("utf-8", "replace").rstrip("\r\n")
    if (files.user is not None) != bool(password):
        raise InvalidRequest(
            "etcd's user and password go together: name --etcd-user, and give its password by --etcd-password-file "
            f"or {PASSWORD_VARIABLE}"
        )
    if (files.certificate is None) != (files.key is None):
        raise InvalidRequest("a client's certificate and its key go together: name --etcd-cert and --etcd-key")
    if files.certificate is not None and files.ca is None:
        raise InvalidRequest("a client's certificate is for TLS: name --etcd-ca, by which the members prove themselves")
    return EtcdAccess(
        files.user,
        password,
        _pem(files.ca, "--etcd-ca"),
        _pem(files.certificate, "--etcd-cert"),
        _pem(files.key, "--etcd-key"),
        files,
    )


def _pem(path: Path | None, option: str) -> bytes | None:
    if path is None:
        return None
    found = _read(path, option)
    if b"-----BEGIN " not in found:
        raise InvalidRequest(f"{option} {path}: it has no PEM block (-----BEGIN ...): name the right file")
    return found


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{option} {path}: cannot be read ({error.strerror}): see to the file") from None

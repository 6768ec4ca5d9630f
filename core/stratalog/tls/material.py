"""A private key with its certificates, and the authorities that are trusted: PEM texts from files.

A Kubernetes Secret is a folder whose files are links by way of `..data`, which is replaced as a whole: all files are
read from the folder that it names at one moment, so that a key never meets the certificate of another version.
Blocking for as long as the disk is.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from stratalog.model.errors import InvalidRequest

MOST_FILE_BYTES: Final = 1 << 20
_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
_CLIENT_AUTHORITIES: Final = "clients-ca.crt"
_OF_SECRET: Final = "..data"
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM texts. A process without a certificate of its own has only authorities."""

    chain: bytes = b""
    """Its own certificate, and those that lead to an authority."""
    key: bytes = field(default=b"", repr=False)
    authorities: bytes = b""
    """Whose certificates are trusted; empty: those of the system."""
    client_authorities: bytes = b""
    """Whose certificates clients may show at Kafka listeners, too. No member of the cluster is known by them."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where they are: a folder with `tls.crt`, `tls.key`, and perhaps `ca.crt` and `clients-ca.crt`, or Kafka's PEM
    files. A folder with `ca.crt` alone is enough for a process that shows no certificate.

    `keystore` holds the key and the certificates, `truststore` the authorities; where both a folder and one of these
    are given, the file counts.
    """

    folder: str = ""
    keystore: str = ""
    truststore: str = ""
    certificate: str = ""
    """With `key`, in place of `keystore`."""
    key: str = ""
    named_by: str = "ssl.certificate.folder, ssl.keystore.location and ssl.truststore.location"
    """The settings that they are from, for errors."""

    def __str__(self) -> str:
        paths = filter(None, (self.folder, self.keystore, self.certificate, self.key, self.truststore))
        return f"in {', '.join(paths)}; {self.named_by}"

    def read(self) -> TlsMaterial:
        """Raises: InvalidRequest with the file and what is wrong with it."""
        for left in reversed(range(_TRIES)):
            try:
                return self._read()
            except FileNotFoundError as missing:
                # A Secret was replaced between two reads: its new folder has all files.
                if not left:
                    raise InvalidRequest(f"{missing.filename} does not exist; check {self.named_by}") from None
        raise AssertionError

    def _read(self) -> TlsMaterial:
        chain = key = authorities = client_authorities = b""
        read = partial(_read_file, named_by=self.named_by)
        if self.folder:
            folder = _version(Path(self.folder))
            has_authorities = (folder / _AUTHORITIES).exists()
            if not has_authorities or (folder / _CERTIFICATE).exists() or (folder / _KEY).exists():
                chain, key = read(folder / _CERTIFICATE), read(folder / _KEY)
            if has_authorities:
                authorities = read(folder / _AUTHORITIES)
            if (folder / _CLIENT_AUTHORITIES).exists():
                client_authorities = read(folder / _CLIENT_AUTHORITIES)
        if self.keystore:
            chain = key = read(Path(self.keystore))
        if self.certificate:
            chain, key = read(Path(self.certificate)), read(Path(self.key))
        if self.truststore:
            authorities = read(Path(self.truststore))
        return TlsMaterial(chain, key, authorities, client_authorities)


def _version(folder: Path) -> Path:
    """The folder that a Secret's links lead to now."""
    try:
        return folder / os.readlink(folder / _OF_SECRET)
    except OSError:
        return folder


def _read_file(path: Path, named_by: str) -> bytes:
    """Raises: FileNotFoundError; InvalidRequest."""
    try:
        # A pipe would be waited for: only a file is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"{path} is not a file; check {named_by}")
            data = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror}); check {named_by}") from None
    if len(data) > MOST_FILE_BYTES:
        raise InvalidRequest(
            f"{path} is larger than {MOST_FILE_BYTES} bytes, so it holds no certificates; check {named_by}"
        )
    return data

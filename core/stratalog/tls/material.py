"""A private key with its certificates, and the authorities that are trusted: PEM texts from files.

A Kubernetes Secret is a folder whose files are links by way of `..data`, which is replaced as a whole: all files are
read from the folder that it names at one moment, so that a key never meets the certificate of another version.
Blocking for as long as the disk is.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stratalog.model.errors import InvalidRequest

MOST_FILE_BYTES: Final = 1 << 20
_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
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


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where they are: a folder with `tls.crt`, `tls.key` and perhaps `ca.crt`, or Kafka's PEM files.

    `keystore` holds the key and the certificates, `truststore` the authorities; where both a folder and one of these
    are given, the file counts.
    """

    folder: str = ""
    keystore: str = ""
    truststore: str = ""

    def read(self) -> TlsMaterial:
        """Raises: InvalidRequest with the file and what is wrong with it."""
        for left in reversed(range(_TRIES)):
            try:
                return self._read()
            except FileNotFoundError as missing:
                # A Secret was replaced between two reads: its new folder has all files.
                if not left:
                    raise InvalidRequest(f"{missing.filename} does not exist; {_WHERE}") from None
        raise AssertionError

    def _read(self) -> TlsMaterial:
        chain = key = authorities = b""
        if self.folder:
            folder = _version(Path(self.folder))
            chain, key = _read_file(folder / _CERTIFICATE), _read_file(folder / _KEY)
            if (folder / _AUTHORITIES).exists():
                authorities = _read_file(folder / _AUTHORITIES)
        if self.keystore:
            chain = key = _read_file(Path(self.keystore))
        if self.truststore:
            authorities = _read_file(Path(self.truststore))
        return TlsMaterial(chain, key, authorities)


_WHERE: Final = "check ssl.certificate.folder, ssl.keystore.location and ssl.truststore.location"


def _version(folder: Path) -> Path:
    """The folder that a Secret's links lead to now."""
    try:
        return folder / os.readlink(folder / _OF_SECRET)
    except OSError:
        return folder


def _read_file(path: Path) -> bytes:
    """Raises: FileNotFoundError; InvalidRequest."""
    try:
        # A pipe would be waited for: only a file is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"{path} is not a file; {_WHERE}")
            data = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror}); {_WHERE}") from None
    if len(data) > MOST_FILE_BYTES:
        raise InvalidRequest(f"{path} is larger than {MOST_FILE_BYTES} bytes, so it holds no certificates; {_WHERE}")
    return data

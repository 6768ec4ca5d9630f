"""Folders with certificates: of an authority (`ca.crt`, `ca.key`), and of a holder (`tls.crt`, `tls.key`, `ca.crt`), as
a Secret of Kubernetes has them.

Keys are for their owner alone (mode 0600), from the moment that their file exists; a renewed one can be read by
those who could read the earlier one. A key that is there is replaced only where the caller says so, and then whole: a
process that reads the folder meanwhile sees a key and a certificate that do not fit, refuses them, and reads again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stratalog.model.errors import AlreadyExists, InvalidRequest, NotFound, StratalogError, Unavailable
from stratalog.tls.authority import Authority, Issued

AUTHORITY_CERTIFICATE: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
_MOST_BYTES: Final = 1 << 20
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644


def write_authority(folder: Path, authority: Authority) -> None:
    """Raises: AlreadyExists, Unavailable."""
    require_none(folder, (AUTHORITY_KEY, AUTHORITY_CERTIFICATE), "create it in another directory")
    _make(folder, 0o700)
    _put(folder / AUTHORITY_KEY, authority.key, _PRIVATE, is_replacing=False)
    _put(folder / AUTHORITY_CERTIFICATE, authority.certificate, _PUBLIC, is_replacing=False)


def read_authority(folder: Path) -> Authority:
    """Raises: NotFound, InvalidRequest, Unavailable."""
    if not (folder / AUTHORITY_KEY).exists():
        raise NotFound(
            f"there is no authority in {folder}, as {AUTHORITY_KEY} is missing: name the directory of one, or "
            f"`stratalog certs create-authority {folder}` creates one"
        )
    certificate, key = read_file(folder / AUTHORITY_CERTIFICATE), read_file(folder / AUTHORITY_KEY)
    with named(folder):
        return Authority.load(certificate, key)


def write_holder(
    folder: Path, issued: Issued, authority: Authority, *, is_replacing: bool, is_renewal: bool = False
) -> None:
    """`is_renewal`: whoever could read the key before can read the new one. Raises: AlreadyExists unless
    `is_replacing`, Unavailable."""
    if not is_replacing:
        require_none(
            folder,
            (KEY, CERTIFICATE, AUTHORITY_KEY),
            "`stratalog certs renew` renews a certificate, --replace replaces it by another",
        )
    elif (folder / AUTHORITY_KEY).exists():
        raise AlreadyExists(f"{folder} is the directory of an authority: write the certificate to another one")
    _make(folder, 0o755)
    _put(folder / AUTHORITY_CERTIFICATE, authority.certificate, _PUBLIC, is_replacing=True)
    _put(folder / KEY, issued.key, _PRIVATE, is_replacing=is_replacing, keeps_access=is_renewal)
    _put(folder / CERTIFICATE, issued.certificate, _PUBLIC, is_replacing=is_replacing)


def require_none(folder: Path, names: tuple[str, ...], step: str) -> None:
    """Raises: AlreadyExists where one of these files is there."""
    if there := [name for name in names if os.path.lexists(folder / name)]:
        raise AlreadyExists(f"{folder / there[0]} is there already, and nothing was written: {step}")


def read_file(path: Path) -> bytes:
    """Raises: NotFound, InvalidRequest, Unavailable."""
    try:
        with path.open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist") from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror})") from None
    if len(found) > _MOST_BYTES:
        raise InvalidRequest(f"{path} is larger than {_MOST_BYTES} bytes, so it holds no certificate")
    return found


@contextlib.contextmanager
def named(place: Path) -> Iterator[None]:
    """What is raised inside names the place."""
    try:
        yield
    except StratalogError as error:
        raise type(error)(f"{place}: {error}") from None


def write_private(path: Path, data: bytes, *, is_replacing: bool) -> None:
    """A file for its owner alone. Raises: AlreadyExists, Unavailable."""
    _put(path, data, _PRIVATE, is_replacing=is_replacing)


def _make(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be created ({error.strerror})") from None


def _put(path: Path, data: bytes, mode: int, *, is_replacing: bool, keeps_access: bool = False) -> None:
    """Whole, or not at all."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # for its owner alone
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), mode)
                if keeps_access:
                    _take_access(file.fileno(), path)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if is_replacing:
                os.replace(name, path)
            else:
                os.link(name, path)  # fails where the file is there
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    except FileExistsError:
        raise AlreadyExists(f"{path} is there already, and was not replaced") from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be written ({error.strerror})") from None


def _take_access(descriptor: int, path: Path) -> None:
    """Owner, group and the group's right to read, as the earlier file has them: root renews keys for the user that a
    node runs as. Where that may not be, the node says that it cannot read its key. A link has no say."""
    try:
        known = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(known.st_mode):
        return
    for owner in (known.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, owner, known.st_gid)
            os.fchmod(descriptor, _PRIVATE | (known.st_mode & stat.S_IRGRP))
            return

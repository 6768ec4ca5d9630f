"""Files of bearer tokens, read again when they change: those that a process accepts and shows (`TokenFile`), and named
ones with roles (`RoleFile`). If a file cannot be read again, or holds something else, the earlier tokens stay valid,
and a log line says why. So replacing a Secret locks no client out.
Cost: a `stat` a second at most. Any thread; blocking for as long as the file's disk is.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Final, Generic, TypeVar

from stratalog.model.errors import InvalidRequest
from stratalog.model.tokens import MAX_FILE_BYTES, NamedToken, parse_named_tokens, parse_tokens, require_others
from stratalog.telemetry.logs import logger

POLL_S: Final = 1.0
T = TypeVar("T", bound=Sized)

log = logger(__name__)


class _SecretFile(Generic[T]):
    """`parse` gets text and place, and raises InvalidRequest; `setting` names the file in messages."""

    def __init__(
        self,
        path: Path,
        parse: Callable[[str, str], T],
        setting: str,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises: InvalidRequest for a file that cannot be read, or used."""
        self._path = path
        self._parse = parse
        self._setting = setting
        self._steady_s = steady_s
        self._looked_s = steady_s()
        self._mark: tuple[int, int, int, int] | None = None
        self._trouble = ""
        self._tokens = self._read()

    def all(self) -> T:
        """Those that a server takes."""
        now_s = self._steady_s()
        if now_s - self._looked_s >= POLL_S:
            self._looked_s = now_s
            self._refresh()
        return self._tokens

    def _refresh(self) -> None:
        try:
            if _mark(os.stat(self._path)) == self._mark:
                self._trouble = ""
                return
            tokens = self._read()
        except (OSError, InvalidRequest) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning(
                    "the token file cannot be used; the tokens that were read before stay valid", reason=str(error)
                )
            return
        self._trouble = ""
        if tokens != self._tokens:
            self._tokens = tokens
            log.info("the token file has changed", path=str(self._path), count=len(tokens))

    def _read(self) -> T:
        try:
            # A pipe would be waited for: only a file is read.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise InvalidRequest(f"token file {self._path}: not a file")
                data = os.read(descriptor, MAX_FILE_BYTES + 1)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidRequest(
                f"token file {self._path} cannot be read ({why}): check {self._setting}, or --token-file"
            ) from None
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequest(f"token file {self._path} is larger than {MAX_FILE_BYTES} bytes: is it one?")
        try:
            tokens = self._parse(data.decode("ascii"), str(self._path))
        except UnicodeDecodeError:
            raise InvalidRequest(f"token file {self._path} holds other characters than a token has") from None
        self._mark = _mark(found)
        return tokens


class TokenFile(_SecretFile[tuple[str, ...]]):
    """The tokens of a cluster: its parts accept any, and show the first."""

    def __init__(self, path: Path, *, steady_s: Callable[[], float] = time.monotonic) -> None:
        """Raises: InvalidRequest for a file that cannot be read, or holds no token."""
        super().__init__(path, parse_tokens, "auth.token.file", steady_s)

    def first(self) -> str:
        """The one that a client shows."""
        return self.all()[0]


class RoleFile(_SecretFile[tuple[NamedToken, ...]]):
    """Named tokens with their roles; there may be none."""

    def __init__(self, path: Path, *, steady_s: Callable[[], float] = time.monotonic) -> None:
        """Raises: InvalidRequest for a file that cannot be read, or used."""
        super().__init__(path, parse_named_tokens, "auth.role.tokens.file", steady_s)


def token_file(path: str) -> TokenFile | None:
    """None where no path is given."""
    return TokenFile(Path(path)) if path else None


def role_file(path: str, cluster: TokenFile | None) -> RoleFile | None:
    """None where no path is given. Raises: InvalidRequest, also for a token of the cluster: with it, a role would limit
    nothing."""
    if not path:
        return None
    roles = RoleFile(Path(path))
    require_others(roles.all(), () if cluster is None else cluster.all(), path)
    return roles


def _mark(found: os.stat_result) -> tuple[int, int, int, int]:
    """What differs when a file was written, or another took its place."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

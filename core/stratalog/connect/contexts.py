"""Contexts: names for clusters, so that a command goes where its user means it to go.

They are kept in one file of the user's configuration (`contexts.json`, mode 0600), which holds addresses and the paths
of files with tokens and logins, never a token or a password. A file that cannot be read is an error, never an empty
list: a command must not fall back to whatever answers on the usual port.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from stratalog.connect.client_settings import VARIABLE as CLIENT_CONFIG_VARIABLE
from stratalog.model.errors import AlreadyExists, InvalidRequest, NotFound, StratalogError, Unavailable

CONTEXT_VARIABLE: Final = "STRATALOG_CONTEXT"
_MAX_FILE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Context:
    """Where one cluster is reached. What is None was not named."""

    name: str
    admin: str | None = None
    meta: str | None = None
    bootstrap: str | None = None
    token_file: str | None = None
    bucket: str | None = None
    """Of its object store; without credentials."""
    cluster: str | None = None
    """The cluster's id: a write that would reach another one is refused."""
    client_config: str | None = None
    """File with the settings by which Kafka clients log in."""
    certificate_folder: str | None = None
    """Folder with `ca.crt`, and perhaps a certificate: what is spoken with addresses of https://."""

    def as_json(self) -> dict[str, str]:
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of them by name, and which one is used where nothing else is said."""

    by_name: Mapping[str, Context]
    current: str | None = None

    def named(self, name: str) -> Context:
        """Raises: NotFound with the names that there are."""
        found = self.by_name.get(name)
        if found is None:
            there = ", ".join(sorted(self.by_name)) or "none yet: `stratalog context add NAME --admin HOST:PORT`"
            raise NotFound(f"there is no context {name!r}; there are: {there}")
        return found

    def chosen(self, environment: Mapping[str, str]) -> Context | None:
        """What STRATALOG_CONTEXT names, else the current one, else None. Raises: NotFound."""
        name = environment.get(CONTEXT_VARIABLE) or self.current
        return None if not name else self.named(name)

    def with_added(self, context: Context, *, is_replacing: bool) -> Contexts:
        """The first one is used from then on. Raises: InvalidRequest for a name, AlreadyExists for other addresses
        under a name that is there."""
        if _NAME.fullmatch(context.name) is None:
            raise InvalidRequest(f"context name {context.name!r:.80}: expected up to 63 letters, digits, or . _ -")
        known = self.by_name.get(context.name)
        if known is not None and not is_replacing and replace(known, cluster=None) != replace(context, cluster=None):
            raise AlreadyExists(f"context {context.name} exists already with other addresses: --replace overwrites it")
        return Contexts({**self.by_name, context.name: context}, self.current or context.name)

    def used(self, name: str) -> Contexts:
        return replace(self, current=self.named(name).name)

    def without(self, name: str) -> Contexts:
        self.named(name)
        left = {key: value for key, value in self.by_name.items() if key != name}
        return Contexts(left, None if self.current == name else self.current)


def contexts_file(environment: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/stratalog/contexts.json`, or in `~/.config`."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    home = Path(environment.get("HOME") or "/")
    return (Path(folder) if os.path.isabs(folder) else home / ".config") / "stratalog" / "contexts.json"


def read_contexts(file: Path) -> Contexts:
    """None of them where there is no file. Raises: Unavailable, InvalidRequest for what cannot be read."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts({})
    except OSError as error:
        raise Unavailable(f"{file}: cannot be read ({error.strerror}); give --admin, --meta or --bootstrap") from None
    try:
        if len(text) > _MAX_FILE_BYTES:
            raise ValueError("it is too long")
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidRequest(
            f"{file}: no list of contexts ({error}): correct it, or remove it and add them again"
        ) from None


def context_of(what: str, addresses: str, environment: Mapping[str, str]) -> Context | None:
    """The one in use, if all these addresses are of it: its login is sent there, and nowhere else. `what`: `admin`,
    `meta` or `bootstrap`. Where contexts cannot be read, the addresses are enough."""
    try:
        context = read_contexts(contexts_file(environment)).chosen(environment)
    except StratalogError:
        return None
    return context if context is not None and _has(context, what, addresses) else None


def place_of(
    what: str, addresses: str | None, name: str | None, environment: Mapping[str, str]
) -> tuple[str | None, Context | None]:
    """Addresses, and the context whose login is sent there. `name`: of the context that was asked for, whose addresses
    are the default; without it, the one in use counts if it has these addresses.

    Raises: NotFound; InvalidRequest for a context that has no such address, or others than those given."""
    if name is None:
        return addresses, None if addresses is None else context_of(what, addresses, environment)
    context = read_contexts(contexts_file(environment)).named(name)
    known = getattr(context, what)
    if known is None:
        raise InvalidRequest(f"context {name} names no {what} address: `stratalog context add {name} --replace …`")
    if addresses is not None and not _has(context, what, addresses):
        raise InvalidRequest(f"context {name} has other {what} addresses ({known}): its login is not sent to others")
    return addresses or known, context


def client_config(environment: Mapping[str, str], context: Context | None) -> str:
    """The file by which Kafka clients log in; empty: none. The environment goes before the context of the
    addresses."""
    return environment.get(CLIENT_CONFIG_VARIABLE, "") or ("" if context is None else context.client_config or "")


def _has(context: Context, what: str, addresses: str) -> bool:
    known: str | None = getattr(context, what)
    return known is not None and _single(addresses) <= _single(known)


def _single(addresses: str) -> set[str]:
    return {one.strip() for one in addresses.split(",")}


def _parsed(document: Any) -> Contexts:
    by_name = {name: Context(name=name, **fields) for name, fields in document["contexts"].items()}
    for context in by_name.values():
        if not all(isinstance(value, str) for value in context.as_json().values()):
            raise ValueError(f"context {context.name} holds something that is not text")
    current = document.get("current")
    return Contexts(by_name, current if current in by_name else None)


def write_contexts(file: Path, contexts: Contexts) -> None:
    """Whole, or not at all. Raises: Unavailable."""
    document = {
        "current": contexts.current,
        "contexts": {name: _fields(context) for name, context in sorted(contexts.by_name.items())},
    }
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")  # readable by its owner alone
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as opened:
                opened.write(json.dumps(document, indent=2) + "\n")
            os.replace(name, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise Unavailable(f"{file}: cannot be written ({error.strerror}): nothing was changed") from None


def _fields(context: Context) -> dict[str, str]:
    return {key: value for key, value in context.as_json().items() if key != "name"}

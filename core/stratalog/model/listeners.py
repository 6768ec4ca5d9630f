"""Listeners of a node, by name, each with an address that clients get. Pure.

Every node has the listener `internal`, through which the nodes reach each other. A client gets each node's address for
the listener that it connected to itself, so a client from outside never gets an internal address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stratalog.model.addresses import LAST_PORT, is_anywhere, is_host, parse_address

INTERNAL: Final = "internal"
MOST_LISTENERS: Final = 8
"""Beside the internal one."""

_LISTENER_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LONGEST_TEXT: Final = 4_096


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a listener listens, or the address that it advertises."""

    name: str
    host: str
    port: int


def is_listener_name(name: str) -> bool:
    return _LISTENER_NAME.fullmatch(name) is not None


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """`NAME://HOST:PORT` with commas between; an entry without a name is the internal one. Empty: none.

    Raises: ValueError with the entry, what is expected, and what is wrong.
    """
    if not text.strip():
        return ()
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"expected at most {_LONGEST_TEXT} characters, not {len(text)}")
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) > MOST_LISTENERS + 1:
        raise ValueError(f"expected at most {MOST_LISTENERS} listeners beside {INTERNAL}, not {len(entries)} entries")
    found = [_parse_entry(entry) for entry in entries]
    for position, one in enumerate(found):
        if any(one.name == other.name for other in found[:position]):
            raise ValueError(f"listener {one.name} is set twice, and a listener has one address only")
    return tuple(found)


def _parse_entry(entry: str) -> Listener:
    name, separator, address = entry.partition("://")
    if not separator:
        name, address = INTERNAL, entry
    if not is_listener_name(name):
        raise ValueError(
            f"expected HOST:PORT, or NAME://HOST:PORT with a listener's name of small letters, digits and hyphens, "
            f"not {entry[:80]!r}{_hint(name, address)}"
        )
    try:
        return Listener(name, *parse_address(address))
    except ValueError as wrong:
        raise ValueError(f"{wrong} (in {entry[:80]!r})") from None


def _hint(name: str, address: str) -> str:
    """For names as Kafka's files have them, which are protocols or in capital letters."""
    if name in SecurityProtocol.__members__ and name != SecurityProtocol.PLAINTEXT:
        ours = f"clients://{address[:80]}"
        return f": {name} is a protocol; write {ours}, and listener.security.protocol.map=clients:{name}"
    lower = name.lower().replace("_", "-")
    return f": write {lower}://{address[:80]}" if is_listener_name(lower) else ""


def check_further(listeners: Sequence[Listener]) -> None:
    """Of those that a node opens beside the internal one. Raises: ValueError."""
    if any(one.name == INTERNAL for one in listeners):
        raise ValueError(
            f"expected NAME://HOST:PORT of further listeners: the one named {INTERNAL} is where --listen says"
        )


def check_advertised(advertised: Sequence[Listener]) -> None:
    """Raises: ValueError if no client could connect to the advertised address."""
    for one in advertised:
        if is_anywhere(one.host):
            raise ValueError("clients cannot connect to an address that means all of them; name one they reach")


def check_addresses(further: Sequence[Listener], advertised: Sequence[Listener]) -> None:
    """That what is advertised is listened at, and that of each listener something can be told. Raises: ValueError."""
    open_names = {INTERNAL, *(one.name for one in further)}
    told_names = {one.name for one in advertised}
    for one in advertised:
        if one.name not in open_names:
            raise ValueError(
                f"advertised.listeners names a listener {one.name!r} that is not there: add {one.name}://HOST:PORT "
                "to listeners, or leave it out here"
            )
    for one in further:
        if one.name not in told_names and is_anywhere(one.host):
            raise ValueError(
                f"listener {one.name} listens at all addresses ({one.host}), so clients need one that they can "
                f"reach: add {one.name}://HOST:PORT to advertised.listeners"
            )


def advertised_address(listening: Listener, advertised: Sequence[Listener]) -> Listener:
    """What clients hear of a listener; `listening` is where it really is. Port 0 stands for the port there."""
    found = next((one for one in advertised if one.name == listening.name), listening)
    return Listener(found.name, found.host, found.port or listening.port)


def why_not_registered(listeners: Sequence[Listener]) -> str | None:
    """What is wrong with the further listeners that a node says it has; None: nothing."""
    if len(listeners) > MOST_LISTENERS:
        return f"it names {len(listeners)} listeners, and {MOST_LISTENERS} are the most beside {INTERNAL}"
    names = [one.name for one in listeners]
    for one in listeners:
        if not is_listener_name(one.name) or one.name == INTERNAL or names.count(one.name) > 1:
            return f"it names a listener {one.name[:80]!r}: each must have a unique name, and none may be {INTERNAL}"
        if not is_host(one.host) or not 0 < one.port <= LAST_PORT:
            return f"its listener {one.name} must name a host and port that others connect to"
    return None


class SecurityProtocol(StrEnum):
    """What a listener asks of its clients: TLS or not, SASL or not."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def is_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def parse_protocols(text: str) -> dict[str, SecurityProtocol]:
    """`NAME:PROTOCOL` with commas between, protocols in capital letters or not; empty: none.

    Raises: ValueError with the entry and what is expected.
    """
    found: dict[str, SecurityProtocol] = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        name, _, protocol = (part.strip() for part in entry.partition(":"))
        if not is_listener_name(name) or protocol.upper() not in SecurityProtocol.__members__:
            raise ValueError(
                f"expected NAME:PROTOCOL, with a listener's name of small letters, digits and hyphens, and one of "
                f"{', '.join(SecurityProtocol)}, not {entry[:80]!r}"
            )
        if name in found:
            raise ValueError(f"listener {name} has two protocols, and it speaks one only")
        found[name] = SecurityProtocol(protocol.upper())
    return found


def check_protocols(protocols: Mapping[str, SecurityProtocol], further: Sequence[Listener]) -> None:
    """Raises: ValueError for a protocol of a listener that does not exist, or of the internal one."""
    for name in protocols:
        if name == INTERNAL:
            raise ValueError(
                f"listener.security.protocol.map: the listener {INTERNAL} is the nodes' own, and has no protocol of "
                "clients: leave it out there, and add a listener for clients to listeners"
            )
        if name not in {one.name for one in further}:
            raise ValueError(
                f"listener.security.protocol.map: listener {name} is not in listeners: add {name}://HOST:PORT there, "
                "or leave it out here"
            )

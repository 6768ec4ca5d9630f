"""What principals may do: the rules (ACLs) that the metadata hold, and filters that find them. Kafka's words.

Values of the enums are those of Kafka's protocol. `ANY`, `MATCH` and `UNKNOWN` occur in filters alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

USER: Final = "User"
NODE: Final = "Node"
"""A node of this cluster, as which only its certificate proves it. Rules are not about nodes."""
ANYTHING: Final = "*"
"""As a literal name: every resource. As a host: every address. As the name of a user: every user."""


class ResourceType(IntEnum):
    """What a rule is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a rule's resource is compared."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What a principal does."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The one resource of type CLUSTER."""


@dataclass(frozen=True, slots=True, order=True)
class Principal:
    """The sender of a request. Clients are always of type `User`."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
EVERY_USER: Final = Principal(USER, ANYTHING)


def parse_principal(text: str) -> Principal:
    """`TYPE:NAME`; the name may have colons of its own, and may be empty.

    Raises: ValueError with what is expected.
    """
    principal_type, separator, name = text.partition(":")
    if not separator or not principal_type:
        raise ValueError(f"expected a principal as TYPE:NAME, such as User:alice, not {text[:80]!r}")
    return Principal(principal_type, name)


def parse_principals(text: str) -> frozenset[Principal]:
    """Several, with semicolons between, because a certificate's name has commas. Raises: ValueError."""
    return frozenset(parse_principal(one.strip()) for one in text.split(";") if one.strip())


@lru_cache(maxsize=4_096)
def host_of(address: str) -> str:
    """One text for each address, as rules and connections are compared: a client of IPv4 that comes by a socket of IPv6
    has its address of IPv4, and `0:0:0:0:0:0:0:1` is `::1`. Any other text stays as it is."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """What a request is about, or the pattern of a rule."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """An ACL. `principal` and `host` are texts, as clients gave them; `host_of` says which hosts are the same."""

    resource: Resource
    principal: str
    host: str
    operation: Operation
    permission: Permission


@dataclass(frozen=True, slots=True)
class RuleFilter:
    """Which rules a request is about; a text that is None matches all."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

"""What a command says where a listener refuses it for want of a right: who, which right, and how to get it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from stratalog.connect.client_settings import BEARER, ClientSettings
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import Forbidden
from stratalog.model.rights import ANONYMOUS, CLUSTER_NAME, USER, Operation, Principal, ResourceType
from stratalog.telemetry.printable import printable

_TYPE_OF_REFUSAL: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ResourceType.TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ResourceType.GROUP,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ResourceType.CLUSTER,
}
_OPTION: Final = {ResourceType.TOPIC: "--topic", ResourceType.GROUP: "--group"}


@dataclass(frozen=True, slots=True)
class Right:
    """What a request needs. The name of the cluster is not used."""

    operation: Operation
    type: ResourceType
    name: str = CLUSTER_NAME

    @property
    def words(self) -> str:
        return f"{self.operation.name} of {self.resource}"

    @property
    def resource(self) -> str:
        if self.type is ResourceType.CLUSTER:
            return "the cluster"
        return f"{self.type.name.lower()} {printable(self.name)}"

    @property
    def options(self) -> str:
        """Of `stratalog acls add`."""
        of = "--cluster" if self.type is ResourceType.CLUSTER else f"{_OPTION[self.type]} {shlex.quote(self.name)}"
        return f"--operation {self.operation.name} {of}"


def refused_right(code: int, needed: Iterable[Right]) -> Right | None:
    """Which of these the code is about; None for a code that refuses none of them."""
    refused = _TYPE_OF_REFUSAL.get(ErrorCode(code)) if code in _TYPE_OF_REFUSAL else None
    return next((one for one in needed if one.type is refused), None)


def missing_right(settings: ClientSettings, right: Right, where: str, outcome: str = "") -> Forbidden:
    """`outcome`: what was not done, where that is not plain."""
    who = principal_of(settings)
    name = "User:NAME" if who is None else printable(str(who))
    proof = "this token" if settings.mechanism == BEARER else f"certificate {settings.certificate}"
    subject = f"the user of {proof}" if who is None else name
    command = f"stratalog acls add --allow-principal {shlex.quote(name)} {printable(right.options)}"
    if who == ANONYMOUS:
        return Forbidden(
            f"{subject} has no right to {right.words} at {where}{outcome}: this command did not log in. Name a "
            "listener that asks for a login, and give the login by --client-config FILE (docs/secure-a-listener.md). "
            f"`{command}` would give the right to everyone who reaches a listener without a login"
        )
    return Forbidden(
        f"{subject} has no right to {right.words} at {where}{outcome}: someone who may change rules gives it by "
        f"`{command}`, unless a DENY rule takes it"
    )


def principal_of(settings: ClientSettings) -> Principal | None:
    """The principal of a client with these settings; None: the listener makes it of a certificate or a token,
    by rules of its own."""
    if settings.mechanism == BEARER:
        return None
    if settings.user:
        return Principal(USER, settings.user)
    return None if settings.certificate and settings.protocol.is_tls else ANONYMOUS

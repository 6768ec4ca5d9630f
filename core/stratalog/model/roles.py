"""Which caller may send what to an HTTP port: the role of the caller, and what a route needs. Pure.

Roles include each other: an operator may do what a viewer may, an admin what an operator may. What only the parts of a
cluster ask of each other (`is_for_parts`) no role includes, so that no person acts as a node by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from stratalog.model.rights import ANONYMOUS, Principal


class Role(IntEnum):
    VIEWER = 1
    """Reads everything but records and keys."""
    OPERATOR = 2
    """Reads records, and does what can be undone: topics, seals, retirements, mounts."""
    ADMIN = 3
    """Also deletes data, gives data up, and changes rights and users."""


ROLE_NAMES: Final = {role.name.lower(): role for role in Role}


@dataclass(frozen=True, slots=True)
class Needs:
    """What a route needs. `role` None: no role suffices."""

    role: Role | None
    is_for_parts: bool = False
    """Nodes and the meta service may, too."""
    is_for_anyone: bool = False
    """It is answered to callers that are not known, too."""


FOR_ANYONE: Final = Needs(Role.VIEWER, is_for_parts=True, is_for_anyone=True)
FOR_VIEWERS: Final = Needs(Role.VIEWER, is_for_parts=True)
FOR_OPERATORS: Final = Needs(Role.OPERATOR)
FOR_OPERATORS_AND_PARTS: Final = Needs(Role.OPERATOR, is_for_parts=True)
FOR_ADMINS: Final = Needs(Role.ADMIN)
FOR_ADMINS_AND_PARTS: Final = Needs(Role.ADMIN, is_for_parts=True)
FOR_PARTS: Final = Needs(None, is_for_parts=True)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, once it is known."""

    principal: str
    role: Role | None
    is_part: bool = False
    """A node, the meta service, the operator, or a holder of the token that they share."""

    def may(self, needs: Needs) -> bool:
        if needs.is_for_anyone or (self.is_part and needs.is_for_parts):
            return True
        return self.role is not None and needs.role is not None and self.role >= needs.role


_FORBIDDEN: Final = (
    "{principal} has the role {role}, and this needs {needed}: ask with another token (auth.role.tokens.file names "
    "them)"
)


def role_name(role: Role | None) -> str:
    return "none" if role is None else role.name.lower()


def why_forbidden(caller: Caller, needs: Needs) -> str:
    needed = "a token of the cluster (auth.token.file)" if needs.role is None else f"the role {role_name(needs.role)}"
    return _FORBIDDEN.format(principal=caller.principal, role=role_name(caller.role), needed=needed)


OF_CLUSTER: Final = "cluster"
CLUSTER: Final = Caller(f"Token:{OF_CLUSTER}", Role.ADMIN, is_part=True)
"""Whoever shows a token of `auth.token.file`."""
ANYONE: Final = Caller(str(ANONYMOUS), Role.ADMIN, is_part=True)
"""Whoever reaches a port that asks for nothing."""


def caller_of_part(principal: Principal) -> Caller | None:
    """What a certificate of the cluster's own CA allows (docs/security-spec.md section 2); `rights.members` says what
    it may not do in the name of others. None: it is not a part."""
    match principal.type:
        case "Node" | "Meta":
            return Caller(str(principal), Role.VIEWER, is_part=True)
        case "Operator":
            return Caller(str(principal), Role.ADMIN, is_part=True)
        case _:
            return None

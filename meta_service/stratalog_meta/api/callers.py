"""The sender of a request to the meta service, and what it may do: the rules are in `machines/rights/members.py`, and
`model/roles.py` for its role."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from stratalog.machines.rights.members import sees_tokens, why_not_command, why_not_credentials, why_not_node
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import Forbidden
from stratalog.model.members import Member
from stratalog.model.metadata import Node
from stratalog.model.roles import ANYONE as ANY_CALLER
from stratalog.model.roles import FOR_ADMINS_AND_PARTS, FOR_PARTS, Needs, why_forbidden
from stratalog.model.roles import Caller as KnownCaller


@dataclass(frozen=True, slots=True)
class Caller:
    """Each check raises Forbidden. Where callers are not asked for certificates, the port's token alone counts."""

    is_asked: bool = False
    member: Member | None = None
    """Of this cluster, as which its certificate names it."""
    known: KnownCaller = ANY_CALLER
    """As which the port knows it."""

    def check_command(self, command: Command[Any]) -> None:
        if getattr(command, "force_storage_id", None) is not None:
            self.check_needs(FOR_ADMINS_AND_PARTS)  # data are given up
        self._refuse(why_not_command(self.member, command) if self.is_asked else None)

    def check_needs(self, needs: Needs) -> None:
        """That its role suffices."""
        self._refuse(None if self.known.may(needs) else why_forbidden(self.known, needs))

    def check_node(self, node_id: int) -> None:
        """That it acts as this node."""
        self._refuse(why_not_node(self.member, node_id) if self.is_asked else None)

    def check_credentials(self, nodes: Iterable[Node]) -> None:
        """That it may read the keys of users. `nodes`: those that are known, or that changed just now."""
        self.check_needs(FOR_PARTS)
        if self.is_asked:
            own_id = None if self.member is None else self.member.node_id
            is_retired = any(node.is_retired for node in nodes if node.node_id == own_id)
            self._refuse(why_not_credentials(self.member, is_retired=is_retired))

    @property
    def sees_tokens(self) -> bool:
        """Whether it may read the tokens of lives."""
        return sees_tokens(self.member) if self.is_asked else self.known.may(FOR_PARTS)

    def shown(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Nodes as it may read them."""
        return nodes if self.sees_tokens else tuple([node.without_token() for node in nodes])

    def _refuse(self, why: str | None) -> None:
        if why is not None:
            raise Forbidden(f"{why}. Nothing was done")


ANYONE: Final = Caller()

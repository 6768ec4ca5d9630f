"""The sender of a request to the meta service, and what it may do: the rules are in `machines/rights/members.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from stratalog.machines.rights.members import sees_tokens, why_not_command, why_not_credentials, why_not_node
from stratalog.model.commands.table_commands import Command
from stratalog.model.errors import Forbidden
from stratalog.model.members import Member
from stratalog.model.metadata import Node


@dataclass(frozen=True, slots=True)
class Caller:
    """Each check raises Forbidden. Where callers are not asked for certificates, the port's token alone counts."""

    is_asked: bool = False
    member: Member | None = None
    """Of this cluster, as which its certificate names it."""

    def check_command(self, command: Command[Any]) -> None:
        self._refuse(why_not_command(self.member, command) if self.is_asked else None)

    def check_node(self, node_id: int) -> None:
        """That it acts as this node."""
        self._refuse(why_not_node(self.member, node_id) if self.is_asked else None)

    def check_credentials(self, nodes: Iterable[Node]) -> None:
        """That it may read the keys of users. `nodes`: those that are known, or that changed just now."""
        if self.is_asked:
            own_id = None if self.member is None else self.member.node_id
            is_retired = any(node.is_retired for node in nodes if node.node_id == own_id)
            self._refuse(why_not_credentials(self.member, is_retired=is_retired))

    @property
    def sees_tokens(self) -> bool:
        """Whether it may read the tokens of lives."""
        return not self.is_asked or sees_tokens(self.member)

    def shown(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Nodes as it may read them."""
        return nodes if self.sees_tokens else tuple([node.without_token() for node in nodes])

    def _refuse(self, why: str | None) -> None:
        if why is not None:
            raise Forbidden(f"{why}. Nothing was done")


ANYONE: Final = Caller()

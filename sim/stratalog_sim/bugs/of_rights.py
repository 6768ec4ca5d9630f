"""Bugs of what clients may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stratalog.model.metadata import Change, RuleDeleted
from stratalog_node.serve.connections.client_rights import _Decisions
from stratalog_node.shards.catalog.rights import CatalogRights
from stratalog_sim.planting import Patch


def decisions_outlive_a_change_of_rules() -> list[Patch]:
    """A node keeps what it decided once."""

    def current(self: _Decisions) -> Any:
        return self.known

    return [(_Decisions, "current", current)]


def rules_are_only_added() -> list[Patch]:
    """A node that reads all metadata again keeps the rules that were deleted meanwhile."""
    differences = CatalogRights.differences

    def without_deletions(self: CatalogRights, snapshot: Any, changes: list[Change]) -> Iterator[None]:
        found: list[Change] = []
        yield from differences(self, snapshot, found)
        changes += [one for one in found if not isinstance(one, RuleDeleted)]

    return [(CatalogRights, "differences", without_deletions)]

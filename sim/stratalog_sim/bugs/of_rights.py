"""Bugs of what clients may do."""

from __future__ import annotations

from typing import Any

from stratalog_node.serve.connections.client_rights import _Decisions
from stratalog_sim.planting import Patch


def decisions_outlive_a_change_of_rules() -> list[Patch]:
    """A node keeps what it decided once."""

    def current(self: _Decisions) -> Any:
        return self.known

    return [(_Decisions, "current", current)]

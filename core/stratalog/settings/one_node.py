"""What no cluster of one node can honour, refused before anything is made."""

from __future__ import annotations

from stratalog.model.errors import InvalidRequest
from stratalog.settings.process import ProcessSettings


def require_one_node(settings: ProcessSettings) -> None:
    """Raises InvalidRequest for settings that no cluster of one node can honour: it would start, and make no topic."""
    if settings.default_replication_factor > 1:
        raise InvalidRequest(
            f"process setting default.replication.factor={settings.default_replication_factor} is refused: it must be "
            "1, because this process is a cluster of one node (the meta service runs inside it) and each replica needs "
            "its own node: neither a topic nor the group log could be created"
        )

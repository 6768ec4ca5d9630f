"""Internal topics, which only the service creates, alters and deletes: their names, their settings, and the refusal of
clients' requests. A reserved name belongs to the service even before its topic exists, so that no client creates it
with other settings. Exactly the topics with such a name are internal. Their settings and numbers of shards are fixed:
retention by age would delete groups, and more shards would move groups to shards that do not know them. The number of
replicas follows the nodes: as many as are wanted and alive at creation, more once there are more, never fewer. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.model.errors import Reserved
from stratalog.model.topic import Topic

GROUP_LOG: Final = "__consumer_offsets"

_NAMES: Final = frozenset({GROUP_LOG, "__transaction_state", "__share_group_state", "__cluster_metadata"})
_PREFIX: Final = "__stratalog"

FIXED_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    GROUP_LOG: {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "local.retention.ms": "-1",
        "local.retention.bytes": "-1",
        "segment.bytes": str(16 << 20),
        "max.message.bytes": str(16 << 20),
        "min.insync.replicas": "2",
    }
}
"""The settings of internal topics. Snapshots trim the group log, age never does; segments are small, so that trimming
frees disk space soon. The local copy stays: a node whose object store is away must know its groups (F51). With three
nodes, acknowledged data are on two of them. One replica of a segment may always be away (`RollPolicy.spares_one`), so
that clusters of two nodes, or one, keep working."""


def is_reserved(name: str) -> bool:
    """Whether the name is the service's. Other names that begin with `__` are not: tools of others use them."""
    return name in _NAMES or name.startswith(_PREFIX)


def settings_to_create(name: str, settings: Mapping[str, str], *, is_internal: bool) -> Mapping[str, str]:
    """What a topic is made with.

    Raises: Reserved, unless the service itself (`is_internal`) makes a topic of its own, with settings of the table.
    """
    if not is_reserved(name):
        if is_internal:
            raise Reserved(f"topic {name!r} cannot be internal: the service has no topic of this name")
        return settings
    fixed = FIXED_SETTINGS.get(name)
    if not is_internal or fixed is None:
        raise Reserved(f"topic name {name!r} is reserved: the service makes such topics itself; choose another name")
    if settings:
        raise Reserved(f"topic {name!r} is internal: its settings are fixed; make it without any")
    return fixed


def refuse_internal(topic: Topic, change: str) -> None:
    """Raises: Reserved for a topic of the service's own; `change` says what was asked."""
    if topic.is_internal:
        raise Reserved(f"topic {topic.name!r} is internal and cannot be {change}: the service alone changes it")

"""The topics that the service makes, alters and deletes alone: their names, their settings, and the refusal of others.

A reserved name belongs to the service whether its topic exists yet or not, so that nobody makes it first with other
settings. A topic of such a name is internal, and no other is. Its settings and its number of shards are fixed: age
would forget what is kept there, and more shards would move groups to shards that do not know them. Its replicas follow
the nodes: as many as are wanted and alive when it is made, more once there are more, never fewer. Pure.
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
"""What the service's topics are made with. Snapshots trim the group log, age never does; small segments, so that what
is trimmed frees its disk soon. Its local copy stays: a node whose object store is away must know its groups (F51). What
was acknowledged lies on two nodes where there are three; of a segment's replicas one may always be away
(`RollPolicy.spares_one`), so that two nodes, or one, go on."""


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

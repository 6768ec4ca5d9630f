"""What the admin API of a node reaches, and the lookups that all of its answers begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stratalog.admin_api.models import ColdReadStatus, ReplicationStatus
from stratalog.machines.leading.shard_life import Stop
from stratalog.meta_api.node_client import NodeMetaClient
from stratalog.model.counting import did_you_mean
from stratalog.model.errors import NotFound
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.mounts import OffsetRange
from stratalog.model.topic import Topic
from stratalog.objects.store import ObjectStore
from stratalog.settings.process import ProcessSettings
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.topic_changes import TopicChanges
from stratalog_node.turn import Turn


def _zero() -> int:
    return 0


class ShardSource(Protocol):
    """What the admin API needs of the node's `Shards`."""

    def get(self, key: ShardKey) -> ShardView | None: ...

    def read(self, key: ShardKey) -> ShardView | None:
        """As `get`; also a shard of a user-mounted topic. Its key is that of the shard whose range it is."""
        ...

    def all(self) -> Iterable[ShardView]: ...

    def stopped(self) -> Sequence[tuple[ShardView, Stop]]: ...


def _follows_nothing() -> ReplicationStatus:
    return ReplicationStatus()


def _leads_nothing(_: SegmentKey) -> bool:
    return False


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class AdminServices:
    """`store` is None on a node without an object store. `ask_roll` ends a shard's active segment if it holds anything,
    and returns whether it did; sealing then continues in the background."""

    node_id: int
    cluster_id: str
    settings: ProcessSettings
    data_dir: Path
    layout: NodeLayout
    kafka_address: str
    started_ms: int
    now_ms: Callable[[], int]
    catalog: Catalog
    shards: ShardSource
    meta: NodeMetaClient
    """The node's own: what people ask for here is asked for in the name of its life, once their role was checked."""
    topic_changes: TopicChanges
    store: ObjectStore | None
    ask_roll: Callable[[ShardKey], bool]
    turn: Turn
    readiness: Callable[[], Mapping[str, str]] = dict
    loop_blocks: Callable[[], int] = _zero
    tier_trouble: Callable[[], str | None] = _nothing
    """Why the node uploads nothing, or some segments not any further; None when it uploads all."""
    store_away_ms: Callable[[], int] = _zero
    """For how long the object store has not taken uploads; 0 while it does."""
    damage: Callable[[], Sequence[str]] = tuple
    """See `stratalog_node.damage`."""
    replication: Callable[[], ReplicationStatus] = _follows_nothing
    cold_reads: Callable[[], ColdReadStatus | None] = _nothing
    groups_given_up: Callable[[], Mapping[int, Sequence[OffsetRange]]] = dict
    """By shard of the group log, what its groups began again without."""
    roll_elsewhere: Callable[[SegmentKey], bool] = _leads_nothing
    """Ends a segment with a successor chosen again, and says whether it is led here."""

    def topic(self, name: str) -> Topic:
        """Raises: NotFound."""
        topic = self.catalog.topic(name)
        if topic is None:
            near = did_you_mean(name, (one.name for one in self.catalog.topics()))
            raise NotFound(f"topic {name!r} does not exist{near}; `stratalog topics list` shows all")
        return topic

    def shard(self, topic: Topic, shard: int) -> ShardView:
        """Raises: NotFound."""
        view = self.shards.get(ShardKey(topic.topic_id, shard)) if 0 <= shard < topic.shard_count else None
        if view is None:
            raise NotFound(f"topic {topic.name} has no shard {shard} here; it has shards 0 to {topic.shard_count - 1}")
        return view

    def views(self, topic: Topic) -> list[ShardView]:
        """The topic's shards on this node, in order."""
        found = (self.shards.get(ShardKey(topic.topic_id, shard)) for shard in range(topic.shard_count))
        return [view for view in found if view is not None]

    def readable(self, topic: Topic) -> list[ShardView]:
        """As `views`, also of a user-mounted topic."""
        found = (self.shards.read(ShardKey(topic.topic_id, shard)) for shard in range(topic.shard_count))
        return [view for view in found if view is not None]

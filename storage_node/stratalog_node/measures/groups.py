"""Consumer groups as metrics: members, and how far each is behind, in all of a topic and in each shard.

Reported by the node that coordinates a group, so that sums over nodes are the cluster's. Lag is the high watermark less
the committed offset. Of a topic that members are subscribed to, a shard without a committed offset counts from its log
start: only the client knows where its reader begins (`auto.offset.reset`), and this counts all records that it may
still have to read. A shard whose leader does not answer is left out and counted. Offsets of topics that are deleted
have no lag.
Lives on the event loop. Cost: about a microsecond for each committed offset and each shard that a group reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.model.ids import ShardKey
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.measures.log_ends import LogEnds
from stratalog_node.measures.series import Bounded
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.slices import Slices

_GROUP: Final = ("group",)
_TOPIC: Final = ("group", "topic")
_SHARD: Final = ("group", "topic", "shard")


class ShardLag(NamedTuple):
    group: str
    topic: str
    shard: int
    records: int
    committed: int | None
    """None: nothing is committed, and `records` count from the log start."""
    position: int
    """Where the lag counts from."""


class GroupSum(NamedTuple):
    """How far one group is behind, in all."""

    lag: int
    shards: int
    uncommitted: int
    unknown: int
    """Shards whose leader could not be asked."""


@dataclass(slots=True)
class _GroupSize:
    group: str
    members: int


class GroupMeasures:
    def __init__(
        self,
        hosted: Callable[[], Iterator[HostedGroup]],
        subscribed: Callable[[HostedGroup], Awaitable[frozenset[UUID]]],
        catalog: Catalog,
        ends: LogEnds,
        bounded: Bounded,
    ) -> None:
        """`subscribed`: topics that members of a group want."""
        self._hosted = hosted
        self._subscribed = subscribed
        self._catalog = catalog
        self._ends = ends
        self._bounded = bounded
        self._sizes: list[_GroupSize] = []
        self._topics: list[tuple[str, str, int]] = []
        self.shards: list[ShardLag] = []
        """The shards with the most lag first, as many as may have series."""
        self.sums: dict[str, GroupSum] = {}
        """The sums of each group that this node coordinates, as of the last pass."""
        self.lag_records = 0
        self._unknown = 0

    def add_metrics(self, metrics: MetricRegistry) -> None:
        metrics.register(
            "stratalog_group_members",
            "gauge",
            "Members of a group that this node coordinates.",
            lambda: {(one.group,): one.members for one in self._sizes},
            label_names=_GROUP,
        )
        metrics.register(
            "stratalog_group_lag_records",
            "gauge",
            "Records between what a group has committed of a topic and its end, of all shards together; from the log "
            "start where it has members and has committed nothing.",
            lambda: {(group, topic): records for group, topic, records in self._topics},
            label_names=_TOPIC,
        )
        metrics.register(
            "stratalog_group_shard_lag_records",
            "gauge",
            "The same of each shard; a sum over these may lack shards (metrics.max.series), the other one never.",
            lambda: {(one.group, one.topic, str(one.shard)): one.records for one in self.shards},
            label_names=_SHARD,
        )
        metrics.register(
            "stratalog_groups_unknown_ends",
            "gauge",
            "Shards that groups read without a lag, because the shard's leader could not be asked.",
            lambda: self._unknown,
        )

    async def measure(self) -> None:
        slices = Slices()
        groups = [(hosted, await self._read_by(hosted, slices)) for hosted in list(self._hosted())]
        wanted: dict[ShardKey, None] = {}
        for _, places in groups:
            wanted |= dict.fromkeys(places)
            await slices.did(len(places))
        ends = await self._ends.find(wanted)
        lags: list[ShardLag] = []
        by_topic: defaultdict[tuple[str, str], int] = defaultdict(int)
        sums: dict[str, GroupSum] = {}
        for hosted, places in groups:
            found, missing = await self._lags(hosted.group_id, places, ends, slices)
            lags += found
            for lag in found:
                by_topic[lag.group, lag.topic] += lag.records
            behind, uncommitted = sum(one.records for one in found), sum(one.committed is None for one in found)
            sums[hosted.group_id] = GroupSum(behind, len(found) + len(missing), uncommitted, len(missing))
        cut = self._bounded.cut
        sizes = [_GroupSize(one.group_id, one.member_count) for one, _ in groups]
        self._sizes = await cut("groups", sizes, lambda one: one.group)
        topics = [(*place, records) for place, records in by_topic.items()]
        self._topics = await cut("groups by topic", topics, lambda one: (-one[2], one[:2]))
        self.lag_records = sum(by_topic.values())
        self.shards = await cut("groups by shard", lags, lambda one: (-one.records, one[:3]))
        self.sums = sums
        self._unknown = sum(one.unknown for one in sums.values())

    async def lags_of(self, hosted: HostedGroup) -> tuple[list[ShardLag], list[tuple[str, int, int | None]]]:
        """Each shard that one group reads, with its lag as it is now; and topic, shard and committed offset of those
        whose leader could not be asked."""
        slices = Slices()
        places = await self._read_by(hosted, slices)
        return await self._lags(hosted.group_id, places, await self._ends.find(places), slices)

    async def _lags(
        self, group: str, places: dict[ShardKey, int | None], ends: dict[ShardKey, int], slices: Slices
    ) -> tuple[list[ShardLag], list[tuple[str, int, int | None]]]:
        lags: list[ShardLag] = []
        unknown: list[tuple[str, int, int | None]] = []
        for key, committed in places.items():
            await slices.did()
            topic = self._catalog.topic_by_id(key.topic_id)
            if topic is None or not self._catalog.has_shard(key):
                continue
            end = ends.get(key)
            if end is None:
                unknown.append((topic.name, key.shard, committed))
                continue
            position = self._catalog.log_start_offset(key) if committed is None else committed
            lags.append(ShardLag(group, topic.name, key.shard, max(0, end - position), committed, position))
        return lags, unknown

    async def _read_by(self, hosted: HostedGroup, slices: Slices) -> dict[ShardKey, int | None]:
        """Each shard that a group reads, with what it has committed there."""
        found: dict[ShardKey, int | None] = {}
        for key, committed in list(hosted.offsets.items()):
            found[key] = committed.offset
            await slices.did()
        if hosted.member_count:
            for topic_id in await self._subscribed(hosted):
                topic = self._catalog.topic_by_id(topic_id)
                for shard in range(topic.shard_count if topic is not None else 0):
                    found.setdefault(ShardKey(topic_id, shard), None)
                    await slices.did()
        return found

"""How far this node's followed segments are behind, as far as it knows: for metrics, the cluster UI and the command
line.

In offsets behind what the leader has committed or sent, or behind the end of an ended segment. In bytes, exact for a
sealed segment; for others estimated by the mean size of the local batches, because a leader reports offsets. Cost: some
microseconds per followed segment, for each query.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.replication.following import Following
from stratalog_node.replication.replica import Replica
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.slices import Slices

MOST_NAMED = 20
"""How many of the shards with the most lag are named."""


class FollowedLag(NamedTuple):
    """One segment that is behind."""

    key: SegmentKey
    offsets: int
    bytes: int
    life: str
    asks: int | None
    """The node that is asked for the rest, if any."""


@dataclass(frozen=True, slots=True)
class FollowedSums:
    segments: int = 0
    behind: int = 0
    offsets: int = 0
    bytes: int = 0
    worst: tuple[FollowedLag, ...] = ()


def lag_of(replica: Replica, segment: Segment | None) -> FollowedLag:
    status = replica.follower.describe()
    offsets = max(status.lag_offsets, replica.seen_offset - status.end_offset)
    if segment is not None and segment.end_offset is not None:
        offsets = max(offsets, segment.end_offset - status.end_offset)
    held_bytes = max(0, replica.copy.file.size_bytes - SEGMENT_HEADER_BYTES)
    if segment is not None and segment.seal is not None:
        size_bytes = max(0, segment.seal.size_bytes - held_bytes) if offsets else 0
    else:
        size_bytes = offsets * held_bytes // max(1, status.end_offset - status.key.base_offset)
    return FollowedLag(status.key, offsets, size_bytes, status.life.name.lower(), status.asks)


def sum_up(following: Following, catalog: Catalog) -> FollowedSums:
    found = [lag_of(replica, catalog.segment(replica.copy.key)) for replica in following.replicas.values()]
    behind = [lag for lag in found if lag.offsets > 0]
    worst = heapq.nlargest(MOST_NAMED, behind, key=lambda lag: (lag.offsets, lag.bytes))
    lacking = sum(lag.offsets for lag in behind), sum(lag.bytes for lag in behind)
    return FollowedSums(len(found), len(behind), *lacking, tuple(worst))


def add_lag_metrics(metrics: MetricRegistry, following: Following, catalog: Catalog) -> None:
    """One series for each leading node, so few in all. The cluster UI and `status` name the shards with the largest
    lag."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}

    async def measure_lag() -> None:
        slices = Slices()
        sums: dict[tuple[str, ...], tuple[int, int]] = {}
        for replica in list(following.replicas.values()):
            segment = catalog.segment(replica.copy.key)
            leader = segment.leader if segment is not None else None
            label = ("none" if leader is None else str(leader),)
            lag, (offsets, size_bytes) = lag_of(replica, segment), sums.get(label, (0, 0))
            sums[label] = offsets + lag.offsets, size_bytes + lag.bytes
            await slices.did()
        found.clear()
        found.update(sums)

    metrics.survey_with(measure_lag)
    metrics.register(
        "stratalog_replication_lag_offsets",
        "gauge",
        "Offsets by which followed segments are behind what is committed, by the node that leads them.",
        lambda: {label: offsets for label, (offsets, _) in found.items()},
        label_names=("leader",),
    )
    metrics.register(
        "stratalog_replication_lag_bytes",
        "gauge",
        "The same in bytes: exact of sealed segments, else by the mean size of what is here.",
        lambda: {label: size_bytes for label, (_, size_bytes) in found.items()},
        label_names=("leader",),
    )

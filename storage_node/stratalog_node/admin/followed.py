"""What the admin API says of the segments that a node follows."""

from __future__ import annotations

from stratalog.admin_api.models import FollowedSegment, ReplicationStatus
from stratalog_node.replication.following import Following
from stratalog_node.replication.lag import sum_up
from stratalog_node.shards.catalog.catalog import Catalog


def replication_status(following: Following, catalog: Catalog) -> ReplicationStatus:
    sums = sum_up(following, catalog)
    worst = []
    for lag in sums.worst:
        topic = catalog.topic_by_id(lag.key.topic_id)
        if topic is not None:
            place = {"topic": topic.name, "shard": lag.key.shard, "epoch": lag.key.epoch}
            behind = {"lag_offsets": lag.offsets, "lag_bytes": lag.bytes}
            worst.append(FollowedSegment.model_validate({**place, **behind, "life": lag.life, "asks": lag.asks}))
    return ReplicationStatus(
        segments=sums.segments,
        behind=sums.behind,
        lag_offsets=sums.offsets,
        lag_bytes=sums.bytes,
        copies_due=following.stats.copies_due,
        faulty_copies=following.stats.faulty_copies,
        worst=worst,
    )

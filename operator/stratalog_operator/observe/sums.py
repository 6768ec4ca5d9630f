"""What the meta service has summed up, for each topic, node and mount, as the plan looks at it. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from stratalog.model.views.outline import Outline
from stratalog.model.views.status_page import Overview
from stratalog_operator.plan.observed import MountSums, NodeSums, TopicSums

HICCUP_SECONDS: Final = 5
"""An object store that took nothing for less is not said to be away."""


def topic_sums(outline: Outline) -> dict[UUID, TopicSums]:
    troubles = {one.topic: one.words for one in outline.health.topics}
    names = {topic.topic_id: topic.name for topic in outline.topics}
    return {
        one.topic_id: TopicSums(
            one.hot_bytes,
            one.cold_bytes,
            one.unsent_bytes,
            one.oldest_offset,
            troubles.get(names.get(one.topic_id, ""), ""),
        )
        for one in outline.sums.topics
    }


def node_sums(outline: Outline, used: Mapping[int, int]) -> dict[int, NodeSums]:
    return {one.node_id: NodeSums(one.segments, one.leaders, used.get(one.node_id)) for one in outline.sums.nodes}


def mount_sums(outline: Outline) -> dict[str, MountSums]:
    return {one.name: MountSums(one.segments, one.bytes, one.ranges) for one in outline.sums.mounts}


def disks_used(overview: Overview | None) -> dict[int, int]:
    """Percent of each disk, of those that have told."""
    rows = () if overview is None else overview.nodes
    return {
        row.node_id: 100 * (row.disk_total_bytes - row.disk_free_bytes) // row.disk_total_bytes
        for row in rows
        if row.disk_total_bytes > 0 and 0 <= row.disk_free_bytes <= row.disk_total_bytes
    }


def store_away_seconds(overview: Overview) -> int | None:
    """None while no node that is alive has told of an object store."""
    away = [
        row.uploads.store_away_ms // 1000 for row in overview.nodes if row.uploads is not None and row.state == "alive"
    ]
    if not away:
        return None
    longest = max(away)
    return 0 if longest < HICCUP_SECONDS else longest

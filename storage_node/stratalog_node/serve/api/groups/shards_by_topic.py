"""Groups shards by topic, as messages list them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from stratalog.model.ids import ShardKey


def by_topic(shards: Iterable[ShardKey]) -> dict[UUID, list[int]]:
    """In order."""
    found: dict[UUID, list[int]] = {}
    for topic_id, shard in sorted(shards):
        found.setdefault(topic_id, []).append(shard)
    return found

"""What keeps readers from data and only a person may be able to put right, in words, as far as a node knows of it:
damage, and data in archive classes. For its status, the pages and the heartbeats."""

from __future__ import annotations

from stratalog.model.ids import SegmentKey
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.seal.sealing import Sealing
from stratalog_node.tier.cold.cold_reader import ColdReader


def damage_lines(catalog: Catalog, sealing: Sealing, cold: ColdReader | None) -> list[str]:
    """A line for each ended segment that cannot be sealed, and for each segment of which the object store has other
    bytes than the metadata mean, or has it in an archive class."""
    refused = {} if cold is None else cold.refused.by_segment()
    archived = {} if cold is None else cold.refused.archived_by_segment()
    wrong = [
        f"{_name(catalog, key)}: readers get an error, for the object store has other bytes than the metadata mean: "
        f"{why}; next: run `stratalog pipeline verify --repair`, or restore the object from a backup; the "
        "node asks again at most five minutes later"
        for key, why in refused.items()
    ]
    waiting = [
        f"{_name(catalog, key)}: readers wait for data that must be restored: {why}; the node asks again at most a "
        "minute later"
        for key, why in archived.items()
    ]
    return [*sealing.damage_lines, *wrong, *waiting]


def _name(catalog: Catalog, key: SegmentKey) -> str:
    topic = catalog.topic_by_id(key.topic_id)
    return f"{topic.name if topic is not None else key.topic_id}-{key.shard}: segment {key.base_offset}-{key.epoch}"

"""What the admin API says of reads from the object store."""

from __future__ import annotations

from stratalog.admin_api.models import ColdReadStatus
from stratalog_node.tier.cold.cold_reader import ColdReader


def cold_read_status(reader: ColdReader | None) -> ColdReadStatus | None:
    if reader is None:
        return None
    stats = reader.stats
    return ColdReadStatus(
        readers=stats.readers,
        held_bytes=stats.held_bytes,
        fetched_bytes=stats.fetched_bytes,
        refetched_bytes=stats.refetched_bytes,
        served_bytes=stats.used_bytes,
        throttled=stats.throttled,
    )

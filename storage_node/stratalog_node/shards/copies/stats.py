"""Plain counters of the append and read paths; telemetry reads them, the hot path only adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from stratalog.telemetry.metrics import counter


@dataclass(slots=True)
class TopicWork:
    """What this node has done for one topic since it started."""

    appended_bytes: int = 0
    """Bytes of batches appended to shards that this node led."""
    fetched_bytes: int = 0
    """Bytes of batches that consumers got from this node, from whatever source."""


@dataclass(slots=True)
class ShardStats:
    appended_batches: int = counter("Record batches appended.")
    appended_bytes: int = counter("Bytes of record batches appended.")
    append_groups: int = counter("Writes to segment files: one per shard and loop turn.")
    write_failures: int = counter("Writes that failed, disk full included.")
    rolls: int = counter("Segments ended and followed by a new one.")
    sealed: int = counter("Segments sealed.")
    seal_failures: int = counter("Segments whose seal was refused or found damage.")
    cached_read_bytes: int = counter("Bytes of batches served from the page cache.")
    disk_read_bytes: int = counter("Bytes of batches read from disk on a thread, and checked.")
    cold_reads: int = counter("Reads that went to the object store.")
    barred_reads: int = counter(
        "Reads refused because only the object store has the data and remote.read.policy=Disable keeps readers out."
    )
    local_copies_freed: int = counter("Local copies of segments deleted.")
    missing_copies: int = counter("Local copies of sealed segments whose file was found missing.")
    away_copies: int = counter("Local copies of sealed segments that were not found while a data directory was absent.")
    damaged_copies: int = counter("Local copies in which a read found damage.")
    torn_tail_bytes: int = counter("Bytes cut from torn tails at start.")
    healed_shards: int = counter("Shards whose lost tail was brought back from the object store.")
    healed_bytes: int = counter("Bytes of batches brought back for shards whose tail was lost.")
    producers_dropped: int = counter(
        "Idempotent producers forgotten before their time: a shard remembers producer.id.max.per.shard."
    )
    given_up_offsets: int = counter("Offsets given up as lost under uncleanSeal=allow.")
    topics: dict[UUID, TopicWork] = field(default_factory=dict)
    """Counters of existing topics; shown by `measures`."""

    def of_topic(self, topic_id: UUID) -> TopicWork:
        return self.topics.setdefault(topic_id, TopicWork())

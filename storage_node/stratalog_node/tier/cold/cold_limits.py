"""Limits of cold reads: memory, bandwidth, requests, threads; and counters of what they used."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.machines.reading.read_window import WindowLimits
from stratalog.machines.reading.shard_readers import ReaderLimits
from stratalog.telemetry.metrics import counter, gauge

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ColdReadLimits:
    """Limits of one node's cold reads, all shards together unless said otherwise."""

    cache_bytes: int = 64 * _MIB
    """Held or on its way, read-ahead and indexes included; never more, but for a single batch larger than all of it.
    Answers that are being sent are counted where hot ones are."""
    window_min_bytes: int = 1 * _MIB
    window_max_bytes: int = 16 * _MIB
    """Limit for one shard."""
    bytes_per_s: int | None = 512 * _MIB
    """None: no limit."""
    max_concurrency: int = 8
    """Ranges read from the store at a time."""
    block_bytes: int = 2 * _MIB
    """Smallest range fetched from a large part; parts of up to twice this size are fetched whole. Measured: 2 MiB cost
    a quarter less CPU per byte than 1 MiB, 4 MiB little less than 2."""
    unread_ttl_ms: int = 10_000
    """What was fetched ahead and not wholly read within this time halves the window."""
    patience_ms: int = 500
    """A block that a reader needs within this time does not go for others. A reader that is not back within it is
    late, and others are served before it."""
    slot_ms: int = 1_000
    """How long a request that is not answered keeps others from being sent; then it waits on beside them."""
    threads: int = 2
    """Threads that verify fetched blocks."""

    def __post_init__(self) -> None:
        assert self.block_bytes > 0 and self.threads > 0, "block_bytes, threads: must be positive"
        assert self.max_concurrency > 0, "max_concurrency: at least one range must be allowed"

    @property
    def range_bytes(self) -> int:
        """`block_bytes`, or less where the memory could not hold four blocks for each range that may be in flight."""
        return max(1, min(self.block_bytes, self.cache_bytes // (4 * self.max_concurrency)))

    @property
    def window(self) -> WindowLimits:
        """Never more than half the memory for one shard's window."""
        cap = max(1, min(self.window_max_bytes, self.cache_bytes // 2))
        return WindowLimits(min(self.window_min_bytes, cap), cap, self.unread_ttl_ms)

    @property
    def readers(self) -> ReaderLimits:
        return ReaderLimits(self.patience_ms)

    @property
    def index_bytes(self) -> int:
        """The part of the memory that manifests and indexes may take."""
        return self.cache_bytes // 6


@dataclass(slots=True)
class ColdReadStats:
    """Register as `stratalog_cold_read`."""

    answers: int = counter("Reads answered from the cold tier.")
    hits: int = counter("Blocks that were in memory when a reader came.")
    joined: int = counter("Blocks that were on their way when a reader came: fetched ahead, or for another reader.")
    misses: int = counter("Blocks fetched because a reader waited for them.")
    fetches: int = counter("Blocks fetched from the object store, for a waiting reader or ahead.")
    fetch_failures: int = counter("Blocks that could not be fetched.")
    index_fetches: int = counter("Manifests, index blocks, part headers and part indexes fetched.")
    fetched_bytes: int = counter("Bytes fetched from the object store.")
    refetched_bytes: int = counter(
        "Of the bytes fetched, those of blocks that had been held before and had to go: readers are too far apart for "
        "the memory."
    )
    used_bytes: int = counter("Bytes handed to readers; above the bytes fetched when groups share them.")
    late_blocks: int = counter("Blocks fetched ahead and not wholly read in time; they halve the window, and stay.")
    late_bytes: int = counter("Bytes of the blocks fetched ahead and not wholly read in time.")
    evicted_blocks: int = counter("Blocks dropped because the memory was needed.")
    evicted_passed_blocks: int = counter("Of these, blocks that every known reader of the shard had passed.")
    evicted_far_blocks: int = counter("Of these, blocks whose next reader was far away.")
    evicted_late_blocks: int = counter("Of these, blocks whose reader was in them, and did not come in time.")
    evicted_unread_blocks: int = counter("Of these, blocks that no reader had read to their end.")
    waits: int = counter("Fetches that had to wait for memory.")
    throttled: int = counter(
        "Waits of clients that had read a topic's cold data faster than `remote.read.topic.bytes.per.second` or "
        "`remote.read.client.bytes.per.second` allow."
    )
    throttle_ms: int = counter("How long these waits were.")
    corrupt_ranges: int = counter("Fetched ranges whose bytes were wrong.")
    archived_ranges: int = counter("Ranges not given because their object is in an archive class.")
    reloads: int = counter("Times an object was gone and the segment's parts were read again from metadata.")
    readers: int = gauge("Positions from which cold data is read, as far as they are known.")
    held_bytes: int = gauge("Bytes of cold data held in memory, indexes included.")
    in_flight_bytes: int = gauge("Bytes of cold data on their way.")
    window_bytes: int = gauge("Read-ahead windows of all shards that are being read, together.")

"""Counters of the cold tier's writing side, for telemetry. Lives on the event loop."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.machines.tiering.upload_state import UploaderStatus
from stratalog.telemetry.metrics import counter, gauge


@dataclass(frozen=True, slots=True)
class TierStatus:
    """What the cold tier is doing now."""

    uploader: UploaderStatus
    doubtful_attempts: int
    lock_epoch: int | None


@dataclass(slots=True)
class TierStats:
    """Register as `stratalog_tier`. Gauges are brought up to date by `NodeUploader.status`."""

    chunks_put: int = counter("Chunk objects put and committed.")
    bundles_put: int = counter("Bundle objects put and committed.")
    chunks_packed: int = counter("Chunk objects that were compressed before they were put, and committed.")
    packed_bytes: int = counter("Bytes of chunk objects that were compressed, as they were put.")
    unpacked_bytes: int = counter("Bytes of the parts in chunk objects that were compressed.")
    chunks_left_unpacked: int = counter(
        "Chunks put without compression although their topic asks for it: others waited to be compressed."
    )
    parts_committed: int = counter("Parts whose commit moved a commit offset.")
    parts_moved: int = counter("Committed parts that were merged or moved to another object.")
    put_bytes: int = counter("Bytes of chunk and bundle objects that were put.")
    committed_bytes: int = counter("Bytes of parts that moved a commit offset.")
    attempts_doubtful: int = counter("Attempts whose outcome is unknown and that were sent again under a new name.")
    attempts_refused: int = counter("Attempts that the object store refused.")
    commits_lost: int = counter("Commits that lost their compare-and-set.")
    commits_repeated: int = counter("Commits sent again because their answer was lost or refused.")
    locks_lost: int = counter("Times another took this node's write lock.")
    forks_found: int = counter("Times the bucket showed that a copy of this node writes to it.")
    segments_completed: int = counter("Segments whose remote copy became complete.")
    key_indexes_built: int = counter("Key indexes of segments that were put, for topics with index.keys.")
    mounted_read_bytes: int = counter("Bytes of batches read in retired nodes' directories, to be uploaded.")
    segments_held: int = counter("Times a segment could not be uploaded any further.")
    tasks_crashed: int = counter("Uploads that ended with an unexpected error.")
    sweeps: int = counter("Sweeps for objects that no metadata names.")
    objects_swept: int = counter("Orphans deleted from the object store.")
    segments_purged: int = counter("Deleted segments whose files, objects and metadata are gone.")
    bundles_deleted: int = counter("Bundles deleted because nothing refers to them.")
    bundles_rewritten: int = counter("Bundles whose live parts were moved out.")
    local_copies_freed: int = counter("Local copies freed by local retention.")
    log_starts_moved: int = counter("Times retention moved a shard's log start.")
    rounds_failed: int = counter("Passes of retention or deletion that met an error.")

    oldest_unsent_ms: int = gauge("Age of the oldest committed data that is not in the object store.")
    unsent_bytes: int = gauge("Committed bytes that are not in the object store.")
    mounted_unsent_bytes: int = gauge(
        "Bytes that only retired nodes' directories have, and that this node uploads as the holder of their mounts."
    )
    direct_unstored_bytes: int = gauge(
        "Bytes of Direct topics that are written and not in the object store: their producers wait for it."
    )
    in_flight_bytes: int = gauge("Bytes of uploads in flight.")
    uploads_in_flight: int = gauge("Uploads in flight.")
    segments_unfinished: int = gauge("Segments whose remote copy is not complete.")
    segments_to_publish: int = gauge("Sealed segments that wait for index and manifest.")
    held_segments: int = gauge("Segments that cannot be uploaded any further.")
    store_away_ms: int = gauge("For how long the object store has been away; 0 while it answers.")
    is_forked: int = gauge(
        "1 while uploads and sweeps are stopped: a copy of this node wrote to the bucket, or it is another bucket."
    )
    objects_unexplained: int = gauge("Objects that the last sweep left alone because nothing explains them.")
    bundles_unexplained: int = gauge("Bundles left alone because they hold data that metadata does not name.")
    local_bytes: int = gauge("Bytes of local segments when retention last looked.")
    age_behind_ms: int = gauge(
        "How far the clock by which data ages is behind the wall clock, after a jump of it or a long stop."
    )

    def show(self, now: UploaderStatus) -> None:
        self.oldest_unsent_ms = now.oldest_unsent_ms
        self.unsent_bytes = now.unsent_bytes
        self.mounted_unsent_bytes = now.mounted_unsent_bytes
        self.in_flight_bytes = now.bytes_in_flight
        self.uploads_in_flight = now.tasks
        self.segments_unfinished = now.segments
        self.segments_to_publish = now.to_publish
        self.held_segments = len(now.held)
        self.store_away_ms = now.store_away_ms

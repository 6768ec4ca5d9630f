"""Decides what retention deletes and which local copies are freed. Pure: facts and a time in, segments out.

Total retention ends data: whole segments from the old end of the shard, the ACTIVE one only once all of it is old: it
is rolled then, as Kafka does. Local retention
only frees a copy that is readable elsewhere: the segment is COMPLETE in the object store and cold reads are allowed
(F37).
Source: docs/design.md sections 5 and 11; Kafka's retention.ms/bytes and local.retention.ms/bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, SealRecord, Segment, SegmentState, TimesKnown

NO_LIMIT = -1
_ANY_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """A topic's limits, with "same as total" (-2) resolved. -1 means no limit."""

    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    local_retention_bytes: int
    may_read_cold: bool
    """The read policy is not Disable."""


@dataclass(frozen=True, slots=True)
class LogStartMove:
    """Move the log start to `offset`; what ends at or below it is deleted."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LocalFreeing:
    key: SegmentKey
    reason: str


def age_ms(seal: SealRecord, now_ms: int) -> int:
    """How old a sealed segment is: by its latest record; by its seal when no record has a time (F83). Where a record
    may be later than its batch's header says, it is as young as both of them allow."""
    if seal.times_known is TimesKnown.ALL and seal.max_timestamp_ms >= 0:
        return now_ms - seal.max_timestamp_ms
    return now_ms - max(seal.max_timestamp_ms, seal.sealed_ms)


def local_age_ms(seal: SealRecord, now_ms: int) -> int:
    """The same for its local copy, which goes only if the object store has all of it: nothing was later than the seal,
    whatever time a record has. One from the future would keep the copy here until then."""
    timestamp_ms = seal.max_timestamp_ms if seal.max_timestamp_ms >= 0 else seal.sealed_ms
    return now_ms - min(timestamp_ms, seal.sealed_ms)


def expired(
    segments: Sequence[Segment], active_bytes: int, limits: RetentionLimits, now_ms: int
) -> LogStartMove | None:
    """The new log start by time and size. `segments` are the shard's, oldest first; `active_bytes` are the bytes of its
    unsealed ones. Deletion stops at the first segment that is not sealed or not due, so the log has no hole.
    """
    heads = []
    for segment in segments:
        if segment.state is not SegmentState.SEALED or segment.seal is None:
            break
        heads.append(segment.seal)
    total_bytes = active_bytes + sum(segment.seal.size_bytes for segment in segments if segment.seal is not None)
    move: LogStartMove | None = None
    for seal in heads:
        reason = _why_expired(seal, total_bytes, limits, now_ms)
        if reason is None:
            break
        total_bytes -= seal.size_bytes
        move = LogStartMove(seal.end_offset, reason)
    return move


def may_have_expired(seal: SealRecord, retention_ms: int, retention_bytes: int, now_ms: int) -> bool:
    """Whether total retention may have deleted a segment by now, for one who sees no sizes: any limit of bytes may."""
    if retention_bytes != NO_LIMIT:
        return True
    return retention_ms != NO_LIMIT and age_ms(seal, now_ms) > retention_ms


def is_to_archive(seal: SealRecord, archive_after_ms: int, now_ms: int) -> bool:
    """Whether a complete segment is old enough for a class that must be restored before it is read."""
    return archive_after_ms != NO_LIMIT and age_ms(seal, now_ms) > archive_after_ms


def is_active_next(segments: Sequence[Segment], log_start_offset: int, move: LogStartMove | None) -> bool:
    """Whether all before the ACTIVE segment is gone or goes now, so that it may be the next to end. `move`: as
    `expired` says."""
    active = segments[-1]
    reached = log_start_offset if move is None else max(move.offset, log_start_offset)
    return active.state is SegmentState.ACTIVE and reached >= active.base_offset


def active_before_ms(limits: RetentionLimits, now_ms: int) -> int | None:
    """Of what time the newest record of an ACTIVE segment must be older for the segment to end; None: it never does."""
    if limits.retention_bytes == 0:
        return _ANY_MS
    return None if limits.retention_ms == NO_LIMIT else now_ms - limits.retention_ms


def active_expired(end_offset: int, newest_ms: int, limits: RetentionLimits, now_ms: int) -> LogStartMove:
    """Where the log start goes once an ACTIVE segment has ended whose newest record is older than that."""
    if limits.retention_bytes == 0:
        return LogStartMove(end_offset, "retention.bytes=0")
    return LogStartMove(
        end_offset, f"retention.ms={limits.retention_ms}: the last record is {now_ms - newest_ms} ms old"
    )


def _why_expired(seal: SealRecord, total_bytes: int, limits: RetentionLimits, now_ms: int) -> str | None:
    age = age_ms(seal, now_ms)
    if limits.retention_ms != NO_LIMIT and age > limits.retention_ms:
        return f"retention.ms={limits.retention_ms}: the last record is {age} ms old"
    if limits.retention_bytes != NO_LIMIT and total_bytes - seal.size_bytes >= limits.retention_bytes:
        return f"retention.bytes={limits.retention_bytes}: the shard holds {total_bytes}"
    return None


def local_copies_to_free(
    segments: Sequence[Segment],
    has_local: Callable[[SegmentKey], bool],
    active_bytes: int,
    limits: RetentionLimits,
    now_ms: int,
) -> list[LocalFreeing]:
    """Local copies that may go now, oldest first. One whose upload is behind stays, and holds up no younger one."""
    if not limits.may_read_cold:
        return []
    held = [segment for segment in segments if segment.seal is not None and has_local(segment.key)]
    local_bytes = active_bytes + sum(segment.seal.size_bytes for segment in held if segment.seal is not None)
    freed: list[LocalFreeing] = []
    for segment in held:
        seal = segment.seal
        if seal is None or segment.state is not SegmentState.SEALED:
            continue
        if segment.remote.state is not RemoteState.COMPLETE:
            continue
        reason = _why_freed(seal, local_bytes, limits, now_ms)
        if reason is not None:
            local_bytes -= seal.size_bytes
            freed.append(LocalFreeing(segment.key, reason))
    return freed


def _why_freed(seal: SealRecord, local_bytes: int, limits: RetentionLimits, now_ms: int) -> str | None:
    age = local_age_ms(seal, now_ms)
    if limits.local_retention_ms != NO_LIMIT and age > limits.local_retention_ms:
        return f"local.retention.ms={limits.local_retention_ms}: the last record is {age} ms old"
    if limits.local_retention_bytes != NO_LIMIT and local_bytes - seal.size_bytes >= limits.local_retention_bytes:
        return f"local.retention.bytes={limits.local_retention_bytes}: the shard holds {local_bytes} here"
    return None


@dataclass(frozen=True, slots=True)
class DiskPressure:
    """Local data waits for its upload up to a hard limit; above it writes are refused, history is never dropped."""

    local_bytes: int
    limit_bytes: int
    unsent_bytes: int

    @property
    def message(self) -> str:
        return (
            f"local segments hold {self.local_bytes} bytes, above local.hard.limit.bytes={self.limit_bytes} "
            f"({self.unsent_bytes} bytes wait for their upload): writes are refused until uploads catch up or the "
            "limit is raised"
        )


_RESUME_RATIO = 0.95


def disk_pressure(
    local_bytes: int, limit_bytes: int, unsent_bytes: int, before: DiskPressure | None
) -> DiskPressure | None:
    """Whether writes are refused. Once they are, until there is some room again, so that it does not flutter."""
    if limit_bytes == NO_LIMIT:
        return None
    bar = limit_bytes if before is None else int(limit_bytes * _RESUME_RATIO)
    return DiskPressure(local_bytes, limit_bytes, unsent_bytes) if local_bytes > bar else None

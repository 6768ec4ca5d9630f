"""Events and steps between `machines.restart.shard_restart` and its shell. Events are past participles, steps
imperatives. Positions are in bytes and count from a file's first batch. Steps are done in the order in which they come,
each wholly before the next: that order is what a crash between any two of them relies on. A step that is answered by an
event is the last of its list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import Segment

Producers: TypeAlias = tuple[ProducerSnapshot, ...]


@dataclass(frozen=True, slots=True)
class CheckpointClaim:
    """What a checkpoint says: every batch below `end_offset`, which is at `position`, was flushed."""

    position: int
    end_offset: int
    producers: Producers
    """At `end_offset`."""


@dataclass(frozen=True, slots=True)
class ShardMetadata:
    """What the meta service says of a shard now."""

    segments: tuple[Segment, ...]
    """Oldest first, without the deleted ones."""
    log_start_offset: int
    is_fsync: bool
    """The topic's flush policy: what is acknowledged must be flushed first."""
    tables: Mapping[SegmentKey, Producers] = field(default_factory=dict)
    """What was read of the producers at the ends of sealed segments: what the pass asked for (`ReadProducers`)."""
    may_read_bucket: bool = True
    """Consumers of the topic are served from the object store."""


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """A segment that is not sealed, and the whole batches of its file."""

    key: SegmentKey
    end_offset: int
    size_bytes: int
    checked_from: int
    """The batches from here on were read and checked now; those below are a checkpoint's word."""
    producers: Producers
    """At `end_offset`."""
    is_confirmed: bool
    """False: the meta service has not heard of it. Nothing in it was acknowledged or shown."""
    is_ended: bool
    """It takes no batches: it ended before, or the file of the next one was found."""
    is_tail_doubted: bool
    """It takes no batches either: see `SegmentLeader`."""


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """What of a shard's log was found. Life begins with it."""

    ended: tuple[RecoveredSegment, ...] = ()
    """Oldest first."""
    active: RecoveredSegment | None = None
    """None: nothing was written to it, or the shard does not serve."""
    inherited: Producers | None = None
    """What the first file opened in this life begins with; None when there is one, or the shard does not serve."""
    high_watermark: int = 0
    doubted_epoch: int = -1
    """The epoch that takes no batches, whether its file was found or not; -1 for none."""


# Events: what happened -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FilesListed:
    """A pass over the shard begins, the first or another."""

    metadata: ShardMetadata | None
    """None: there is no such shard any more."""
    files: frozenset[SegmentKey]
    checkpoints: Mapping[SegmentKey, CheckpointClaim]
    """All there are of this shard."""
    written: Mapping[SegmentKey, int] = field(default_factory=dict)
    """What the last life left in memory: below these offsets batches were written, flushed or not."""


@dataclass(frozen=True, slots=True)
class FileOpened:
    """The answer to `OpenFile`."""

    key: SegmentKey
    size_bytes: int
    """Behind the header: batches, a torn tail, room ahead."""
    has_header: bool
    """False: it was never written, or a power cut took it. True: it names this very segment."""


@dataclass(frozen=True, slots=True)
class FileDamaged:
    """The other answer to `OpenFile`: the file is not this segment's, or its header cannot be read."""

    key: SegmentKey
    why: str


@dataclass(frozen=True, slots=True)
class FileScanned:
    """The answer to `ScanFile`: whole batches end at `position`, and so does the log at `end_offset`."""

    key: SegmentKey
    position: int
    end_offset: int
    producers: Producers
    seen_offset: int = -1
    """The offset below which some of the file's batches cannot be read, which no crash explains; -1: all can be
    read."""


@dataclass(frozen=True, slots=True)
class CheckpointTraced:
    """The answer to `TraceCheckpoint`."""

    key: SegmentKey
    is_led_to: bool
    """Whether the headers before the checkpoint's position end just there, at its offset."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step could not be done (the disk, permissions), and those behind it were not begun."""

    key: SegmentKey | None
    """Whose file it was about, if one's."""
    why: str


RestartEvent: TypeAlias = FilesListed | FileOpened | FileDamaged | FileScanned | CheckpointTraced | StepFailed


# Steps: what the shell must do, in this order --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TakeSealed:
    """The file is a sealed copy of this shard."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class NoteMissing:
    """A sealed copy should be here and is not: tell and count it once."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class FreeLeftover:
    """Delete a copy that metadata has let go of: a crash came before its file went."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Look at an unsealed segment's size and header. Answer: `FileOpened`, `FileDamaged`."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class SetAside:
    """Keep the file under another name, for a human: this life does without it."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class RecreateFile:
    """Make the file with nothing but its header. What lay under its name and is worth keeping was set aside."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class ScanFile:
    """Read whole batches up to where they end. Answer: `FileScanned`."""

    key: SegmentKey
    from_position: int
    """0, or that of the checkpoint."""
    producers: Producers
    """There."""


@dataclass(frozen=True, slots=True)
class TraceCheckpoint:
    """Read only the headers of the batches that should lead up to the checkpoint. Answer: `CheckpointTraced`."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class ReadProducers:
    """The pass cannot continue without the table of producers at this sealed segment's end: list the files again, with
    it. The last of its list."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class CutTail:
    """Cut the file where its whole batches end: what follows is torn, or room ahead."""

    key: SegmentKey
    position: int


@dataclass(frozen=True, slots=True)
class FlushFile:
    """Durability: the file, and the names that lead to it."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class RevokeCheckpoints:
    """Durability: no later start finds them."""

    keys: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class RevokeStale:
    """The same by the time this shard serves, so that those of many shards go in one flush: a file that grows past such
    a position again would be cut there."""

    keys: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class Serve:
    """The log is whole up to where it is known to have been written: take writes, answer readers."""

    log: RecoveredLog


@dataclass(frozen=True, slots=True)
class Heal:
    """Offsets `[local_end, known_end)` of an unsealed segment are known to have been written, and are not in its file:
    see `machines.restart.shard_healing`, then list the files again. Meanwhile `log` serves reads, and no writes."""

    segment: Segment
    local_end: int
    known_end: int
    log: RecoveredLog


@dataclass(frozen=True, slots=True)
class StopShard:
    """Until the next start: the disk cannot be read or written. `log` serves reads, and no writes."""

    why: str
    log: RecoveredLog


@dataclass(frozen=True, slots=True)
class SealEnded:
    """The meta service knows where it ended: its seal may be written. Any time after the pass."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class ConfirmRoll:
    """Tell the meta service where `old` ended, once all of it is flushed. Until then nothing in `new` counts. Any time
    after the pass, in this order."""

    old: SegmentKey
    new: SegmentKey


CopyStep: TypeAlias = TakeSealed | NoteMissing | FreeLeftover
"""About sealed copies."""
FileStep: TypeAlias = OpenFile | SetAside | RecreateFile | ScanFile | TraceCheckpoint | CutTail | FlushFile
"""About files of segments that are not sealed."""
RestartStep: TypeAlias = (
    CopyStep
    | FileStep
    | ReadProducers
    | RevokeCheckpoints
    | RevokeStale
    | Serve
    | Heal
    | StopShard
    | SealEnded
    | ConfirmRoll
)

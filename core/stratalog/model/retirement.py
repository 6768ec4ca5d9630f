"""How a node leaves: the record of its retirement, which is a field of the node's own record.

Words and steps: docs/scaling-spec.md. Plain immutable data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from stratalog.model.bounds import Count, Int32
from stratalog.model.ids import SegmentKey

MAX_GIVEN_UP_LISTED: Final = 1_000
MAX_UNHELD_LISTED: Final = 1_000


class RetireMode(StrEnum):
    OFFLOAD = "offload"
    """What it held is served from the object store, or from copies on nodes that stay."""
    VOLUME = "volume"
    """Its directory stays, and is read where it is."""


class RetireStep(StrEnum):
    """In their order."""

    PREFLIGHT = "preflight"
    CORDON = "cordon"
    SEAL = "seal"
    OFFLOAD = "offload"
    VERIFY = "verify"
    SNAPSHOT = "snapshot"
    RELEASE = "release"
    """From here on nothing is taken back."""
    MOUNT = "mount"
    DONE = "done"

    @property
    def is_released(self) -> bool:
        return self in (RetireStep.RELEASE, RetireStep.MOUNT, RetireStep.DONE)


class WaitReason(StrEnum):
    """Why a retirement does not continue. A closed set; docs/operate.md says what to do about each reason."""

    LAST_NODE = "LastNode"
    REPLICATION_FACTOR = "ReplicationFactor"
    ZONE_SPREAD = "ZoneSpread"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    SHARD_UNAVAILABLE = "ShardUnavailable"
    UNDER_REPLICATED = "UnderReplicated"
    STORE_UNREACHABLE = "StoreUnreachable"
    LAST_COPY_LOST = "LastCopyLost"
    DIGEST_MISMATCH = "DigestMismatch"
    UNKNOWN_SEGMENTS = "UnknownSegments"
    CHECK_IN_PROGRESS = "CheckInProgress"
    RELEASE_IN_PROGRESS = "ReleaseInProgress"
    NO_MOUNT_HOLDER = "NoMountHolder"
    MOUNT_PENDING = "MountPending"
    META_UNREACHABLE = "MetaUnreachable"


@dataclass(frozen=True, slots=True)
class Wait:
    reason: WaitReason
    words: str
    """With the numbers."""
    since_ms: Count


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node checked whether all data that the leaving node held are where the metadata say."""

    by_node: Int32
    at_ms: Count
    segments: Count
    """How many segments it could check."""
    unconfirmed: tuple[SegmentKey, ...] = ()
    """The first segments that it could not check, or that are not what they should be."""
    unconfirmed_count: Count = 0
    is_differing: bool = False
    """One of them is there and is something else: no pause makes it better."""
    words: str = ""
    """What was wrong with the first one."""

    @property
    def is_clean(self) -> bool:
        return self.unconfirmed_count == 0


class LostRange(NamedTuple):
    """Offsets that no node had when a person gave them up. Empty for an open segment of which none is known: what only
    the lost node had may have been written behind them."""

    segment: SegmentKey
    base_offset: Count
    end_offset: Count


class UnheldRange(NamedTuple):
    """Offsets `[base_offset, end_offset)` that a dead node held, and that neither a living node nor the object store
    has. A node that is away may have them."""

    topic: str
    segment: SegmentKey
    base_offset: Count
    end_offset: Count | None
    """None for a segment that was being written: no living node knows where it ends."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """Of one node and one disk. It stays when all is done: that id on that disk never comes back."""

    storage_id: str
    mode: RetireMode
    step: RetireStep
    begun_ms: Count
    step_since_ms: Count
    wait: Wait | None = None
    sightings: tuple[Sighting, ...] = ()
    """Since the step before them was left: two that were clean in a row, or the last one behind one that was not."""
    inventory_key: str | None = None
    """The object that lists what it held."""
    is_forced: bool = False
    """A person gave up the data that no node has."""
    given_up: tuple[LostRange, ...] = ()
    """The first of them; of the segments that were open, the first few."""
    given_up_count: Count = 0
    is_volume_lost: bool = False
    """A person gave up its directory as well, by ending its mount: no node reads it any more."""

    @property
    def keeps_directory(self) -> bool:
        """What its disk has is read there, now or later."""
        return self.mode is RetireMode.VOLUME and not self.is_volume_lost

    @property
    def is_cordoned(self) -> bool:
        """Nothing new is placed there."""
        return self.step is not RetireStep.PREFLIGHT

    @property
    def last_check_ms(self) -> int:
        """When the last check was reported, by the service's clock; 0: never."""
        return self.sightings[-1].at_ms if self.sightings else 0

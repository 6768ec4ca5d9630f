"""What the cluster UI shows, as `GET /v1/overview` tells it. Plain immutable data.

Bounded, whatever the cluster holds: each list has its first entries (`machines.plans.cluster_overview`), with how many
more there are beside it. Names and words are others' text: whoever shows them escapes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.activity import StoppedHere, UploadActivity
from stratalog.model.bounds import Count, CountOrNone, Int32


@dataclass(frozen=True, slots=True)
class NodeRow:
    node_id: Int32
    state: str
    """`alive`, `not alive`, `silent` (it counts as alive, and has told nothing for a while), `leaves`, `retired`."""
    address: str
    rack: str | None
    leads: Count
    """Active segments that it leads."""
    replicas: Count
    """Active segments that it has a replica of, including those that it leads."""
    told_ms_ago: CountOrNone
    """Since it told what follows; -1: it has told nothing to this instance."""
    disk_free_bytes: CountOrNone
    disk_total_bytes: CountOrNone
    has_room: bool
    uploads: UploadActivity | None
    """None: without an object store, or not known."""
    troubles: tuple[str, ...]
    stopped_shards: Count
    page_url: str
    """Of its own page; empty: it has none, or has told nothing."""
    can_write: bool = True
    """False while it lives and its disk makes no progress."""
    mounts: tuple[str, ...] = ()
    """That make readable what the node held when it left."""


@dataclass(frozen=True, slots=True)
class StoppedRow:
    node_id: Int32
    shard: StoppedHere


@dataclass(frozen=True, slots=True)
class ShardSums:
    topics: Count
    shards: Count
    segments: Count
    led: Count
    """Shards whose active segment has a leader that lives."""
    under_replicated: Count
    """Shards whose active segment has fewer in sync, on nodes that live, than replicas are asked for."""
    troubled: Count
    """Shards that have something to report."""


@dataclass(frozen=True, slots=True)
class TierSum:
    """Sealed segments that are in the same places."""

    segments: Count
    bytes: Count


@dataclass(frozen=True, slots=True)
class Tiers:
    local: TierSum
    """On nodes alone, or not all of it in the object store."""
    both: TierSum
    cold: TierSum
    """In the object store alone."""
    nowhere: TierSum
    """No node is known to have it, nor all of it the object store."""
    open_segments: Count
    """Not sealed yet; of these the metadata know no size."""


@dataclass(frozen=True, slots=True)
class TroubledShard:
    topic: str
    shard: Int32
    epoch: Int32
    """Of the segment that it is about."""
    kind: str
    words: str
    nodes: tuple[Int32, ...]
    leader: Int32 | None
    """Of the shard's active segment, as are the others."""
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class TroubleCount:
    kind: str
    count: Count


@dataclass(frozen=True, slots=True)
class RetirementRow:
    node_id: Int32
    step: str
    mode: str
    for_ms: Count
    """In this step."""
    waits: str | None
    """The reason, of the closed list."""
    waits_ms: Count
    words: str
    remaining_segments: Count
    remaining_bytes: Count
    bytes_per_second: Count
    seconds_left: CountOrNone


@dataclass(frozen=True, slots=True)
class MountRow:
    name: str
    mode: str
    state: str
    holder: Int32 | None
    token: Count
    volume: str | None
    """Where the directory is read, in volume mode."""
    topics: tuple[str, ...]
    expires_ms: Count
    is_read: bool
    """None for a mount in volume mode whose directory is not served, and for one that waits for a holder."""


@dataclass(frozen=True, slots=True)
class Overview:
    cluster_id: str
    version: Count
    now_ms: Count
    why_no_changes: str | None
    nodes: tuple[NodeRow, ...]
    more_nodes: Count
    shards: ShardSums
    tiers: Tiers
    trouble_kinds: tuple[TroubleCount, ...]
    troubles: tuple[TroubledShard, ...]
    """Worst first."""
    more_troubles: Count
    stopped: tuple[StoppedRow, ...]
    more_stopped: Count
    retirements: tuple[RetirementRow, ...]
    more_retirements: Count
    mounts: tuple[MountRow, ...]
    more_mounts: Count
    faults: tuple[str, ...]
    """What is wrong with the cluster as a whole, or with nodes, in words."""
    more_faults: Count

"""What the group coordinator counts."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.telemetry.metrics import counter, gauge


@dataclass(slots=True)
class GroupStats:
    hosted: int = gauge("Groups coordinated by this node.")
    offsets: int = gauge("Committed offsets held by this node.")
    held_bytes: int = gauge("Memory that groups take: members, their metadata and assignments, offsets.")
    shards_loaded: int = gauge("Shards of the group log that this node coordinates.")
    joins: int = counter("JoinGroup requests accepted.")
    rebalances: int = counter("Rebalances completed: generations begun.")
    commits: int = counter("Offset commit requests acknowledged.")
    committed_offsets: int = counter("Offsets in acknowledged commits.")
    expired_offsets: int = counter("Offsets forgotten because their time was over or their topic was deleted.")
    appends: int = counter("Appends to the group log; one carries what came in while the one before was under way.")
    append_bytes: int = counter("Bytes appended to the group log.")
    append_failures: int = counter("Appends to the group log that failed or whose outcome is unknown.")
    snapshots: int = counter("Snapshots of a group log shard completed.")
    proofs: int = counter("Appends made to see whether this node still coordinates, because the meta service is away.")
    loads: int = counter("Group log shards loaded.")
    incomplete_loads: int = counter("Group log shards loaded without their beginning, or what was given up.")
    foreign_batches: int = counter("Batches in the group log that no coordinator wrote, passed over when loaded.")

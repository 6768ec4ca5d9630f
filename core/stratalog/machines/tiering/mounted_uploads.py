"""Sealed segments that a node uploads without a file of its own, because only retired nodes' directories have them.
Pure: from the segment's record and the mounts to the nodes to read from, or why there is none now.
Source: docs/scaling-spec.md section 5.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.machines.tiering.upload_duty import MountOf, directories
from stratalog.machines.tiering.upload_events import PART_OVERHEAD_BYTES
from stratalog.model.mounts import Mount
from stratalog.model.segment import Segment

_BYTES_PER_POINT = 1_024
"""A part's index has a point of some tens of bytes for each 64 KiB: less than one byte per this many."""


class MountedCopy(NamedTuple):
    """Where a segment is read that this node has no file of."""

    nodes: tuple[int, ...]
    """Retired nodes whose directories are read now, in the order in which they are asked."""
    starts: tuple[str, ...]
    """Which processes read them: what one of them could not give another may."""
    away: str | None
    """Why none is read, in words; None while one is."""


def mounted_copy(segment: Segment, node_id: int, mount_of: MountOf) -> MountedCopy | None:
    """Of a segment that `node_id` uploads; None where it has, or should have, a file of its own. Whether the node that
    reads a directory answers for this segment is found out by a request: the mount need not be served for it."""
    if node_id in segment.local_nodes or not (mounts := directories(segment, mount_of)):
        return None
    open_ones = [(mount.node_id, mount.volume.start_id) for mount in mounts if mount.volume is not None]
    return MountedCopy(
        tuple(node for node, _ in open_ones),
        tuple(start for _, start in open_ones),
        None if open_ones else "; ".join(map(why_closed, mounts)),
    )


def why_closed(mount: Mount) -> str:
    """For a directory that no node reads now."""
    return (
        f"the directory of node {mount.node_id} is not read now: run `stratalog node start --read-only --data DIR` "
        "where it is"
    )


def most_unsent_bytes(segment: Segment) -> int:
    """Bytes of a sealed segment's batches that are not committed, counted from above; 0 once all are.

    Parts are known with their headers and indexes. Counted from below, the rest would be cut into ever smaller pieces.
    """
    seal, remote = segment.seal, segment.remote
    if seal is None or max(seal.base_offset, remote.commit_offset) >= seal.end_offset:
        return 0
    committed = sum(
        max(0, part.size_bytes - PART_OVERHEAD_BYTES - part.size_bytes // _BYTES_PER_POINT) for part in remote.parts
    )
    return max(1, seal.size_bytes - committed)

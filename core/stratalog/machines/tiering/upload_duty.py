"""Which node uploads a segment, and which node deletes its remains: one node at any time; nodes and meta service use
the same function. Pure. Nothing is stored for it: it follows from the segment, from the living nodes, and from the
mounts, so a dead node's duties pass on with the change that reports its death. Two nodes that have seen different
changes may both believe that the duty is theirs; the meta service, which knows the newest change, fences the commits of
the wrong one.
Source: docs/design.md sections 3 and 5, docs/scaling-spec.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from stratalog.model.mounts import Mount, MountMode
from stratalog.model.segment import Segment, SegmentState

MountOf = Callable[[int], Mount | None]
"""The mount of a retired node's data set; None where there is none."""

SWEEPER: Final = "orphan-sweep"
"""All sweepers hold the locks of others under this name, so a sweep costs one epoch however often it runs."""
SWEEP_LEASE_MS: Final = 1
"""It is over at once: the epoch is what counts."""


def uploader_of(segment: Segment, is_alive: Callable[[int], bool], mount_of: MountOf) -> int | None:
    """The leader while there is one, dead or not: only it knows what may be uploaded, and a recovery ends its
    leadership. Then the source of that recovery, and then the first living holder in the order of the replicas, so that
    the former leader continues with what its page cache has. A node whose data set is mounted is skipped, because
    another node has its write lock. If no holder lives, the holder of the mount of the first directory that has a
    sealed segment, because a retired node never comes back; None while there is none."""
    if segment.leader is not None:
        return segment.leader
    source = segment.handed.source
    if source is not None and is_alive(source):
        return source
    holders = segment.local_nodes or segment.replicas
    in_order = [node for node in segment.replicas if node in holders]
    in_order += [node for node in holders if node not in in_order]
    living = next((node for node in in_order if is_alive(node) and mount_of(node) is None), None)
    if living is not None:
        return living
    return next((mount.holder for mount in directories(segment, mount_of) if mount.holder is not None), None)


def directories(segment: Segment, mount_of: MountOf) -> Sequence[Mount]:
    """The mounts of retired nodes' directories that have a proven copy of a sealed segment, in the order of its
    holders. In offload mode there is no directory, and before its seal nothing is read there."""
    if segment.state is not SegmentState.SEALED or segment.seal is None:
        return ()
    mounts = map(mount_of, segment.local_nodes)
    return [mount for mount in mounts if mount is not None and mount.mode is MountMode.VOLUME]


def keeper_of(
    segment: Segment,
    is_alive: Callable[[int], bool],
    holder_of: Callable[[int], int | None],
    is_retired: Callable[[int], bool],
    first_living: Callable[[], int | None],
) -> int | None:
    """The node that deletes what all share of a DELETED segment, its objects and its metadata: the first living
    replica. The present holders do not matter, because each frees its own copy. If no replica lives, the holder of the
    mount of the first one that is mounted. If all have left and their mounts ended, the first living node. None while
    there is none."""
    living = next((node for node in segment.replicas if is_alive(node)), None)
    if living is not None:
        return living
    holder = next((holder for holder in map(holder_of, segment.replicas) if holder is not None), None)
    if holder is None and all(map(is_retired, segment.replicas)):
        return first_living()
    return holder


def sweeper_of(node_id: int, living: Collection[int], holder: int | None) -> int | None:
    """The node that deletes objects that a node left in the bucket and nothing refers to: that node itself while it
    lives, the holder of the mount of its data set, else the first living node."""
    if node_id in living or holder is None:
        return node_id if node_id in living else min(living, default=None)
    return holder

"""The one verdict on a segment without a local file: freed, held by the object store, or lost on this node.

`locate`, `verify`, `doctor`, the uploader, reads and restarts all use it. Pure: takes the segment's record and whether
there is an object store.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stratalog.model.segment import RemoteState, Segment

RESTORE_VOLUME = "check that the right volume is mounted; if the data is lost, restore a backup of the directory"
LIFT_POLICY = (
    "wait until a node has copied it from the object store; or set remote.read.policy=NotInDisk on the topic, and "
    "readers are served from there"
)
GIVE_BUCKET = "start the node with the --bucket that holds its data"


class Standing(StrEnum):
    """Where a segment without a local file is."""

    FREED = "freed"
    """As it should be: the local copy was freed, or was never here."""
    STORED = "stored"
    """The file should be here; the object store has the whole segment."""
    LOST = "lost"
    """The file should be here, and not all of the segment is in the object store."""
    ELSEWHERE = "elsewhere"
    """Other nodes hold the copies."""
    OUT_OF_REACH = "out of reach"
    """Only in an object store, and this node was started without one."""


@dataclass(frozen=True, slots=True)
class MissingCopy:
    standing: Standing
    what: str
    next_step: str

    @property
    def words(self) -> str:
        return f"{self.what}; {self.next_step}"

    @property
    def is_error(self) -> bool:
        return self.standing in (Standing.LOST, Standing.OUT_OF_REACH)

    @property
    def is_worth_reporting(self) -> bool:
        return self.standing is Standing.STORED or self.is_error


def judge_missing(segment: Segment, node_id: int, *, has_store: bool, may_read: bool = True) -> MissingCopy:
    """Of a sealed or ended segment without a file on this node. `may_read`: readers are served from the object store
    (`bucket_reads`)."""
    is_listed = node_id in segment.local_nodes if segment.seal is not None else node_id == segment.leader
    if segment.end_offset == segment.base_offset:
        return MissingCopy(Standing.FREED, "it is empty", "none needed")
    if segment.remote.state is RemoteState.COMPLETE:
        if not has_store:
            what = "its data is only in an object store, and this node was started without one"
            return MissingCopy(Standing.OUT_OF_REACH, what, GIVE_BUCKET)
        if not may_read:
            return _judge_barred(segment, node_id)
        if is_listed:
            what = "its local file is missing; the object store has the whole segment"
            return MissingCopy(Standing.STORED, what, "none needed: reads go to the object store")
        return MissingCopy(Standing.FREED, "the local copy was freed after the upload was verified", "none needed")
    others = tuple(node for node in segment.local_nodes or segment.replicas if node != node_id)
    if not is_listed and others:
        return MissingCopy(Standing.ELSEWHERE, f"its copies are on the nodes {others}", "ask these nodes")
    if segment.is_wholly_committed and has_store:
        what = "its local file is missing; the object store has all its batches"
        return MissingCopy(Standing.STORED, what, "none needed: a node copies them, and completes the copy there")
    stored_to = segment.committed_end
    end = "the last one written" if segment.end_offset is None else f"{segment.end_offset})"
    what = f"its local file is missing: offsets [{stored_to}, {end} are lost here and not in the object store"
    step = f"bring back one of the nodes {others}, or restore the file from a backup" if others else RESTORE_VOLUME
    return MissingCopy(Standing.LOST, what, step)


def _judge_barred(segment: Segment, node_id: int) -> MissingCopy:
    """Of one that is whole in the object store, where the topic's policy lets no reader go."""
    others = tuple(node for node in segment.local_nodes if node != node_id)
    if others:
        return MissingCopy(Standing.ELSEWHERE, f"its copies are on the nodes {others}", "ask these nodes")
    what = "its data is only in the object store, and remote.read.policy=Disable keeps readers out of it"
    return MissingCopy(Standing.OUT_OF_REACH, what, LIFT_POLICY)

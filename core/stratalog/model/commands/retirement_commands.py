"""What may be asked of the meta service about nodes that leave (docs/scaling-spec.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratalog.model.bounds import Count, Int32
from stratalog.model.commands.command import Command, NodeCommand
from stratalog.model.ids import SegmentKey
from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Wait
from stratalog.model.segment import Segment


@dataclass(frozen=True, slots=True)
class RetireNode(NodeCommand[Retirement]):
    """Wish that a node leaves; the service's leader does the rest. Asked again it is the same, also when it is done.
    Raises NotFound for a node that never was, Conflict for another mode than the one that it leaves by,
    InvalidRequest for a force that names another disk, or a node that is alive."""

    is_idempotent = True

    node_id: Int32
    mode: RetireMode = RetireMode.OFFLOAD
    force_storage_id: str | None = None
    """The storage id of the node, written out by the person: data that only this node has are given up."""
    force_absence: Count | None = None
    """Which absence of the node the force is about (`Node.absences`): refused with InvalidRequest when the node came
    back since, so that a decision that arrives late, or twice, gives up nothing that is there again. None: the present
    one."""


@dataclass(frozen=True, slots=True)
class CancelRetirement(NodeCommand[None]):
    """Let a node stay. Raises Conflict once it is released: then it never comes back, and capacity comes as a new
    node."""

    is_idempotent = True

    node_id: Int32


@dataclass(frozen=True, slots=True)
class ReportSighting(NodeCommand[None]):
    """The caller checked whether the data of a leaving node are where the metadata say. A report that no retirement
    waits for is ignored."""

    is_idempotent = True

    node_id: Int32
    storage_id: str
    begun_ms: Count
    """Of the retirement that it is about."""
    segments: Count
    unconfirmed: tuple[SegmentKey, ...] = ()
    unconfirmed_count: Count = 0
    is_differing: bool = False
    words: str = ""
    seen_ms: Count = 0
    """The time of the last check in the record when this check began, 0 for none. A check that rests on an older
    record, or is reported twice, does not count as a second check."""


@dataclass(frozen=True, slots=True)
class ReportInventory(NodeCommand[None]):
    """The list of what a leaving node held is in the object store, and was read back."""

    is_idempotent = True

    node_id: Int32
    storage_id: str
    begun_ms: Count
    key: str


# The meta service's own --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AdvanceRetirement(Command[None]):
    """Note the progress of a retirement. Nothing is done if the record has changed since it was read. Only the service
    itself submits it."""

    is_idempotent = True

    node_id: Int32
    seen: Retirement
    step: RetireStep
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class ReleaseNode(Command[bool]):
    """The node leaves the cluster: its life ends, and its write lock is free for others. The same transaction notes the
    data that no node has and a person gave up. False, with nothing changed, if the record has changed since it was
    read, or if the node now has the last readable copy of data that were not given up. Only the service itself submits
    it."""

    is_idempotent = True

    node_id: Int32
    seen: Retirement


@dataclass(frozen=True, slots=True)
class GiveUpOpen(Command[Segment | None]):
    """End an open segment that waits only for nodes that were given up by force, at its best known end. Each command
    takes one step (fence, end, a further replica that replaces the missing data), so it is repeated. The same
    transaction checks that this is still so: a node that has just come back may have all of the segment, and then
    nothing is changed. None: there is no such segment. Only the service itself submits it."""

    is_idempotent = True

    segment: SegmentKey


RetirementCommand: TypeAlias = (
    RetireNode | CancelRetirement | ReportSighting | ReportInventory | AdvanceRetirement | ReleaseNode | GiveUpOpen
)

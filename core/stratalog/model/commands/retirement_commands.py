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
    """The storage id of the node, spelled out: what nobody but it has is given up."""
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
    """The caller looked whether what a leaving node holds is where the metadata say. One that comes when nobody waits
    for it is passed over."""

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
    """The time of the last look that the record told of when this one began, 0 for none: a look that rests on an older
    record, or that comes once more, is no second one."""


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
    """Note where a retirement stands. Nothing is done when the record is not the one that was seen. Nobody asks for it
    over the network."""

    is_idempotent = True

    node_id: Int32
    seen: Retirement
    step: RetireStep
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class ReleaseNode(Command[bool]):
    """The node is no member any more, its life is over and its write lock free for others; what nobody has and a person
    gave up is written down in the same transaction. False, with nothing changed, when the record is not the one that
    was seen, or when it has the last readable copy of something by now that is not given up. Nobody asks for it over
    the network."""

    is_idempotent = True

    node_id: Int32
    seen: Retirement


@dataclass(frozen=True, slots=True)
class GiveUpOpen(Command[Segment | None]):
    """End what is open, and waits for nobody but who was given up by force, at what is known of it; one step at a time
    (fence, end, another replica that makes up what nobody has), so it is asked again. Whether that is so is looked at
    in the same transaction: who came back a moment before may have all of it, and then nothing is changed. None: there
    is no such segment. Nobody asks for it over the network."""

    is_idempotent = True

    segment: SegmentKey


RetirementCommand: TypeAlias = (
    RetireNode | CancelRetirement | ReportSighting | ReportInventory | AdvanceRetirement | ReleaseNode | GiveUpOpen
)

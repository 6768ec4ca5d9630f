"""The metadata record of one segment with several replicas, for tests of its followers."""

from __future__ import annotations

from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import Handover, RemoteCopy, RemoteState, SealRecord, Segment, SegmentState


def replicated_segment(
    key: SegmentKey,
    leader: int | None,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    *,
    fence: int = 0,
    end_offset: int | None = None,
    source: int | None = None,
    holders: tuple[int, ...] | None = None,
    is_stored: bool = False,
) -> Segment:
    """`holders`: the nodes that proved the seal; None: it is not sealed."""
    state, seal = SegmentState.ACTIVE if end_offset is None else SegmentState.SEALING, None
    if holders is not None:
        assert end_offset is not None, "a sealed segment has an end"
        state = SegmentState.SEALED
        seal = SealRecord(key.epoch, key.base_offset, end_offset, -1, -1, 1, b"digest", NO_PRODUCERS, holders, 0)
    return Segment(
        key,
        state,
        leader,
        replicas,
        isr,
        isr_version=0,
        opened_ms=0,
        end_offset=end_offset,
        seal=seal,
        local_nodes=holders or (),
        remote=RemoteCopy(RemoteState.COMPLETE if is_stored else RemoteState.NONE),
        fence=fence,
        handover=None if source is None else Handover(source=source),
    )

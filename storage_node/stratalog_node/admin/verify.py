"""Checks every digest of a node's segments, both tiers, one segment at a time, saying what it found as it goes.

Lives on the event loop; files are read in a thread, objects by the store's threads. It goes slowly on purpose: one file
window or one part is in memory, and nothing runs in parallel, so that clients do not feel it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from stratalog.admin_api.models import Finding, VerifyDone, VerifyRequest, VerifySegment, VerifyStart
from stratalog.admin_api.next_steps import CHECK_VOLUME
from stratalog.event_loop.fair_turns import FairTurns
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.machines.restart.missing_copy import judge_missing
from stratalog.model.errors import Corrupt, InvalidRequest, NotFound, StratalogError
from stratalog.model.segment import RemoteState, Segment, SegmentIdentity
from stratalog_node.admin.describe import cold_bytes, end_of, holders_of, local_bytes
from stratalog_node.admin.services import AdminServices
from stratalog_node.check.batch_stream import BatchStream
from stratalog_node.check.local_segment import check_index_file, check_segment_file
from stratalog_node.check.remote_segment import check_remote_segment
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.slices import Slices

_RANGE_BYTES = 4 << 20
_ATTEMPTS = 5
"""A segment that changes under the check is checked again so often before its findings are believed."""


async def verify(
    services: AdminServices, request: VerifyRequest, turns: FairTurns, checks: asyncio.Semaphore
) -> AsyncIterator[VerifyStart | VerifySegment | VerifyDone]:
    """`checks` bounds the segments that are read at a time, for all who verify. Raises: NotFound, InvalidRequest before
    the first line; never after it."""
    slices, chosen, total = Slices(turns), [], 0
    for view in _chosen(services, request):
        for segment in tuple(view.segments):
            chosen.append((view, segment))
            total += local_bytes(view, segment) + cold_bytes(segment)
            await slices.did()
        await slices.did()
    yield VerifyStart(segments=len(chosen), bytes=total)
    local = cold = errors = warnings = 0
    others: set[int] = set()
    stops = {view.key: stop for view, stop in services.shards.stopped()}
    for view, segment in chosen:
        async with checks:
            line = await _check(services, view, segment)
        others.update(holders_of(services.catalog.segment(segment.key) or segment))
        if segment.seal is None and (stop := stops.get(view.key)) is not None and stop.hides_end:
            line.findings.append(_unopened(services, segment, stop))
        local += line.local_bytes
        cold += line.cold_bytes
        errors += sum(finding.severity == "error" for finding in line.findings)
        warnings += sum(finding.severity == "warning" for finding in line.findings)
        yield line
    yield VerifyDone(
        segments=len(chosen),
        local_bytes=local,
        cold_bytes=cold,
        errors=errors,
        warnings=warnings,
        node_id=services.node_id,
        other_holders=sorted(others - {services.node_id}),
    )


def _chosen(services: AdminServices, request: VerifyRequest) -> list[ShardView]:
    if request.topic is None:
        if request.shard is not None:
            raise InvalidRequest("a shard was given without its topic: name both, or neither")
        return [view for topic in services.catalog.topics() for view in services.views(topic)]
    if request.shard is None:
        return services.views(services.topic(request.topic))
    return [services.shard(services.topic(request.topic), request.shard)]


async def _check(services: AdminServices, view: ShardView, listed: Segment, attempt: int = 1) -> VerifySegment:
    # Much may have happened since the list was made: look again, and pass over what has gone.
    segment = services.catalog.segment(listed.key) or listed
    local, findings = await _check_local(services, view, segment)
    cold = 0
    if segment.remote.state is not RemoteState.NONE and services.store is not None:
        report = await check_remote_segment(services.store, services.cluster_id, segment)
        cold = report.batch_bytes
        findings += report.findings
    if findings and attempt < _ATTEMPTS and services.catalog.segment(listed.key) != segment:
        return await _again_or_gone(services, view, listed, attempt)
    return VerifySegment(
        topic=view.topic.name,
        shard=view.key.shard,
        epoch=segment.epoch,
        base_offset=segment.base_offset,
        end_offset=end_of(view, segment),
        state=segment.state.value,
        local_bytes=local,
        cold_bytes=cold,
        findings=findings,
    )


async def _again_or_gone(services: AdminServices, view: ShardView, listed: Segment, attempt: int) -> VerifySegment:
    """The segment changed while it was read: what looked wrong may be that. Deleted ones have nothing to check."""
    if services.catalog.segment(listed.key) is not None:
        return await _check(services, view, listed, attempt + 1)
    return VerifySegment(
        topic=view.topic.name,
        shard=view.key.shard,
        epoch=listed.epoch,
        base_offset=listed.base_offset,
        end_offset=end_of(view, listed),
        state="deleted",
        local_bytes=0,
        cold_bytes=0,
        findings=[],
    )


async def _check_local(services: AdminServices, view: ShardView, segment: Segment) -> tuple[int, list[Finding]]:
    if segment.seal is None:
        return await _check_growing(services, view, segment) if view.has_local(segment.key) else (0, [])
    expected = SegmentIdentity(
        services.cluster_id,
        segment.key.topic_id,
        view.topic.name,
        segment.key.shard,
        segment.epoch,
        segment.base_offset,
        0,
    )
    path = services.layout.segment(segment.key)

    def check() -> tuple[int, list[Finding]]:
        report = check_segment_file(path, expected=expected, seal=segment.seal)
        check_index_file(services.layout.index(segment.key), report, segment.seal)
        return report.batch_bytes, report.findings

    try:
        return await asyncio.to_thread(check)
    except NotFound:
        # It may have been freed a moment ago.
        return 0, _missing(services, services.catalog.segment(segment.key) or segment, str(path))
    except StratalogError as error:
        return 0, [Finding(severity="error", place=str(path), what=str(error), next_step=CHECK_VOLUME)]


async def _check_growing(services: AdminServices, view: ShardView, segment: Segment) -> tuple[int, list[Finding]]:
    """A segment without a seal record: what is committed now, through the shard's own reads."""
    path = str(services.layout.segment(segment.key))
    stream = BatchStream(source=path, base_offset=segment.base_offset, epoch=segment.epoch)
    end = min(end_of(view, segment), view.last_stable_offset)
    try:
        while stream.next_offset < end:
            piece = await view.read_committed_range(segment.key, stream.next_offset, _RANGE_BYTES)
            if not piece.data:
                break
            stream.feed(bytes(piece.data))
        stream.finish()
    except Corrupt as error:
        step = (
            "keep the node up, seal the segment (`stratalog seal`) so that its good data is offloaded, check the disk"
        )
        what = f"at byte {error.position}: {error.reason}"
        return stream.position, [Finding(severity="error", place=path, what=what, next_step=step)]
    except StratalogError as error:
        if not view.has_local(segment.key):
            return stream.position, []
        return stream.position, [Finding(severity="error", place=path, what=str(error), next_step=CHECK_VOLUME)]
    return stream.position, []


def _unopened(services: AdminServices, segment: Segment, stop: Stop) -> Finding:
    """A stopped shard's segment that no start could open: nothing of it was checked."""
    severity: Literal["error", "warning"] = "warning" if stop.cause is StopCause.HEALING else "error"
    place = str(services.layout.segment(segment.key))
    return Finding(severity=severity, place=place, what=stop.reason, next_step=stop.next_step)


def _missing(services: AdminServices, segment: Segment, place: str) -> list[Finding]:
    may_read = services.catalog.reads_bucket(segment.key.topic_id)
    verdict = judge_missing(segment, services.node_id, has_store=services.store is not None, may_read=may_read)
    if not verdict.is_worth_reporting:
        return []
    severity: Literal["error", "warning"] = "error" if verdict.is_error else "warning"
    return [Finding(severity=severity, place=place, what=verdict.what, next_step=verdict.next_step)]

"""Reads sealed data from other nodes and the object store if this node has no intact copy.

The sources are tried in the order of `machines.reading.read_sources` until one answers. This is not on the hot path.
Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from stratalog.machines.reading.read_policy import ReadPolicy
from stratalog.machines.reading.read_sources import ReadSource, sources
from stratalog.model.errors import Corrupt, NotFound, StratalogError, Unavailable
from stratalog.model.in_order import place_of
from stratalog.model.segment import RemoteState, Segment, TimesKnown
from stratalog_node.shards.copies.cold_reads import ColdReads, ReadFor
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.peer_reads import PeerReads

T = TypeVar("T")

_LOCAL_FIRST = (ReadPolicy.DISABLE, ReadPolicy.NOT_IN_DISK)
_MOST_AHEAD = 64
"""So many segments are looked at for each read: more than are read ahead, unless they are tiny."""

_LATEST_MS = 2**63 - 1

Sources = Sequence[tuple[ReadSource, Sequence[int]]]
"""In order; with the nodes to ask, where it is nodes."""


class OtherSources:
    def __init__(self, cold: ColdReads | None, peers: PeerReads | None) -> None:
        self._cold = cold
        self._peers = peers

    @property
    def has_store(self) -> bool:
        return self._cold is not None

    def sources(
        self, shard: LocalShard, segment: Segment | None, *, is_in_store: bool, policy: str | None = None
    ) -> Sources:
        """The sources that may be asked for data of a segment now. `is_in_store`: whether the store has all of the
        requested data. `policy`: instead of the topic's own."""
        near: Sequence[int] = ()
        far: Sequence[int] = ()
        if segment is not None and segment.seal is not None and self._peers is not None:
            near, far = self._peers.holders(segment)
        order = sources(
            policy or shard.rules.read_policy.value,
            has_near=bool(near),
            has_far=bool(far),
            is_in_store=is_in_store and self._cold is not None,
        )
        nodes = {ReadSource.NEAR_NODE: near, ReadSource.FAR_NODE: far}
        return [(source, nodes.get(source, ())) for source in order]

    def has_whole(self, shard: LocalShard, segment: Segment) -> bool:
        """Whether any source that may answer a lookup has all of a segment."""
        return bool(self._for_whole(shard, segment))

    def _for_whole(self, shard: LocalShard, segment: Segment) -> Sources:
        return self.sources(shard, segment, is_in_store=is_whole_in_store(segment), policy=_for_look_ups(shard))

    async def read(
        self,
        shard: LocalShard,
        segment: Segment,
        found: Sources,
        offset: int,
        max_bytes: int,
        room_bytes: Callable[[int], int],
        client: str,
    ) -> Sequence[bytes | memoryview]:
        """Batches of a segment, or from there on. Raises: Unavailable, Corrupt, NotFound."""

        async def ask(source: ReadSource, nodes: Sequence[int]) -> Sequence[bytes | memoryview]:
            if source is ReadSource.STORE:
                assert self._cold is not None
                shard.context.stats.cold_reads += 1
                run = _read_in_the_store(shard, segment)
                read_for = ReadFor(client, shard.rules.cold_limits)
                return await self._cold.read(run, offset, max_bytes, room_bytes, read_for)
            assert self._peers is not None
            return [await self._peers.read(segment, nodes, offset, room_bytes(max_bytes))]

        return await _first(found, ask)

    async def find_by_time(self, shard: LocalShard, segment: Segment, timestamp_ms: int) -> tuple[int, int] | None:
        """The first such record of a segment at or above the log start. Raises: Unavailable if no source can be asked
        for some part of the segment: the record may be in that part, and a consumer that gets "none" would skip it
        (F40)."""
        in_store = segment.remote.state is not RemoteState.NONE

        async def ask(source: ReadSource, nodes: Sequence[int]) -> tuple[int, int] | None:
            if source is ReadSource.STORE:
                assert self._cold is not None
                found = await self._cold.find_by_time(segment, timestamp_ms, shard.log_start_offset)
                if found is None and not is_whole_in_store(segment):
                    raise _out_of_reach(shard, segment)
                return found
            assert self._peers is not None
            return await self._peers.find_by_time(segment, nodes, timestamp_ms, shard.log_start_offset)

        order = self.sources(shard, segment, is_in_store=in_store, policy=_for_look_ups(shard))
        if not order:
            raise _out_of_reach(shard, segment)
        return await _first(order, ask)

    async def offset_of_max_timestamp(self, shard: LocalShard, segment: Segment) -> tuple[int, int] | None:
        """The first record with the greatest time of those of a segment at or above the log start. Raises: Unavailable,
        as above."""

        async def ask(source: ReadSource, nodes: Sequence[int]) -> tuple[int, int] | None:
            if source is ReadSource.STORE:
                assert self._cold is not None
                return await self._cold.offset_of_max_timestamp(segment)
            assert self._peers is not None and segment.seal is not None
            seal = segment.seal
            if seal.times_known is not TimesKnown.CLAIMED:
                return await self._peers.find_by_time(segment, nodes, seal.max_timestamp_ms, segment.base_offset)
            return await self._newest_below(shard, segment, _LATEST_MS)

        if segment.seal is not None and segment.seal.is_older_than(0):
            return None
        order = self._for_whole(shard, segment)
        if not order:
            raise _out_of_reach(shard, segment)
        found = await _first(order, ask)
        if found is None or found[0] >= shard.log_start_offset:
            return found
        return await self._newest_below(shard, segment, found[1])

    async def _newest_below(self, shard: LocalShard, segment: Segment, most_ms: int) -> tuple[int, int] | None:
        """For segments whose newest record lies below the log start, or whose records have not been checked: bisects
        the time, with some thirty to sixty lookups in one segment."""
        best = await self.find_by_time(shard, segment, 0)
        while best is not None and best[1] < most_ms:
            middle_ms = (best[1] + most_ms + 1) // 2
            found = await self.find_by_time(shard, segment, middle_ms)
            if found is None:
                most_ms = middle_ms - 1
            else:
                best = found
        return best


def _read_in_the_store(shard: LocalShard, read: Segment) -> Sequence[Segment]:
    """The segment that is read, and those behind it whose data readers will need from the store, too. Reading ahead
    what has a local copy would waste requests and memory."""
    segments = shard.segments
    policy, copies = shard.rules.read_policy, shard.copies
    opened = next(iter(shard.ended), shard.active)
    stop = begin = place_of(segments, read.epoch + 1)
    for segment in segments[stop : stop + _MOST_AHEAD]:
        copy = copies.get(segment.epoch)
        is_open = opened is not None and segment.epoch >= opened.key.epoch
        if (is_open or (copy is not None and copy.damage is None)) and policy.value in _LOCAL_FIRST:
            break
        stop += 1
    return [read, *segments[begin:stop]]


async def _first(order: Sources, ask: Callable[[ReadSource, Sequence[int]], Awaitable[T]]) -> T:
    """What the first that can answers. Raises: what the only one asked raised; of several Unavailable, for what one
    has not or has damaged another may have later, and Corrupt where all that they have is damaged."""
    problems: list[StratalogError] = []
    try:
        for source, nodes in order:
            try:
                return await ask(source, nodes)
            except (Unavailable, Corrupt, NotFound) as problem:
                problems.append(problem)
        if len(problems) == 1 or all(isinstance(problem, Corrupt) for problem in problems):
            raise problems[0]
        raise Unavailable("; ".join(str(problem) for problem in problems)) from problems[0]
    finally:
        problems.clear()  # their traces have this frame in them: a circle, with what was read


def _for_look_ups(shard: LocalShard) -> str:
    """A lookup may go to the store where reads do not: it takes a batch or two."""
    policy = shard.rules.read_policy
    return (ReadPolicy.NOT_IN_DISK if policy.value == ReadPolicy.DISABLE else policy).value


def is_whole_in_store(segment: Segment) -> bool:
    remote = segment.remote
    if remote.state is RemoteState.COMPLETE:
        return True
    return segment.end_offset is not None and remote.commit_offset >= segment.end_offset


def _out_of_reach(shard: LocalShard, segment: Segment) -> Unavailable:
    return Unavailable(
        f"{shard.topic.name}-{shard.key.shard}: segment {segment.base_offset} has no local copy, no node that proved "
        "its own can be asked now, and not all of it is in the object store: start one of those nodes, or put its file "
        "back and restart this one"
    )

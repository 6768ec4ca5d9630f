"""What a node tells the cluster UI (`stratalog.admin_api.node_views`): groups, clients, shards, throughput, records.

Lives on the event loop. All answers are bounded; batches are opened on a thread, for one may be large and compressed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.admin_api.node_views import (
    CLIENT_COLUMNS,
    GROUP_COLUMNS,
    LAG_COLUMNS,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_RECORDS,
    MAX_SHARDS_ASKED,
    MAX_VALUE_BYTES,
    ClientList,
    ClientRow,
    GroupDetail,
    GroupLagRow,
    GroupList,
    GroupMemberRow,
    GroupRow,
    GroupTopicRow,
    HistoryAnswer,
    HistorySample,
    LedShards,
    RecordHeader,
    RecordPage,
    RecordStart,
    ShownRange,
    ShownRecord,
    TopicSettingsInForce,
    cut_bytes,
)
from stratalog.event_loop.fair_turns import FairTurns
from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import Record, decode_records
from stratalog.machines.groups.consumer_group_events import ConsumerGroupStatus
from stratalog.machines.groups.group_events import GroupStatus, MemberStatus
from stratalog.machines.plans.cluster_lists import page_of
from stratalog.model.errors import InvalidRequest, NotFound, StratalogError
from stratalog.model.groups.consumer_group import ConsumerMember, PlacesByName
from stratalog.model.ids import ShardKey
from stratalog.model.views.cluster_lists import ListAsk
from stratalog_node.admin.describe import settings_in_force, shard_info
from stratalog_node.admin.services import AdminServices
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.measures.groups import GroupSum, ShardLag
from stratalog_node.measures.history import Sample
from stratalog_node.serve.server import ClientView
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.slices import Slices

_READ_BYTES: Final = 256 << 10
_PAGE_BYTES: Final = 2 << 20
"""Bytes of batches that one page reads of a shard."""
_MOST_DECODED_BYTES: Final = 8 << 20
"""Of one batch that is opened for a page."""
_ANSWER_BYTES: Final = 2 << 20
_MOST_MEMBERS: Final = 200
_MOST_TOPICS: Final = 100
_READS_AT_ONCE: Final = 2
_MOST_BACK: Final = 64
"""How many times the limit a search for the newest records goes back over offsets without records."""
Lags = tuple[list[ShardLag], list[tuple[str, int, int | None]]]


@dataclass(frozen=True, slots=True)
class NodeViewSources:
    """Handed in by the composition."""

    samples: Callable[[], Sequence[Sample]]
    groups: Callable[[], Iterator[HostedGroup]]
    sums: Callable[[], Mapping[str, GroupSum]]
    """How far each group is behind, as of a while ago."""
    lags_of: Callable[[HostedGroup], Awaitable[Lags]]
    """The same of one group, shard by shard, as it is now."""
    clients: Callable[[], Sequence[ClientView]]
    read_assignment: Callable[[bytes], tuple[PlacesByName, ...] | None]
    """What a classic member reads; None for bytes that are something else."""


class NodeViews:
    def __init__(self, services: AdminServices, views: NodeViewSources) -> None:
        self._services = services
        self._views = views
        self._turns = FairTurns()
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    @property
    def node_id(self) -> int:
        return self._services.node_id

    def history(self) -> HistoryAnswer:
        samples = [HistorySample(at_ms=one.at_ms, **one.sums._asdict()) for one in self._views.samples()]
        return HistoryAnswer(node_id=self.node_id, samples=samples)

    async def shards(self, topic_name: str, shards: Sequence[int]) -> LedShards:
        """Those of the shards that this node leads, because only the leader knows where they end. Raises NotFound,
        InvalidRequest."""
        if len(shards) > MAX_SHARDS_ASKED:
            raise InvalidRequest(f"{len(shards)} shards in one request: at most {MAX_SHARDS_ASKED}")
        services, slices, found = self._services, Slices(self._turns), []
        topic = services.topic(topic_name)
        for shard in shards:
            led = services.catalog.leader_of(ShardKey(topic.topic_id, shard))
            if led is not None and led[0] == services.node_id and 0 <= shard < topic.shard_count:
                found.append(await shard_info(services.shard(topic, shard), services.node_id, slices))
        return LedShards(node_id=services.node_id, items=found)

    def settings(self, topic_name: str) -> TopicSettingsInForce:
        """Raises NotFound."""
        services = self._services
        found = settings_in_force(services.settings, services.topic(topic_name))
        return TopicSettingsInForce(node_id=self.node_id, items=found)

    # Groups and clients -------------------------------------------------------------------------------------------
    def groups(self, ask: ListAsk) -> GroupList:
        sums = self._views.sums()
        lines = [self._line(one, sums.get(one.group_id)) for one in self._views.groups()]
        lines.sort(key=lambda line: line.group_id)
        items, total = page_of(lines, ask, lambda line: line.group_id, GROUP_COLUMNS)
        return GroupList(node_id=self.node_id, items=items, total=total)

    def _line(self, hosted: HostedGroup, summed: GroupSum | None) -> GroupRow:
        status = hosted.machine.status()
        one = summed or GroupSum(0, 0, 0, 0)
        return GroupRow(
            group_id=hosted.group_id,
            state=status.state.value,
            kind="consumer" if isinstance(status, ConsumerGroupStatus) else "classic",
            members=hosted.member_count,
            lag=one.lag,
            shards=one.shards,
            uncommitted=one.uncommitted,
            unknown=one.unknown,
            node_id=self.node_id,
        )

    async def group(self, group_id: str, ask: ListAsk) -> GroupDetail:
        """Raises NotFound for a group that this node does not coordinate."""
        hosted = next((one for one in self._views.groups() if one.group_id == group_id), None)
        if hosted is None:
            raise NotFound(f"node {self.node_id} coordinates no group {group_id!r:.300}")
        lags, unknown = await self._views.lags_of(hosted)
        status = hosted.machine.status()
        readers, members = self._members(status)
        rows = [
            GroupLagRow(
                topic=one.topic,
                shard=one.shard,
                committed=one.committed,
                position=one.position,
                end=one.position + one.records,
                lag=one.records,
                member=readers.get((one.topic, one.shard)),
            )
            for one in lags
        ]
        rows += [
            GroupLagRow(
                topic=topic,
                shard=shard,
                committed=committed,
                position=committed or 0,
                end=None,
                lag=None,
                member=readers.get((topic, shard)),
            )
            for topic, shard, committed in unknown
        ]
        rows.sort(key=lambda row: (row.topic, row.shard))
        items, total = page_of(rows, ask, lambda row: f"{row.topic}-{row.shard}", LAG_COLUMNS)
        topics = _by_topic(lags)
        uncommitted = sum(one.committed is None for one in lags)
        summed = GroupSum(sum(one.records for one in lags), len(rows), uncommitted, len(unknown))
        return GroupDetail(
            node_id=self.node_id,
            line=self._line(hosted, summed),
            generation=status.epoch if isinstance(status, ConsumerGroupStatus) else status.generation,
            assignor=status.assignor if isinstance(status, ConsumerGroupStatus) else status.protocol_name,
            members=members,
            topics=topics[:_MOST_TOPICS],
            more_topics=max(0, len(topics) - _MOST_TOPICS),
            items=items,
            total=total,
        )

    def _members(
        self, status: GroupStatus | ConsumerGroupStatus
    ) -> tuple[dict[tuple[str, int], str], list[GroupMemberRow]]:
        """The reader of each shard, and the first members."""
        readers: dict[tuple[str, int], str] = {}
        lines: list[GroupMemberRow] = []
        for member in status.members:
            places = self._assigned(member)
            readers.update(dict.fromkeys(places or (), member.client_id or member.member_id))
            if len(lines) < _MOST_MEMBERS:
                lines.append(
                    GroupMemberRow(
                        member_id=member.member_id,
                        instance_id=member.instance_id,
                        client_id=member.client_id,
                        host=member.client_host.lstrip("/"),
                        shards=-1 if places is None else len(places),
                    )
                )
        return readers, lines

    def _assigned(self, member: MemberStatus | ConsumerMember) -> list[tuple[str, int]] | None:
        """Topic and shard of what a member reads; None where its protocol does not say it."""
        if isinstance(member, ConsumerMember):
            named = ((self._services.catalog.topic_by_id(key.topic_id), key.shard) for key in member.assigned)
            return [(topic.name, shard) for topic, shard in named if topic is not None]
        places = self._views.read_assignment(member.assignment)
        return None if places is None else [(topic, shard) for topic, shards in places for shard in shards]

    def clients(self, ask: ListAsk) -> ClientList:
        lines = [
            ClientRow(
                client_id=one.client_id or "",
                address=one.peer,
                listener=one.listener,
                principal=str(one.principal),
                idle_ms=one.idle_ms,
                node_id=self.node_id,
            )
            for one in self._views.clients()
        ]
        lines.sort(key=lambda line: (line.client_id, line.address))
        items, total = page_of(lines, ask, lambda line: line.words, CLIENT_COLUMNS)
        return ClientList(node_id=self.node_id, items=items, total=total)

    # Records ------------------------------------------------------------------------------------------------------
    async def records(self, topic_name: str, shard: int, start: RecordStart, at: int, limit: int) -> RecordPage:
        """A few records of one shard; of a place where nothing can be read the answer says why. Raises NotFound,
        InvalidRequest."""
        if not 1 <= limit <= MAX_RECORDS:
            raise InvalidRequest(f"limit={limit}: expected 1 to {MAX_RECORDS}")
        services = self._services
        topic = services.topic(topic_name)
        view = services.shards.read(ShardKey(topic.topic_id, shard)) if 0 <= shard < topic.shard_count else None
        if view is None:
            raise NotFound(f"topic {topic.name} has no shard {shard}; it has shards 0 to {topic.shard_count - 1}")
        async with self._reads:
            found, shown = await _RecordReader(view, limit).run(start, at)
        records = [_shown(shard, one) for one in found]
        return RecordPage(node_id=self.node_id, topic=topic.name, records=records, shards=[shown])


class _RecordReader:
    """Reads the records of one page."""

    def __init__(self, view: ShardView, limit: int) -> None:
        self._view = view
        self._limit = limit
        self._why_not: str | None = None

    async def run(self, start: RecordStart, at: int) -> tuple[list[Record], ShownRange]:
        view = self._view
        low, high = view.log_start_offset, view.high_watermark
        begin, found, after = low, list[Record](), low
        try:
            if start is RecordStart.NEWEST:
                begin, found, after = await self._newest(low, high)
            else:
                begin = await self._begin(start, at, low, high)
                found, after = await self._forward(begin, high, self._limit)
        except StratalogError as error:
            self._why_not = str(error)
        shown = ShownRange(
            shard=view.key.shard,
            log_start_offset=low,
            high_watermark=high,
            from_offset=begin,
            next_offset=after,
            why_not=self._why_not,
        )
        return found, shown

    async def _begin(self, start: RecordStart, at: int, low: int, high: int) -> int:
        if start is RecordStart.OLDEST:
            return low
        if start is RecordStart.OFFSET:
            return max(at, low)
        assert isinstance(self._view, ShardLog), "what a node reads can be shown up by time"
        found = await self._view.offset_for_time(at)
        return high if found is None else max(found.offset, low)

    async def _newest(self, low: int, high: int) -> tuple[int, list[Record], int]:
        """The last records: from further back where offsets have none, from nearer where they are too large to read."""
        back, is_too_far = self._limit, False
        while True:
            self._why_not = None
            start = max(low, high - back)
            found, after = await self._forward(start, high, high - start)
            if after < high and back > 1:
                back, is_too_far = max(1, back // 4), True
            elif len(found) < self._limit and start > low and not is_too_far and back < _MOST_BACK * self._limit:
                back *= 4
            else:
                return start, found[-self._limit :], after

    async def _forward(self, begin: int, high: int, limit: int) -> tuple[list[Record], int]:
        """The first records from an offset on, and where the next page begins."""
        found: list[Record] = []
        at, read, size = begin, 0, 0
        while at < high and len(found) < limit and read < _PAGE_BYTES and size < _ANSWER_BYTES:
            data = b"".join(await self._view.read(at, _READ_BYTES))
            if not data:
                self._why_not = f"offset {at} cannot be read now: try again"
                break
            read += len(data)
            some, after = await asyncio.to_thread(_opened, data, at, limit - len(found))
            found += some
            size += sum(map(_answer_bytes, some))
            if after <= at:
                break
            at = after
        return found, at


def _opened(data: bytes, offset: int, limit: int) -> tuple[list[Record], int]:
    """Records from an offset on, and the offset behind what was opened. Raises Corrupt."""
    found: list[Record] = []
    after = offset
    for position, header in walk(data, source="records read for the UI"):
        if header.end_offset <= offset:
            continue
        if header.record_count and not header.is_control:
            records = decode_records(data[position : position + header.size_bytes], max_bytes=_MOST_DECODED_BYTES)
            found += [one for one in records if one.offset >= offset]
        after = header.end_offset
        if len(found) >= limit:
            break
    if len(found) > limit:
        return found[:limit], found[limit - 1].offset + 1
    return found, after


def _answer_bytes(record: Record) -> int:
    return min(len(record.value or b""), MAX_VALUE_BYTES) + min(len(record.key or b""), MAX_KEY_BYTES) + 100


def _shown(shard: int, record: Record) -> ShownRecord:
    return ShownRecord(
        shard=shard,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=cut_bytes(record.key, MAX_KEY_BYTES),
        value=cut_bytes(record.value, MAX_VALUE_BYTES),
        headers=[
            RecordHeader(name=name[:MAX_KEY_BYTES], value=cut_bytes(value, MAX_KEY_BYTES))
            for name, value in record.headers[:MAX_HEADERS]
        ],
        more_headers=max(0, len(record.headers) - MAX_HEADERS),
    )


def _by_topic(lags: Sequence[ShardLag]) -> list[GroupTopicRow]:
    """Those with the most lag first."""
    records: defaultdict[str, int] = defaultdict(int)
    shards, uncommitted = Counter[str](), Counter[str]()
    for one in lags:
        records[one.topic] += one.records
        shards[one.topic] += 1
        uncommitted[one.topic] += one.committed is None
    lines = [
        GroupTopicRow(topic=topic, shards=shards[topic], lag=lag, uncommitted=uncommitted[topic])
        for topic, lag in records.items()
    ]
    return sorted(lines, key=lambda line: (-line.lag, line.topic))

"""Whatever a snapshot knows and a bucket holds of a shard, the rebuilt log has no gap, holds all that was committed,
and gives no epoch out again; the rebuilt table is one that the service accepts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.rebuild.meta_backups import FoundSnapshot, stranger
from stratalog.machines.rebuild.shard import (
    EMPTY_DIGEST,
    FoundManifest,
    FoundSegment,
    PlannedSegment,
    ShardPlan,
    plan_shard,
)
from stratalog.machines.rebuild.table import FoundTopic, Published, RebuildPlan, Scan, plan_rebuild, records_of
from stratalog.machines.table.records import NodeEntry, PurgedTopic, ShardRow, StoredRecord, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.machines.tiering.part_chain import FoundPart
from stratalog.model.commands.table_commands import AcquireLock, RegisterNode
from stratalog.model.errors import Conflict
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Lock, NodeInfo
from stratalog.model.producers import ProducerTally
from stratalog.model.quotas import EntityQuotas, QuotaEntity, QuotaLimits
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule
from stratalog.model.segment import (
    GapReason,
    GivenUp,
    Handover,
    RemoteCopy,
    RemotePart,
    RemoteState,
    SealRecord,
    Segment,
    SegmentState,
)
from stratalog.model.topic import Topic

TOPIC_ID, DEAD_ID, NEW_ID = UUID(int=1), UUID(int=2), UUID(int=3)
SHARD = ShardKey(TOPIC_ID, 0)
QUOTAS = EntityQuotas(QuotaEntity("a"), QuotaLimits(producer_byte_rate=1.0))
RULE = Rule(Resource(ResourceType.TOPIC, "orders"), "User:a", "*", Operation.READ, Permission.ALLOW)


@dataclass(frozen=True)
class Piece:
    """A segment of the true log: its length, how much of it is in the bucket, and what the metadata know."""

    size: int
    in_bucket: int
    is_published: bool
    was_known: bool
    """The snapshot was taken after it had begun."""


def digest(epoch: int, base: int, offset: int) -> bytes:
    return EMPTY_DIGEST if offset == base else bytes((epoch, *offset.to_bytes(15, "big")))


def seal(epoch: int, base: int, end: int) -> SealRecord:
    return SealRecord(epoch, base, end, -1, -1, 10 * (end - base), digest(epoch, base, end), (), (1,), 5)


def found_part(key: SegmentKey, start: int, end: int, lock_epoch: int = 1) -> FoundPart:
    part = RemotePart(f"{key.epoch}.{start}-{end}.{lock_epoch}", 0, end - start, start, end)
    before, after = (digest(key.epoch, key.base_offset, at) for at in (start, end))
    return FoundPart(part, before, after, lock_epoch, 1)


@dataclass
class World:
    known: list[Segment]
    found: list[FoundSegment]
    committed: int
    """The bucket holds all of the log up to here, and metadata knew it."""
    known_end: int
    last_epoch: int


def world_of(pieces: list[Piece]) -> World:
    known: list[Segment] = []
    found: list[FoundSegment] = []
    base, committed, is_dense = 0, 0, True
    for epoch, piece in enumerate(pieces):
        key = SegmentKey(TOPIC_ID, 0, epoch, base)
        is_last = epoch == len(pieces) - 1
        end = base + piece.size
        is_published = piece.is_published and not is_last
        reach = end if is_published else base + min(piece.in_bucket, piece.size)
        if is_published:
            name = f"{epoch}.manifest"
            found.append(FoundSegment(key, (FoundManifest(name, end, 1, 1, seal(epoch, base, end), b"d", 9),)))
        elif reach > base:
            middle = (base + reach) // 2
            parts = [found_part(key, base, reach)]
            if middle > base:
                parts = [
                    found_part(key, base, middle),
                    found_part(key, middle, reach),
                    found_part(key, base, middle, 2),
                ]
            found.append(FoundSegment(key, (), tuple(parts)))
        is_dense = is_dense and reach >= base
        committed = reach if is_dense else committed
        is_dense = is_dense and reach == end
        if piece.was_known and len(known) == epoch:
            known.append(_known(key, end, reach, is_published=is_published))
        base = end
    for at, segment in enumerate(known):
        if at == len(known) - 1:  # as the snapshot saw it: still being written
            known[at] = replace(segment, state=SegmentState.ACTIVE, end_offset=None, seal=None, remote=RemoteCopy())
            known[at] = replace(known[at], leader=1, isr=(1,), local_nodes=())
    known_end = max((segment.end_offset or segment.base_offset for segment in known), default=0)
    return World(known, found, committed, known_end, len(pieces) - 1)


def _known(key: SegmentKey, end: int, reach: int, *, is_published: bool) -> Segment:
    remote = RemoteCopy()
    if is_published:
        remote = RemoteCopy(RemoteState.COMPLETE, end, (), f"{key.epoch}.manifest", b"d", 9)
    elif reach > key.base_offset:
        remote = RemoteCopy(RemoteState.PARTIAL, reach, (RemotePart("x", 0, 1, key.base_offset, reach),))
    record = seal(key.epoch, key.base_offset, end)
    return Segment(key, SegmentState.SEALED, None, (1,), (1,), 0, 0, end, record, (1,), remote)


pieces = st.builds(Piece, st.integers(0, 6), st.integers(0, 6), st.booleans(), st.booleans())
logs = st.lists(pieces, min_size=1, max_size=6)


@pytest.mark.fault("snapshot-older-data-bucket")
@given(logs, st.integers(0, 40))
def test_a_rebuilt_log_has_no_gap_and_holds_all_that_was_committed(log: list[Piece], log_start: int) -> None:
    world = world_of(log)
    log_start = min(log_start, world.known_end)
    plan = plan_shard(SHARD, log_start, world.known, world.found)
    expected = plan.segments[0].key.base_offset if plan.segments else plan.end_offset
    for before, planned in zip([None, *plan.segments], plan.segments, strict=False):
        assert planned.key.base_offset == expected, "no gap"
        assert before is None or planned.key.epoch == before.key.epoch + 1, "epochs grow by one"
        assert planned.key.base_offset <= planned.chain_end <= planned.end_offset or planned.manifest is not None
        expected = planned.end_offset
    assert plan.end_offset >= max(world.committed, world.known_end), "no offset that was known is given again"
    assert plan.next_epoch > max([one.key.epoch for one in (*world.known, *world.found)], default=-1)
    assert not plan.segments or plan.segments[0].key.base_offset <= plan.log_start_offset <= plan.end_offset
    for lost in plan.lost:
        assert lost.end_offset > max(world.committed, log_start), "what is in the bucket is not lost"
    held = {at for one in plan.segments for at in _held(one.key.base_offset, one.chain_end)} | {
        at for one in plan.segments if one.manifest is not None for at in _held(one.key.base_offset, one.end_offset)
    }
    assert held >= set(range(plan.log_start_offset, world.committed)), "all that was committed is there"


def _held(start: int, end: int) -> range:
    return range(start, end)


@given(logs)
def test_seal_records_and_manifests_are_what_they_were(log: list[Piece]) -> None:
    world = world_of(log)
    plan = plan_shard(SHARD, 0, world.known, world.found)
    published = {one.key: one.manifests[0].key for one in world.found if one.manifests}
    for planned in plan.segments:
        if planned.key in published:
            assert planned.manifest is not None and planned.manifest.key == published[planned.key]
            assert planned.manifest.seal == seal(planned.key.epoch, planned.key.base_offset, planned.end_offset)


def test_what_retention_took_since_the_snapshot_is_named_and_the_log_start_follows() -> None:
    world = world_of([Piece(3, 3, True, True), Piece(4, 4, True, True), Piece(2, 1, False, True)])
    plan = plan_shard(SHARD, 1, world.known, world.found[1:])
    assert [key.epoch for key in plan.gone] == [0]
    assert (plan.log_start_offset, plan.end_offset, plan.lost) == (3, 8, [])


def test_what_retention_may_not_have_taken_and_is_nowhere_is_lost_and_the_log_start_stays() -> None:
    """It was called deleted, of a topic that keeps its records for ever."""
    world = world_of([Piece(3, 3, True, True), Piece(4, 4, True, True)])
    plan = plan_shard(SHARD, 1, world.known, world.found[1:], may_have_expired=lambda _: False)
    assert plan.gone == [] and plan.log_start_offset == 1
    assert [(one.segment.epoch, one.base_offset, one.end_offset) for one in plan.lost] == [(0, 1, 3)]
    below = plan_shard(SHARD, 3, world.known, world.found[1:], may_have_expired=lambda _: False)
    assert [key.epoch for key in below.gone] == [0] and not below.lost, "DeleteRecords had passed it"


def test_a_log_that_was_deleted_further_than_the_bucket_reaches_continues_behind_it() -> None:
    world = world_of([Piece(3, 3, True, True), Piece(9, 2, False, True)])
    plan = plan_shard(SHARD, 10, world.known, world.found)
    assert (plan.log_start_offset, plan.end_offset, plan.lost) == (10, 10, [])


@pytest.mark.fault("snapshot-older-data-bucket")
def test_what_contradicts_the_metadata_is_left_alone() -> None:
    world = world_of([Piece(3, 3, True, True), Piece(3, 3, True, True)])
    stray = FoundSegment(SegmentKey(TOPIC_ID, 0, 1, 2), (FoundManifest("stray", 5, 9, 1, seal(1, 2, 5), b"d", 9),))
    plan = plan_shard(SHARD, 0, world.known, [*world.found, stray])
    assert plan.unused == [stray.key]


def records(world: World) -> list[StoredRecord]:
    topic = Topic("orders", TOPIC_ID, 1, 2, {"retention.ms": "1"}, 1)
    node = NodeEntry(NodeInfo(1, "old-disk", "host", 9092), 4)
    lock = Lock("tier/1", "node-1/4/aa", 4, 99, ("node-1/3/bb",))
    return [
        TableHeader("c", 70, 500),
        topic,
        PurgedTopic(DEAD_ID, 1),
        node,
        lock,
        RULE,
        QUOTAS,
        ShardRow(SHARD, 0),
        *world.known,
    ]


@given(logs.filter(lambda log: log[0].was_known))
def test_the_rebuilt_table_is_one_that_the_service_accepts(log: list[Piece]) -> None:
    world = world_of(log)
    nonce, put = UUID(int=77), FoundSnapshot(6, 70, UUID(int=88), True, ("head",))
    scan = Scan(
        {SHARD: world.found, ShardKey(DEAD_ID, 0): [FoundSegment(SegmentKey(DEAD_ID, 0, 0, 0))]},
        {DEAD_ID: FoundTopic("gone", 3)},
        {1: 9},
        {1: [nonce]},
        [put],
    )
    plan = plan_rebuild(records(world), scan, (1, 2))
    made = {
        one.key: Published(
            replace(seal(one.key.epoch, one.key.base_offset, one.end_offset), replicas=()), "made", b"d", 9
        )
        for one in plan.to_publish
    }
    table = ShardTable.load(records_of(plan, made, 100), "rebuilt")
    assert table is not None
    table.check_invariants()
    state = table.state
    assert plan.orphans == [DEAD_ID] and not plan.taken_in
    assert [*state.rules] == [RULE] and state.quotas == {QUOTAS.entity: QUOTAS.limits}
    assert state.header.version > 70 and state.header.next_producer_id > 500
    assert stranger([put], state.locks["meta/snapshots"]) is None, "its own snapshots are no stranger's"
    lock = table.apply(AcquireLock("tier/1", "node-1/1/cc", 1_000), 200, UUID(int=5)).result
    assert lock.epoch > plan.writer_epoch() > 9 and any(name.endswith(nonce.hex) for name in lock.earlier)
    try:
        table.apply(RegisterNode(NodeInfo(1, "old-disk", "host", 9092)), 200, UUID(int=6))
    except Conflict:
        pass
    else:
        raise AssertionError("a disk from before was let in")
    assert table.apply(RegisterNode(NodeInfo(1, "new-disk", "host", 9092)), 200, UUID(int=7)).result.node_epoch == 1


def test_a_topic_of_after_the_snapshot_is_taken_in_unless_its_name_is_another_s() -> None:
    world = world_of([Piece(2, 2, True, True)])
    key = SegmentKey(NEW_ID, 1, 0, 0)
    found = FoundSegment(key, (FoundManifest("m", 4, 1, 1, seal(0, 0, 4), b"d", 9),))
    for name, is_taken in (("late", True), ("orders", False)):
        scan = Scan({SHARD: world.found, key.shard_key: [found]}, {NEW_ID: FoundTopic(name, 3)}, {}, {})
        plan = plan_rebuild(records(world), scan, (1,))
        assert [topic.shard_count for topic in plan.taken_in] == ([2] if is_taken else [])
        assert plan.orphans == ([] if is_taken else [NEW_ID])


def test_a_rebuilt_seal_speaks_of_the_table_of_producers_that_lies_in_the_bucket() -> None:
    """Another one may have been had by the lost disks alone: no shard would ever find it."""
    key = SegmentKey(TOPIC_ID, 0, 3, 10)
    lost, made = (ProducerTally(count, bytes([count]) * 16, 5_000, 60_000) for count in (2, 1))
    sealed = replace(seal(3, 10, 20), producers=lost)
    known = Segment(key, SegmentState.SEALED, None, (1,), (1,), 0, 5, 20, sealed, (1,))
    published = Published(replace(sealed, producers=made), "manifest", bytes(16), 9)
    shard = ShardPlan(SHARD, 10, [PlannedSegment(key, 20, known)])
    topic = Topic("flights", TOPIC_ID, 1, 1, {}, 5)
    plan = RebuildPlan(TableHeader("cluster", 1, 1), [topic], [shard], [], [], [], (7,))
    (segment, _) = [one for one in records_of(plan, {key: published}, 100) if isinstance(one, Segment)]
    assert segment.seal == replace(sealed, producers=made)


def test_what_the_metadata_before_may_have_named_stays_for_a_grace_from_now_on() -> None:
    """If chunks were merged, it is unknown which of a segment's manifests that was: readers may hold any."""
    log = world_of([Piece(2, 2, True, True), Piece(2, 2, True, True)])
    plan = plan_rebuild(records(log), Scan({SHARD: log.found}, {}, {}, {}), (1,))
    made = {
        one.key: Published(seal(one.key.epoch, one.key.base_offset, one.end_offset), "made", b"d", 9)
        for one in plan.to_publish
    }
    segments = [one for one in records_of(plan, made, 100) if isinstance(one, Segment)]
    assert {one.remote.manifest_key: one.remote.replaced_ms for one in segments} == {
        "0.manifest": 100,
        "made": 100,
        None: 0,
    }


@pytest.mark.fault("metadata-rebuilt-bucket-log")
def test_where_the_log_had_a_break_or_may_have_had_one_the_rebuilt_records_say_so() -> None:
    """Readers that were away learn of it (OffsetForLeaderEpoch): data that they saw after it is not in this log."""
    lost = GivenUp(3, 4, GapReason.RESTARTED)
    world = world_of([Piece(3, 3, True, known) for known in (True, True, True, False)] + [Piece(2, 2, False, False)])
    world.known[0] = replace(world.known[0], handover=Handover(given_up=(lost,)))
    assert [one.end_offset for one in world.known] == [3, 6, None]
    plan = plan_rebuild(records(world), Scan({SHARD: world.found}, {}, {}, {}), (1,))
    made = {
        one.key: Published(seal(one.key.epoch, one.key.base_offset, one.end_offset), "made", b"d", 9)
        for one in plan.to_publish
    }
    table = ShardTable.load(records_of(plan, made, 100), "rebuilt")
    assert table is not None
    table.check_invariants()
    first, second, *unknown, active = table.shard(SHARD).segments
    assert (first.handed.given_up, second.handover) == ((lost,), None)
    for segment in unknown:  # how it ended the snapshot does not know
        assert segment.end_offset is not None
        assert segment.handed.given_up == (GivenUp(segment.end_offset, segment.end_offset, GapReason.UNCLEAN),)
    assert (len(unknown), active.handover) == (3, None)

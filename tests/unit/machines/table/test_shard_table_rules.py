"""The shard table's rules beyond single transitions: contiguity, commits, locks, what a change writes, undoing."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.copies.internal_topics import FIXED_SETTINGS, GROUP_LOG
from stratalog.machines.table.records import (
    DropPart,
    PutChanges,
    PutHeader,
    PutNode,
    PutPart,
    PutSeal,
    PutSegmentHead,
    PutTopic,
    ShardRow,
    TableHeader,
)
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands import table_commands
from stratalog.model.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Fenced,
    InvalidRequest,
    LimitExceeded,
    NameCollides,
    NotFound,
    Reserved,
)
from stratalog.model.ids import MAX_OFFSET, SegmentKey, ShardKey
from stratalog.model.metadata import (
    Life,
    NodeInfo,
    PartCommit,
    PartReplacement,
    SegmentChanged,
    TopicDeleted,
    life_name,
)
from stratalog.model.segment import RemotePart, RemoteState, Segment, SegmentState
from stratalog.model.topic import Topic
from stratalog.stored import encoding
from support.table_stories import CLUSTER_ID, NEW_ID, TableStory, record_of, state_of


@pytest.mark.fault("topic-name-collides")
def test_topics_of_an_older_release_whose_names_collide_are_loaded_and_deleted() -> None:
    """They were accepted before."""
    story = TableStory()
    made = [
        story.do(table_commands.CreateTopic(name, 1, 1), UUID(int=number)) for number, name in enumerate(("a.b", "c"))
    ]
    older = replace(made[1].result, name="a_b")
    nodes = [PutNode(entry) for entry in story.table.state.nodes.values()]
    writes = [PutHeader(story.table.state.header), *nodes, *made[0].writes, *made[1].writes, PutTopic(older)]
    items = {key: value for key, value in encoding.encode(writes) if value is not None}
    table = ShardTable.load(encoding.decode(sorted(items.items()), "items"), "items")
    assert table is not None
    table.check_invariants()
    for name in ("a_b", "a.b"):
        with pytest.raises(AlreadyExists):
            table.apply(table_commands.CreateTopic(name, 1, 1), 5, NEW_ID)
    table.apply(table_commands.DeleteTopic(older.topic_id), 5, NEW_ID)
    table.check_invariants()
    with pytest.raises(NameCollides, match=r"existing topic 'a\.b'"):
        table.apply(table_commands.CreateTopic("a_b", 1, 1), 5, NEW_ID)
    table.apply(table_commands.DeleteTopic(made[0].result.topic_id), 5, NEW_ID)
    table.apply(table_commands.CreateTopic("a_b", 1, 1), 5, NEW_ID)
    table.check_invariants()


# Topics of the service's own -------------------------------------------------------------------------------------
@pytest.mark.fault("client-admin-api-command")
def test_a_reserved_name_makes_an_internal_topic_with_fixed_settings_and_no_other_name_does() -> None:
    story = TableStory()
    for name, settings, is_internal in (
        (GROUP_LOG, {}, False),
        (GROUP_LOG, {"segment.bytes": "1000"}, True),
        ("__transaction_state", {}, False),
        ("__transaction_state", {}, True),
        ("__stratalog_timers", {}, False),
        ("orders", {}, True),
    ):
        with pytest.raises(Reserved):
            story.do(table_commands.CreateTopic(name, 1, 1, settings, is_internal))
    made = story.do(table_commands.CreateTopic(GROUP_LOG, 1, 1, {}, True)).result
    assert isinstance(made, Topic) and made.is_internal and made.settings == FIXED_SETTINGS[GROUP_LOG]
    assert not story.topic("__others").is_internal


@pytest.mark.fault("client-admin-api-command")
def test_no_client_changes_or_deletes_an_internal_topic() -> None:
    story = TableStory()
    made = story.do(table_commands.CreateTopic(GROUP_LOG, 2, 1, {}, True), UUID(int=9)).result
    before = state_of(story.table)
    for command in (
        table_commands.AlterTopic(UUID(int=9), {"segment.bytes": "1000"}),
        table_commands.AddShards(UUID(int=9), 3),
        table_commands.DeleteTopic(UUID(int=9)),
    ):
        with pytest.raises(Reserved, match="internal"):
            story.do(command)
    assert state_of(story.table) == before and story.table.topic(UUID(int=9)) == made


def test_the_group_log_has_as_many_replicas_as_wanted_and_alive_and_more_once_there_are_nodes() -> None:
    story = TableStory(nodes=2)
    story.do(table_commands.NoteLives(lost=(Life(2, 1),)))
    made = story.do(table_commands.CreateTopic(GROUP_LOG, 2, 3, {}, True), UUID(int=9)).result
    assert made.replication_factor == 1 and len(story.active(made).replicas) == 1
    assert story.do(table_commands.WidenTopic(made.topic_id, 3)).result == made, "nobody is there"
    story.do(table_commands.NoteLives(heard=(Life(2, 1),)))
    assert story.do(table_commands.WidenTopic(made.topic_id, 3)).result.replication_factor == 2
    assert story.do(table_commands.WidenTopic(made.topic_id, 1)).result.replication_factor == 2, "never fewer"
    story.do(table_commands.PrepareSegment(story.active(made).key))
    opened = story.do(table_commands.RollSegment(story.active(made).key, 5)).result
    assert set(opened.replicas) == {1, 2}, "from its next roll on"
    with pytest.raises(InvalidRequest, match="keeps the replication factor"):
        story.do(table_commands.WidenTopic(story.topic("orders").topic_id, 2))


# Rolling and sealing --------------------------------------------------------------------------------------------
def test_an_empty_segment_rolls_seals_and_is_complete_without_any_part() -> None:
    story = TableStory()
    lock = story.lock()
    first = story.active(story.topic())
    second = story.roll(first.key, 0)
    assert second.key == SegmentKey(first.key.topic_id, 0, 1, 0)
    story.seal(first.key)
    whole = story.complete(lock, first.key)
    assert whole.remote.state is RemoteState.COMPLETE and whole.remote.commit_offset == 0


def test_a_segment_cannot_end_below_its_base_or_beyond_all_offsets() -> None:
    story = TableStory()
    second = story.roll(story.active(story.topic()).key, 10)
    for end_offset in (9, -1, MAX_OFFSET + 1):
        with pytest.raises(InvalidRequest):
            story.roll(second.key, end_offset)
    assert story.roll(second.key, MAX_OFFSET).base_offset == MAX_OFFSET


def test_a_segment_cannot_end_below_what_is_durable_or_deleted() -> None:
    story = TableStory()
    first = story.active(story.topic())
    story.commit(story.lock(), first.key, 0, 10)
    with pytest.raises(Conflict, match="lost committed data"):
        story.roll(first.key, 9)
    story.do(table_commands.AdvanceLogStart(first.key.shard_key, 20))
    with pytest.raises(Conflict):
        story.roll(first.key, 19)
    story.roll(first.key, 20)


def test_a_repeated_roll_is_answered_with_the_segment_it_opened_even_after_further_rolls() -> None:
    story = TableStory()
    first = story.active(story.topic())
    second = story.roll(first.key, 10)
    story.roll(second.key, 20)
    assert story.roll(first.key, 10).key == second.key
    story.do(table_commands.DeleteTopic(first.key.topic_id))
    with pytest.raises(Fenced):
        story.roll(first.key, 10)


def test_the_next_segment_keeps_leader_and_replicas_and_starts_with_the_isr_of_the_last() -> None:
    story = TableStory(nodes=3)
    first = story.active(story.topic(replicas=3))
    assert first.leader is not None
    other = next(node for node in first.replicas if node != first.leader)
    story.do(table_commands.ProposeIsr(first.key, (other, first.leader), 0))
    second = story.roll(first.key, 5)
    assert (second.leader, second.replicas) == (first.leader, first.replicas)
    assert set(second.isr) == {other, first.leader} and second.isr_version == 0


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 1},
        {"base_offset": 1},
        {"end_offset": 9},
        {"replicas": ()},
        {"replicas": (2,)},
        {"digest": b""},
        {"size_bytes": 0},
        {"size_bytes": -1},
    ],
)
def test_a_seal_record_that_does_not_fit_its_segment_is_refused(change: dict[str, object]) -> None:
    story = TableStory()
    key = story.active(story.topic()).key
    story.roll(key, 10)
    record = replace(record_of(key, 10), **change)  # type: ignore[arg-type]
    with pytest.raises((Conflict, InvalidRequest)):
        story.do(table_commands.SealSegment(key, record))
    assert story.segment(key).state is SegmentState.SEALING


@pytest.mark.parametrize("isr", [(), (2,), (1, 1), (1, 4)])
def test_an_isr_holds_the_leader_and_replicas_only(isr: tuple[int, ...]) -> None:
    story = TableStory(nodes=3)
    first = story.active(story.topic(replicas=3))
    assert first.leader == 1
    with pytest.raises(InvalidRequest):
        story.do(table_commands.ProposeIsr(first.key, isr, 0))


# Deleting -------------------------------------------------------------------------------------------------------
def test_the_log_start_deletes_whole_segments_only_and_an_empty_one_at_its_edge() -> None:
    story = TableStory()
    first = story.active(story.topic())
    second = story.roll(first.key, 10)
    third = story.roll(second.key, 10)
    fourth = story.roll(third.key, 20)
    story.do(table_commands.AdvanceLogStart(first.key.shard_key, 10))
    shard = story.table.shard(first.key.shard_key)
    assert [segment.key for segment in shard.segments] == [third.key, fourth.key]
    assert {segment.key for segment in story.table.deleted_segments()} == {first.key, second.key}


def test_a_segment_that_ended_below_the_log_start_goes_when_the_log_start_is_named_again() -> None:
    story = TableStory()
    first = story.active(story.topic())
    story.do(table_commands.AdvanceLogStart(first.key.shard_key, 20))
    second = story.roll(first.key, 20)
    story.do(table_commands.AdvanceLogStart(first.key.shard_key, 20))
    assert [segment.key for segment in story.table.shard(first.key.shard_key).segments] == [second.key]


def test_a_segment_that_the_log_start_passed_while_it_was_active_is_deleted_when_it_is_sealed() -> None:
    story = TableStory()
    first = story.active(story.topic())
    story.do(table_commands.AdvanceLogStart(first.key.shard_key, 20))
    second = story.roll(first.key, 20)
    third = story.roll(second.key, 20)
    assert story.seal(second.key).state is SegmentState.SEALED, "an empty one was not passed, only reached"
    sealed = story.seal(first.key)
    assert sealed.state is SegmentState.DELETED and sealed.seal is not None and sealed.deleted_ms == story.now_ms
    assert story.seal(first.key) == sealed, "asked again it is answered alike"
    living = [segment.key for segment in story.table.shard(first.key.shard_key).segments]
    assert living == [second.key, third.key]


def test_the_active_segment_stays_however_high_the_log_start_goes() -> None:
    story = TableStory()
    first = story.active(story.topic())
    story.do(table_commands.AdvanceLogStart(first.key.shard_key, 1_000))
    assert story.segment(first.key).state is SegmentState.ACTIVE
    with pytest.raises(InvalidRequest):
        story.do(table_commands.AdvanceLogStart(first.key.shard_key, MAX_OFFSET + 1))


def test_a_topic_deletion_notifies_watchers_of_the_topic_first_then_of_each_segment() -> None:
    story = TableStory()
    topic = story.topic(shards=2)
    story.roll(story.active(topic).key, 10)
    change_set = story.do(table_commands.DeleteTopic(topic.topic_id)).change_set
    assert change_set is not None
    assert change_set.changes[0] == TopicDeleted(topic)
    told = [change.segment for change in change_set.changes[1:] if isinstance(change, SegmentChanged)]
    assert len(told) == 3 and all(segment.state is SegmentState.DELETED for segment in told)


def test_a_purge_with_one_living_segment_purges_none() -> None:
    story = TableStory()
    first = story.active(story.topic())
    story.roll(first.key, 10)
    story.do(table_commands.AdvanceLogStart(first.key.shard_key, 10))
    living = story.table.shard(first.key.shard_key).segments[0].key
    with pytest.raises(Conflict):
        story.do(table_commands.PurgeSegments((first.key, living)))
    assert [segment.key for segment in story.table.deleted_segments()] == [first.key]


def test_a_node_forgets_all_named_copies_or_none() -> None:
    story = TableStory()
    lock = story.lock()
    first = story.active(story.topic())
    second = story.roll(first.key, 10)
    story.seal(first.key)
    story.commit(lock, first.key, 0, 10)
    story.complete(lock, first.key)
    with pytest.raises(Conflict):
        story.do(table_commands.ForgetLocal((first.key, second.key), 1))
    assert story.segment(first.key).local_nodes == (1,)
    story.do(table_commands.ForgetLocal((first.key, first.key), 1))
    assert story.segment(first.key).local_nodes == ()


# Remote copies --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expected", "base", "end", "kind"),
    [
        (5, 5, 8, None),
        (4, 4, 8, Conflict),
        (-1, 0, 8, Conflict),
        (5, 6, 8, InvalidRequest),
        (5, 5, 5, InvalidRequest),
        (5, 5, 11, InvalidRequest),
        (5, 5, MAX_OFFSET + 1, InvalidRequest),
        (-1, 0, 5, None),
    ],
)
def test_a_commit_moves_the_commit_offset_by_compare_and_set(
    expected: int, base: int, end: int, kind: type[Exception] | None
) -> None:
    """The segment ends at 10 and is committed up to 5; the last row is that commit again."""
    story = TableStory()
    lock = story.lock()
    key = story.active(story.topic()).key
    story.commit(lock, key, 0, 5)
    story.roll(key, 10)
    piece = RemotePart(f"chunk-{base}-{end}", 0, 10, base, end)
    result = story.do(table_commands.CommitParts(lock, (PartCommit(key, expected, piece),))).result
    (outcome,) = result
    assert isinstance(outcome, Segment) if kind is None else type(outcome) is kind


@pytest.mark.parametrize("change", [{"object_key": ""}, {"position": -1}, {"size_bytes": 0}])
def test_a_part_must_be_somewhere(change: dict[str, object]) -> None:
    story = TableStory()
    key = story.active(story.topic()).key
    piece = replace(RemotePart("chunk", 0, 10, 0, 5), **change)  # type: ignore[arg-type]
    result = story.do(table_commands.CommitParts(story.lock(), (PartCommit(key, -1, piece),))).result
    assert isinstance(result[0], InvalidRequest)


def test_two_commits_of_one_segment_in_one_transaction_follow_each_other() -> None:
    story = TableStory()
    key = story.active(story.topic()).key
    pieces = (RemotePart("a", 0, 10, 0, 5), RemotePart("b", 0, 10, 5, 9))
    commits = tuple(PartCommit(key, piece.base_offset, piece) for piece in pieces)
    story.do(table_commands.CommitParts(story.lock(), commits))
    assert tuple(story.segment(key).remote.parts) == pieces


@pytest.mark.parametrize(
    "new",
    [
        (),
        (RemotePart("x", 0, 1, 0, 4),),
        (RemotePart("x", 0, 1, 0, 2), RemotePart("y", 0, 1, 3, 5)),
        (RemotePart("", 0, 1, 0, 5),),
    ],
)
def test_replaced_parts_must_cover_the_same_offsets_without_a_gap(new: tuple[RemotePart, ...]) -> None:
    story = TableStory()
    lock = story.lock()
    key = story.active(story.topic()).key
    story.commit(lock, key, 0, 5)
    old = tuple(story.segment(key).remote.parts)
    result = story.do(table_commands.ReplaceParts(lock, (PartReplacement(key, old, new),))).result
    assert isinstance(result[0], InvalidRequest)
    assert tuple(story.segment(key).remote.parts) == old


def test_a_manifest_needs_every_byte_committed_before() -> None:
    story = TableStory()
    lock = story.lock()
    key = story.active(story.topic()).key
    story.commit(lock, key, 0, 5)
    story.roll(key, 10)
    story.seal(key)
    with pytest.raises(Conflict, match="commit the rest"):
        story.complete(lock, key)
    with pytest.raises(InvalidRequest):
        story.do(table_commands.CompleteRemote(lock, key, "", b"digest", 10))


# Locks and ids --------------------------------------------------------------------------------------------------
def test_a_lock_that_ran_out_but_passed_to_no_one_still_counts() -> None:
    """Expiry only lets another take it: nothing depends on the holder's clock."""
    story = TableStory()
    key = story.active(story.topic()).key
    lock = story.lock()
    story.now_ms = lock.expires_ms + 1_000_000
    assert isinstance(story.commit(lock, key, 0, 5), Segment)
    assert story.lock().epoch == lock.epoch


def test_a_released_lock_is_not_a_lock_and_its_epoch_never_comes_again() -> None:
    story = TableStory()
    key = story.active(story.topic()).key
    lock = story.lock()
    story.do(table_commands.ReleaseLock(lock))
    with pytest.raises(Fenced):
        story.commit(lock, key, 0, 5)
    assert story.lock().epoch == lock.epoch + 1


@pytest.mark.fault("killed-holder-write-lock")
def test_a_node_that_comes_back_on_its_storage_need_not_wait_for_its_earlier_lifes_lease() -> None:
    """It holds the directory, so the earlier life is over; if that one still runs, its epoch fences it."""
    story = TableStory()
    key = story.active(story.topic()).key
    earlier = story.lock(holder=life_name(1, 1))
    mounted = story.lock("tier/9", life_name(1, 1))
    story.do(table_commands.RegisterNode(NodeInfo(1, "storage-1", "host", 9092)))
    assert isinstance(story.commit(earlier, key, 0, 5), Segment), "what is on its way counts until the lock passes on"
    later = story.lock(holder=life_name(1, 2))
    assert later.epoch == earlier.epoch + 1
    assert story.lock("tier/9", life_name(1, 2)).epoch == mounted.epoch + 1
    with pytest.raises(Fenced):
        story.commit(earlier, key, 5, 9)
    assert isinstance(story.commit(later, key, 5, 9), Segment)
    with pytest.raises(Conflict):
        story.lock(holder=life_name(1, 1))


@pytest.mark.fault("killed-holder-write-lock")
@pytest.mark.parametrize(
    ("held_by", "registers"),
    [
        (life_name(1, 1), NodeInfo(1, "another disk", "host", 9092)),
        (life_name(2, 1), NodeInfo(1, "storage-1", "host", 9092)),
        (life_name(11, 1), NodeInfo(1, "storage-1", "host", 9092)),
        ("somebody", NodeInfo(1, "storage-1", "host", 9092)),
    ],
)
def test_a_lease_of_another_storage_or_another_node_lasts(held_by: str, registers: NodeInfo) -> None:
    """A new disk proves nothing about the process on the old one."""
    story = TableStory(nodes=2)
    story.lock(holder=held_by)
    story.do(table_commands.RegisterNode(registers))
    with pytest.raises(Conflict):
        story.lock(holder=life_name(1, 2))
    story.do(table_commands.RegisterNode(registers))
    with pytest.raises(Conflict):
        story.lock(holder=life_name(1, 3))


@pytest.mark.parametrize(
    "command",
    [
        table_commands.AcquireLock("", "a", 1),
        table_commands.AcquireLock("x", "", 1),
        table_commands.AcquireLock("x" * 513, "a", 1),
        table_commands.AcquireLock("disk/disk-3", "a", 1),
    ],
)
def test_a_lock_needs_names_and_not_that_of_a_disk(command: table_commands.AcquireLock) -> None:
    with pytest.raises(InvalidRequest):
        TableStory().do(command)


def test_producer_ids_end_before_they_overflow() -> None:
    table = ShardTable.empty(TableHeader(CLUSTER_ID, 0, MAX_OFFSET - 1))
    assert table.apply(table_commands.AllocateProducerIds(1), 0, NEW_ID).result == table_commands.ProducerIdBlock(
        MAX_OFFSET - 1, MAX_OFFSET
    )
    with pytest.raises(LimitExceeded):
        table.apply(table_commands.AllocateProducerIds(1), 0, NEW_ID)


# Topics and nodes -----------------------------------------------------------------------------------------------
def test_a_topic_id_is_used_once() -> None:
    story = TableStory()
    topic = story.topic("a")
    with pytest.raises(AlreadyExists):
        story.do(table_commands.CreateTopic("b", 1, 1, {}), topic.topic_id)


def test_settings_change_only_when_they_are_still_what_the_caller_read() -> None:
    story = TableStory()
    topic = story.topic()
    story.do(table_commands.AlterTopic(topic.topic_id, {"a": "1"}, expected={}))
    with pytest.raises(Conflict):
        story.do(table_commands.AlterTopic(topic.topic_id, {"a": "2"}, expected={}))
    assert story.do(table_commands.AlterTopic(topic.topic_id, {"a": "1"})).change_set is None, (
        "the same again changes nothing"
    )


@pytest.mark.fault("clients-change-topic-kafka")
@pytest.mark.parametrize("shards", [0, 1, 10_001])
def test_settings_and_more_shards_are_taken_together_or_not_at_all(shards: int) -> None:
    story = TableStory()
    topic = story.topic()
    with pytest.raises((InvalidRequest, LimitExceeded)):
        story.do(table_commands.AlterTopic(topic.topic_id, {"a": "1"}, shard_count=shards))
    with pytest.raises(LimitExceeded):
        story.do(table_commands.AlterTopic(topic.topic_id, {"a": "1" * 100_000}, shard_count=3))
    assert story.table.topic(topic.topic_id) == topic
    grown = story.do(table_commands.AlterTopic(topic.topic_id, {"a": "1"}, shard_count=3))
    assert grown.change_set is not None, "both in one version"
    altered = story.table.topic(topic.topic_id)
    assert (altered.shard_count, dict(altered.settings)) == (3, {"a": "1"})
    assert story.table.shard(ShardKey(topic.topic_id, 2)).segments


@pytest.mark.parametrize(
    "node",
    [
        NodeInfo(-1, "s", "h", 1),
        NodeInfo(2**31, "s", "h", 1),
        NodeInfo(1, "", "h", 1),
        NodeInfo(1, "s", "", 1),
        NodeInfo(1, "s", "h", 0),
        NodeInfo(1, "s", "h", 65536),
    ],
)
def test_a_node_says_who_and_where_it_is(node: NodeInfo) -> None:
    with pytest.raises(InvalidRequest):
        TableStory().do(table_commands.RegisterNode(node))


def test_new_shards_go_to_the_nodes_with_the_least_to_do() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(shards=4)
    story.do(table_commands.AddShards(topic.topic_id, 9))
    leaders = [shard.segments[-1].leader for shard in story.table.snapshot().shards]
    assert sorted(leaders.count(node) for node in (1, 2, 3)) == [3, 3, 3]
    story.do(table_commands.DeleteTopic(topic.topic_id))
    assert not any(story.table.state.load.values())


# What a change costs --------------------------------------------------------------------------------------------
def test_a_commit_writes_one_part_whatever_the_segment_holds() -> None:
    story = TableStory()
    lock = story.lock()
    key = story.active(story.topic()).key
    for offset in range(50):
        story.commit(lock, key, offset, offset + 1)
    piece = RemotePart("last", 0, 10, 50, 51)
    writes = story.do(table_commands.CommitParts(lock, (PartCommit(key, 50, piece),))).writes
    assert [type(write) for write in writes] == [PutSegmentHead, PutPart, PutHeader, PutChanges]


def test_a_roll_writes_two_segments_whatever_the_shard_holds() -> None:
    story = TableStory()
    segment = story.active(story.topic())
    for end_offset in range(50):
        segment = story.roll(segment.key, end_offset)
    writes = story.do(table_commands.RollSegment(segment.key, 100)).writes
    assert [type(write) for write in writes] == [PutSegmentHead, PutSegmentHead, PutHeader, PutChanges]


def test_a_seal_record_is_written_once_and_never_again() -> None:
    story = TableStory()
    lock = story.lock()
    key = story.active(story.topic()).key
    story.roll(key, 10)
    writes = story.do(table_commands.SealSegment(key, record_of(key, 10))).writes
    assert sum(isinstance(write, PutSeal) for write in writes) == 1
    later = story.do(table_commands.CommitParts(lock, (PartCommit(key, 0, RemotePart("a", 0, 10, 0, 10)),))).writes
    completed = story.do(table_commands.CompleteRemote(lock, key, "m", b"d", 1)).writes
    assert not any(isinstance(write, PutSeal) for write in (*later, *completed))
    assert sum(isinstance(write, DropPart) for write in completed) == 1


def test_a_snapshot_shares_the_records_of_shards_that_did_not_change() -> None:
    story = TableStory()
    topic = story.topic(shards=2)
    before = story.table.snapshot()
    assert story.table.snapshot() is before
    story.roll(story.active(topic, 0).key, 10)
    after = story.table.snapshot()
    assert after.shards[1] is before.shards[1]
    assert after.shards[0] is not before.shards[0] and after.version == before.version + 1


def test_a_version_is_spent_only_on_what_readers_can_see() -> None:
    story = TableStory()
    version = story.table.version
    story.lock()
    story.do(table_commands.AllocateProducerIds(5))
    assert story.table.version == version
    with pytest.raises(NotFound):
        story.do(table_commands.DeleteTopic(UUID(int=99)))
    assert story.table.version == version
    story.topic()
    assert story.table.version == version + 1


# Undoing --------------------------------------------------------------------------------------------------------
def test_commands_are_undone_newest_first_until_nothing_is_left_of_them() -> None:
    story = TableStory()
    lock = story.lock()
    first = story.active(story.topic())
    story.commit(lock, first.key, 0, 5)
    before = state_of(story.table)
    applied = [
        story.do(table_commands.CommitParts(lock, (PartCommit(first.key, 5, RemotePart("x", 0, 1, 5, 10)),))),
        story.do(table_commands.RollSegment(first.key, 10)),
        story.do(table_commands.SealSegment(first.key, record_of(first.key, 10))),
        story.do(table_commands.CreateTopic("other", 3, 1, {})),
        story.do(table_commands.AdvanceLogStart(first.key.shard_key, 10)),
        story.do(table_commands.PurgeSegments((first.key,))),
        story.do(table_commands.DeleteTopic(first.key.topic_id)),
        story.do(table_commands.AllocateProducerIds(7)),
    ]
    for one in reversed(applied):
        story.table.undo(one)
        story.table.check_invariants()
    assert state_of(story.table) == before
    story.commit(lock, first.key, 5, 7)
    assert tuple(story.segment(first.key).remote.parts)[1].end_offset == 7


# Loading --------------------------------------------------------------------------------------------------------
def test_records_that_do_not_fit_together_are_refused() -> None:
    story = TableStory()
    topic = story.topic()
    first = story.active(topic)
    story.roll(first.key, 10)
    header = story.table.state.header
    row = ShardRow(first.key.shard_key, 0)
    segments = story.table.shard(first.key.shard_key).segments
    assert ShardTable.load([header, topic, row, *segments], "here") is not None
    assert ShardTable.load([], "here") is None
    for records in (
        [topic],
        [header, topic, row],
        [header, row, *segments],
        [header, topic, *segments],
        [header, topic, row, segments[0]],
        [header, topic, ShardRow(ShardKey(topic.topic_id, 7), 0), row, *segments],
    ):
        with pytest.raises(Corrupt, match="here"):
            ShardTable.load(records, "here")

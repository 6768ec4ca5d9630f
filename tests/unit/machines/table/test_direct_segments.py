"""Direct segments in the shard table: where they end without their leader, which node has a copy, how topics change
their policy (docs/direct-spec.md sections 2 and 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.model.commands.retirement_commands import ReleaseNode, RetireNode
from stratalog.model.commands.table_commands import AlterTopic, CommitParts, NoteLives, RegisterNode, ReportFaultyCopies
from stratalog.model.errors import Fenced, InvalidRequest, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, Lock, NodeInfo, PartCommit
from stratalog.model.segment import RemotePart, Segment, SegmentState
from stratalog.model.storage_policy import StoragePolicy
from stratalog.model.topic import Topic
from support.table_stories import TableStory

DIRECT = {"storage.policy": "Direct"}


def _alter(story: TableStory, topic: Topic, settings: dict[str, str]) -> Topic:
    return story.do(AlterTopic(topic.topic_id, settings)).result


def _commit_as(story: TableStory, caller: Life, lock: Lock, key: SegmentKey, base: int, end: int) -> object:
    piece = RemotePart(f"chunk-{base}-{end}", 0, 10, base, end)
    return story.do(CommitParts(lock, (PartCommit(key, base, piece),), caller=caller)).result[0]


def _written(story: TableStory, end_offset: int, *, replicas: int = 1) -> Segment:
    """The active segment of a Direct topic, committed up to there by its leader."""
    segment = story.active(story.topic(replicas=replicas, settings=DIRECT))
    if end_offset:
        story.commit(story.lock(), segment.key, 0, end_offset)
    return story.segment(segment.key)


def test_a_direct_topic_keeps_its_replication_factor_and_opens_with_its_leader_alone() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=3, settings=DIRECT)
    active = story.active(topic)
    assert (active.policy, active.replicas, active.isr) == (StoragePolicy.DIRECT, (1,), (1,))
    assert topic.replication_factor == 3


def test_a_lost_leader_s_segment_ends_at_the_commit_offset_and_another_node_continues_there() -> None:
    story = TableStory(nodes=2)
    first = _written(story, 7)
    story.die(1)
    ended = story.segment(first.key)
    assert (ended.state, ended.end_offset, ended.leader) == (SegmentState.SEALING, 7, None)
    assert (ended.replicas, ended.isr, ended.handed.source) == ((2,), (2,), 2), "it copies it from the object store"
    (_, opened) = story.table.shard(first.key.shard_key).segments
    assert (opened.base_offset, opened.leader, opened.policy) == (7, 2, StoragePolicy.DIRECT)
    assert ended.handed.given_up == (), "nothing that was acknowledged is lost"
    sealed = story.report(first.key, 2)
    assert (sealed.state, sealed.local_nodes) == (SegmentState.SEALED, (2,))


def test_after_the_fence_its_former_leader_commits_nothing() -> None:
    story = TableStory(nodes=2)
    first, caller = _written(story, 7), story.life(1)
    lock = story.lock()
    story.die(1)
    refusal = _commit_as(story, caller, lock, first.key, 7, 9)
    assert isinstance(refusal, StratalogError) and story.segment(first.key).committed_end == 7


def test_while_no_node_is_alive_it_waits_and_what_is_committed_meanwhile_counts() -> None:
    """The lease of the only node may be over while it is alive: what it commits before the end is decided is kept."""
    story = TableStory(nodes=1)
    first, lock = _written(story, 7), story.lock()
    story.die(1)
    waiting = story.segment(first.key)
    assert (waiting.state, waiting.is_fenced) == (SegmentState.ACTIVE, True)
    outcome = _commit_as(story, story.life(1), lock, first.key, 7, 9)
    story.do(RegisterNode(NodeInfo(2, "storage-2", "host", 9092)))
    ended = story.segment(first.key)
    expected = 9 if isinstance(outcome, Segment) else 7
    assert (ended.state, ended.end_offset, ended.handed.source) == (SegmentState.SEALING, expected, 2)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_wiped", [True, False])
def test_a_leader_that_starts_again_never_continues_its_segment(is_clean: bool, is_wiped: bool) -> None:
    story = TableStory(nodes=1)
    first = _written(story, 7)
    story.start(1, is_clean=is_clean, is_wiped=is_wiped)
    ended = story.segment(first.key)
    assert (ended.state, ended.end_offset, ended.handed.source) == (SegmentState.SEALING, 7, 1)
    assert story.table.shard(first.key.shard_key).segments[-1].leader == 1
    assert story.report(first.key, 1).state is SegmentState.SEALED


@pytest.mark.fault("direct-holder-lost")
def test_a_holder_that_is_lost_before_the_seal_gives_way_to_another() -> None:
    story = TableStory(nodes=3)
    first = _written(story, 7)
    story.die(1)
    source = story.segment(first.key).handed.source
    assert source is not None
    story.die(source)
    other = story.segment(first.key).handed.source
    assert other not in (1, source) and story.segment(first.key).replicas == (other,)
    story.die(other)
    story.is_heard(1)
    assert story.segment(first.key).handed.source == 1, "whoever is there makes it from the object store"


def test_of_two_direct_segments_that_wait_each_gets_its_living_holder_by_one_registration() -> None:
    story = TableStory(nodes=1)
    topic = story.topic(shards=5, settings=DIRECT)
    story.die(1)
    story.do(RegisterNode(NodeInfo(2, "storage-2", "host", 9092)))
    assert [story.active(topic, shard).leader for shard in range(5)] == [2] * 5


def test_a_disk_that_hangs_loses_its_direct_segments_to_nodes_whose_disks_work() -> None:
    story = TableStory(nodes=2)
    first = _written(story, 7)
    story.do(NoteLives(stuck=(story.life(1),)))
    assert story.segment(first.key).end_offset == 7
    assert story.table.shard(first.key.shard_key).segments[-1].leader == 2


def test_a_disk_that_hangs_keeps_them_where_no_other_node_is_there() -> None:
    story = TableStory(nodes=1)
    first = _written(story, 7)
    story.do(NoteLives(stuck=(story.life(1),)))
    assert story.segment(first.key).leader == 1, "the object store still takes what it writes"


def test_a_copy_that_cannot_be_vouched_for_is_made_by_another_node() -> None:
    story = TableStory(nodes=2)
    first = _written(story, 7)
    story.do(ReportFaultyCopies((first.key,), caller=story.life(1)))
    ended, opened = story.table.shard(first.key.shard_key).segments
    assert (ended.end_offset, ended.handed.source) == (7, 2)
    assert opened.leader == 2, "the shard has stopped on the other"


def test_a_copy_that_cannot_be_vouched_for_stays_where_no_other_node_is_there() -> None:
    story = TableStory(nodes=2)
    first = _written(story, 7)
    story.die(2)
    story.do(ReportFaultyCopies((first.key,), caller=story.life(1)))
    assert story.segment(first.key).leader == 1, "an end would only put it into the same state again"


def test_a_holder_that_is_given_up_loses_nothing_that_the_object_store_has() -> None:
    story = TableStory(nodes=2)
    first = _written(story, 7)
    story.roll(first.key, 7)
    story.seal(first.key)
    story.die(1)
    story.do(RetireNode(1, force_storage_id="storage-1"))
    seen = story.table.state.nodes[1].retirement
    assert seen is not None
    assert story.do(ReleaseNode(1, seen)).result
    released = story.table.state.nodes[1].retirement
    assert released is not None and (released.given_up, released.given_up_count) == ((), 0)


def test_no_node_replicates_a_direct_segment_and_a_sealed_one_is_copied_from_the_object_store() -> None:
    story = TableStory(nodes=3)
    first = _written(story, 7, replicas=3)

    def moves(away: frozenset[int] = frozenset()) -> list[SegmentKey]:
        steps = plan_moves(story.table.snapshot(), away, frozenset((2, 3)))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return [move.segment for move in done.value.moves]

    assert moves() == []
    story.die(1)
    story.report(first.key, (holder := story.segment(first.key).replicas[0]))
    assert moves() == [], "it has the copy that it shall have"
    story.die(holder)
    assert moves(frozenset((1, holder))) == [first.key]


def test_a_topic_changes_to_direct_and_back_at_a_roll() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=3)
    first = story.active(topic)
    story.prepare(first.key)
    _alter(story, topic, DIRECT)
    prepared = story.prepare(first.key)
    assert (prepared.policy, len(prepared.replicas)) == (StoragePolicy.DIRECT, 1), "what was prepared before is not"
    second = story.roll(first.key, 10)
    assert (second.policy, second.replicas) == (StoragePolicy.DIRECT, (prepared.leader,))
    assert story.segment(first.key).policy is StoragePolicy.REPLICATED
    _alter(story, topic, {})
    story.prepare(second.key)
    story.commit(story.lock(f"tier/{second.leader}"), second.key, 10, 12)
    third = story.roll(second.key, 12)
    assert (third.policy, len(third.replicas)) == (StoragePolicy.REPLICATED, 3)


def test_a_new_node_gets_its_share_of_direct_shards_as_they_roll() -> None:
    story = TableStory(nodes=1)
    topic = story.topic(shards=4, settings=DIRECT)
    story.do(RegisterNode(NodeInfo(2, "storage-2", "host", 9092)))
    for shard in range(4):
        segment = story.active(topic, shard)
        story.prepare(segment.key)
        story.roll(segment.key, 0)
    assert sorted(story.active(topic, shard).leader or 0 for shard in range(4)) == [1, 1, 2, 2]


def test_a_roll_that_nothing_was_prepared_for_keeps_the_policy() -> None:
    """Its leader has written to the next file already, by the old one."""
    story = TableStory(nodes=1)
    topic = story.topic()
    first = story.active(topic)
    _alter(story, topic, DIRECT)
    assert story.roll(first.key, 10).policy is StoragePolicy.REPLICATED


def test_a_direct_segment_rolls_only_where_the_object_store_has_all_of_it() -> None:
    story = TableStory(nodes=1)
    first = _written(story, 7)
    with pytest.raises(InvalidRequest, match="commit the rest first"):
        story.roll(first.key, 9)
    assert story.roll(first.key, 7).base_offset == 7


def test_a_majority_and_the_object_store_cannot_both_acknowledge() -> None:
    story = TableStory(nodes=3)
    with pytest.raises(InvalidRequest, match=r"storage\.policy=Direct"):
        story.topic(replicas=3, settings={**DIRECT, "acks.policy": "quorum"})
    quorum = story.topic(replicas=3, settings={"acks.policy": "quorum"})
    with pytest.raises(InvalidRequest):
        _alter(story, quorum, {**DIRECT, "acks.policy": "quorum"})


def test_a_node_that_was_away_since_long_before_is_no_holder_by_its_old_copy() -> None:
    story = TableStory(nodes=2)
    first = _written(story, 7)
    story.die(1)
    story.start(1, is_clean=False)
    assert story.segment(first.key).replicas == (2,), "its copy is neither asked for nor believed"
    with pytest.raises((Fenced, StratalogError)):
        story.report(first.key, 1)


def test_records_of_older_releases_are_replicated() -> None:
    segment = TableStory(nodes=1).topic()
    assert segment is not None
    assert replace(_written(TableStory(nodes=1), 0), policy=StoragePolicy.REPLICATED).is_shared is False

"""A command names the life of the node that asks; what an earlier life asks is refused, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.table.records import PutHeader, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands import table_commands
from stratalog.model.errors import Fenced, InvalidRequest, Unavailable
from stratalog.model.metadata import Life, Node, NodeChanged, NodeInfo, PartCommit
from stratalog.model.segment import GapReason, GivenUp, RemotePart, Segment
from stratalog.stored import encoding
from support.table_stories import NEW_ID, TableStory, record_of, state_of

NODE = NodeInfo(1, "storage-1", "host", 9092)


def test_every_command_but_a_registration_may_name_its_caller() -> None:
    assert [kind for kind in table_commands.COMMANDS if not issubclass(kind, table_commands.NodeCommand)] == [
        table_commands.RegisterNode
    ]


@pytest.mark.fault("process-node-keeps-running", "fenced-leader-earlier-life")
def test_an_earlier_life_is_fenced_by_every_command() -> None:
    story = TableStory()
    key = story.active(story.topic()).key
    story.do(table_commands.RegisterNode(NODE))
    before = state_of(story.table)
    for command in (
        table_commands.RollSegment(key, 5),
        table_commands.ProposeIsr(key, (1,), 0),
        table_commands.AdvanceLogStart(key.shard_key, 0),
        table_commands.AcquireLock("tier/1", "node-1/1", 1_000),
        table_commands.AllocateProducerIds(1),
        table_commands.CreateTopic("more", 1, 1, {}),
    ):
        with pytest.raises(Fenced, match="life 1 of node 1 is not the present one"):
            story.do(replace(command, caller=Life(1, 1)))
    assert state_of(story.table) == before


def test_the_present_life_is_heard_and_one_that_never_was_is_not() -> None:
    story = TableStory()
    key = story.active(story.topic()).key
    story.do(table_commands.RollSegment(key, 5, caller=Life(1, 1)))
    for stranger in (Life(1, 2), Life(9, 1)):
        with pytest.raises(Fenced):
            story.do(table_commands.AllocateProducerIds(1, caller=stranger))


def test_a_registration_that_is_sent_again_is_the_same_life() -> None:
    story = TableStory(nodes=0)
    first = story.do(table_commands.RegisterNode(NODE, "start-a")).result
    again = story.do(table_commands.RegisterNode(NODE, "start-a"))
    assert again.result == first and again.writes == ()
    assert story.do(table_commands.RegisterNode(NODE, "start-b")).result.node_epoch == first.node_epoch + 1
    assert story.do(table_commands.RegisterNode(NODE)).result.node_epoch == first.node_epoch + 2, (
        "unnamed, it is always a new one"
    )


def test_a_registration_that_comes_late_begins_no_life_over_the_one_it_began() -> None:
    """The first try was slow on its way, the second was answered: the node lives by that answer."""
    story = TableStory(nodes=0)
    answered = story.do(table_commands.RegisterNode(NODE, "start-a")).result
    story.do(table_commands.RegisterNode(NODE, "start-a"))
    story.do(table_commands.AllocateProducerIds(1, caller=Life(1, answered.node_epoch)))


def test_a_start_is_named_in_a_line() -> None:
    with pytest.raises(InvalidRequest):
        TableStory(nodes=0).do(table_commands.RegisterNode(NODE, "x" * 513))


def test_watchers_learn_which_nodes_are_alive_and_in_which_life() -> None:
    story = TableStory(nodes=2)
    told = story.do(table_commands.NoteLives(lost=(Life(1, 1), Life(2, 1)))).change_set
    assert told is not None
    assert told.changes == tuple(
        NodeChanged(
            Node(number, f"storage-{number}", "host", 9092, None, 1, is_alive=False, token=NEW_ID.int, absences=1)
        )
        for number in (1, 2)
    )
    story.do(table_commands.NoteLives(heard=(Life(2, 1),)))
    assert {node.node_id: node.is_alive for node in story.table.snapshot().nodes} == {1: False, 2: True}
    story.do(table_commands.RegisterNode(NODE))
    assert {(node.node_id, node.epoch, node.is_alive) for node in story.table.snapshot().nodes} == {
        (1, 2, True),
        (2, 1, True),
    }


def test_the_end_of_an_earlier_life_says_nothing_of_the_present_one() -> None:
    story = TableStory()
    story.do(table_commands.RegisterNode(NODE))
    noted = story.do(table_commands.NoteLives(lost=(Life(1, 1), Life(7, 1))))
    assert noted.change_set is None and noted.writes == ()


def test_a_node_that_is_not_alive_may_still_ask_but_gets_no_new_shards() -> None:
    """Its lease says nothing about what it holds: safety rests on epochs and fences."""
    story = TableStory(nodes=2)
    story.do(table_commands.NoteLives(lost=(Life(1, 1),)))
    topic = story.topic(shards=4)
    assert {story.active(topic, shard).leader for shard in range(4)} == {2}
    story.do(table_commands.AllocateProducerIds(1, caller=Life(1, 1)))
    with pytest.raises(InvalidRequest, match="replication factor 2"):
        story.topic("more", replicas=2)
    story.do(table_commands.NoteLives(lost=(Life(2, 1),)))
    with pytest.raises(Unavailable):
        story.topic("more")


def test_lives_outlast_the_process_that_noted_them() -> None:
    story = TableStory(nodes=0)
    items = {}
    for command in (table_commands.RegisterNode(NODE, "start-a"), table_commands.NoteLives(lost=(Life(1, 1),))):
        items.update({key: value for key, value in encoding.encode(story.do(command).writes) if value is not None})
    loaded = ShardTable.load(encoding.decode(sorted(items.items()), "items"), "items")
    assert loaded is not None and state_of(loaded) == state_of(story.table)
    assert loaded.apply(table_commands.RegisterNode(NODE, "start-a"), 5, UUID(int=8)).result.node_epoch == 1


def test_a_node_of_before_there_were_lives_is_alive() -> None:
    header = next(encoding.encode([PutHeader(TableHeader("cluster", 1, 1))]))
    stored = [header, (b"n" + (1).to_bytes(8, "big"), b'["storage-1","host",9092,null,3]')]
    loaded = ShardTable.load(encoding.decode([(key, value or b"") for key, value in stored], "items"), "items")
    assert loaded is not None
    assert loaded.snapshot().nodes == (Node(1, "storage-1", "host", 9092, None, 3, is_alive=True),)


# Who uploads ----------------------------------------------------------------------------------------------------
def commit(story: TableStory, segment: Segment, caller: Life | None, base: int = 0, end: int = 5) -> object:
    piece = RemotePart(f"chunk-{base}", 0, 10, base, end)
    lock = story.lock()
    commits = (PartCommit(segment.key, base, piece),)
    (outcome,) = story.table.apply(
        table_commands.CommitParts(lock, commits, caller=caller), story.now_ms, NEW_ID
    ).result
    return outcome


def test_the_leader_uploads_what_it_leads_and_no_other() -> None:
    story = TableStory(nodes=3)
    segment = story.active(story.topic(replicas=2))
    leader, follower = segment.replicas
    stranger = ({1, 2, 3} - set(segment.replicas)).pop()
    for other in (follower, stranger):
        refused = commit(story, segment, Life(other, 1))
        assert isinstance(refused, Fenced) and f"uploaded by node {leader}, not by node {other}" in str(refused)
    assert isinstance(commit(story, segment, Life(leader, 1)), Segment)
    assert isinstance(commit(story, segment, Life(follower, 1)), Segment), "what is there already is there"


@pytest.mark.fault("node-sends-heartbeats-meta")
def test_a_sealed_segment_passes_to_the_next_living_holder() -> None:
    story = TableStory(nodes=3)
    segment = story.active(story.topic(replicas=3))
    first, second, third = segment.replicas
    story.do(table_commands.ProposeIsr(segment.key, (first, second), 0))
    story.roll(segment.key, 5)
    for node in (first, second):
        story.report(segment.key, node)
    assert isinstance(commit(story, segment, Life(second, 1)), Fenced)
    story.do(table_commands.NoteLives(lost=(Life(first, 1),)))
    assert isinstance(commit(story, segment, Life(third, 1)), Fenced), "it holds no copy that proved the digest"
    assert isinstance(commit(story, segment, Life(second, 1), 0, 3), Segment)
    story.do(table_commands.NoteLives(heard=(Life(first, 1),)))
    assert isinstance(commit(story, segment, Life(second, 1), 3, 5), Fenced), "and back"
    assert isinstance(commit(story, segment, Life(first, 1), 3, 5), Segment)


def test_no_node_uploads_while_no_holder_lives() -> None:
    story = TableStory(nodes=2)
    segment = story.active(story.topic(replicas=1))
    story.roll(segment.key, 5)
    story.do(table_commands.SealSegment(segment.key, record_of(segment.key, 5, segment.replicas)))
    (holder,) = segment.replicas
    story.do(table_commands.NoteLives(lost=(Life(holder, 1),)))
    refused = commit(story, segment, Life(holder, 1))
    assert isinstance(refused, Fenced) and "no living node" in str(refused)


@pytest.mark.fault("segment-deleted-node-dead")
def test_a_deleted_segment_is_purged_by_its_first_living_replica_alone() -> None:
    story = TableStory(nodes=2)
    segment = story.active(story.topic(replicas=2))
    first, second = segment.replicas
    story.do(table_commands.DeleteTopic(segment.key.topic_id))
    with pytest.raises(Fenced, match=f"purged by node {first}, not by node {second}"):
        story.do(table_commands.PurgeSegments((segment.key,), caller=Life(second, 1)))
    story.do(table_commands.NoteLives(lost=(Life(first, 1),)))
    story.do(table_commands.PurgeSegments((segment.key,), caller=Life(second, 1)))


@pytest.mark.fault("node-registered-invalid-address")
@pytest.mark.parametrize(
    ("host", "port"),
    [("host", 0), ("host", 65_536), ("host", -1), ("", 1), ("a" * 64, 1), ("a b", 1), ("a.b/c", 1), ("h\0", 1)],
)
def test_an_address_that_no_client_can_connect_to_is_refused(host: str, port: int) -> None:
    story = TableStory(nodes=0)
    with pytest.raises(InvalidRequest, match="that others connect to"):
        story.do(table_commands.RegisterNode(replace(NODE, host=host, port=port)))


@pytest.mark.parametrize("host", ["a", "a-1.b.example", "10.0.0.1", "::1", "fe80::1%eth0", "a" * 63 + ".b"])
def test_names_and_addresses_of_both_kinds_are_taken(host: str) -> None:
    TableStory(nodes=0).do(table_commands.RegisterNode(replace(NODE, host=host)))


@pytest.mark.fault("replica-segment-loses-page")
def test_who_alone_has_a_segment_and_lost_its_page_cache_breaks_the_log_where_it_rolls() -> None:
    story = TableStory()
    key = story.active(story.topic()).key
    story.commit(story.lock(), key, 0, 5)
    story.start(1, boot_id="boot-a")
    story.start(1, is_clean=False, boot_id="boot-a")
    assert story.segment(key).handover is None, "the machine runs on, and its page cache with it"
    for _ in range(2):
        story.start(1, is_clean=False, boot_id="boot-b")
        assert story.segment(key).handed.given_up == (GivenUp(5, 5, GapReason.RESTARTED),)
        assert story.segment(key).leader == 1
    story.start(1, boot_id="boot-c")
    opened = story.roll(key, 7)
    assert story.segment(key).handed.given_up == (GivenUp(7, 7, GapReason.RESTARTED),)
    assert story.seal(key).handed.given_up == (GivenUp(7, 7, GapReason.RESTARTED),)
    assert opened.handover is None


def test_what_was_flushed_before_it_was_confirmed_is_lost_with_its_disk_alone() -> None:
    story = TableStory()
    key = story.active(story.topic(settings={"flush.policy": "fsync"})).key
    story.start(1, is_clean=False)
    assert story.segment(key).handover is None
    story.start(1, is_wiped=True)
    assert story.segment(key).handed.given_up == (GivenUp(0, 0, GapReason.RESTARTED),)

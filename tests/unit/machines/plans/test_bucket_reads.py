"""With `remote.read.policy` Disable, the object store keeps data safe but serves no readers: everything that frees
copies takes that into account."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.plans.retirement import Served
from stratalog.machines.plans.shard_troubles import TroubleKind, troubles
from stratalog.machines.reading.bucket_reads import BucketReads, is_copied_from_bucket
from stratalog.machines.restart.shard_restart import judge_sealed
from stratalog.model.commands.mount_commands import BeginMount, EndMount
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.table_commands import AdvanceLogStart, AlterTopic, ForgetLocal, RegisterNode
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.model.metadata import NodeInfo
from stratalog.model.mounts import MountMode
from stratalog.model.retirement import RetireMode, RetireStep, WaitReason
from stratalog.model.segment import RemoteCopy, RemoteState, Segment, SegmentState
from stratalog.model.topic import Topic
from support.retirement_story import RetirementStory

TIERED = {"remote.storage.enable": "true"}
BARRED = {**TIERED, "remote.read.policy": "Disable"}


class Story(RetirementStory):
    """A sealed segment [0, 10) that is COMPLETE in the object store and on the nodes that were its replicas."""

    def __init__(self, settings: dict[str, str], replicas: int = 1, nodes: int = 3) -> None:
        super().__init__(nodes=nodes)
        self.orders = self.topic("orders", replicas=replicas, settings=settings)
        self.key = self.active(self.orders).key
        self.roll(self.key, 10)
        self.report_all()
        self.upload_all()
        assert self.sealed.remote.state is RemoteState.COMPLETE
        self.holder, *self.others = self.sealed.local_nodes

    @property
    def sealed(self) -> Segment:
        return self.segment(self.key)

    def alter(self, settings: dict[str, str]) -> Topic:
        return self.do(AlterTopic(self.orders.topic_id, settings)).result

    def words(self) -> list[str]:
        return [one.words for one in troubles(self.table.snapshot(), self.now_ms) if one.kind is TroubleKind.NO_COPY]


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
def test_a_node_with_the_last_readable_copy_is_not_released_before_another_has_one() -> None:
    """It was released with 0 records readable, and its directory was said not to be needed."""
    story = Story(BARRED)
    gone = story.holder
    story.do(RetireNode(gone))
    story.run_passes(gone)
    story.roll_away(gone)
    story.report_all()
    story.upload_all()
    story.run_passes(gone)
    assert story.record(gone).step is RetireStep.OFFLOAD and story.survey(gone).copies.count >= 1
    story.repair()
    story.report_all()
    assert {*story.sealed.local_nodes} > {gone}, "another node copied what the object store has, too"
    story.leave(gone, by_node=next(one for one in (1, 2, 3) if one != gone))
    assert story.sealed.local_nodes and gone not in story.sealed.local_nodes


def test_where_readers_use_the_bucket_the_same_node_is_released_without_a_copy() -> None:
    story = Story(TIERED)
    story.do(RetireNode(story.holder))
    story.run_passes(story.holder)
    story.roll_away(story.holder)
    story.report_all()
    story.upload_all()
    story.repair()
    story.leave(story.holder, by_node=next(one for one in (1, 2, 3) if one != story.holder))
    assert story.sealed.local_nodes == ()


def test_topics_without_a_policy_follow_what_the_nodes_registered() -> None:
    story = Story(TIERED)
    assert BucketReads(story.table.snapshot().nodes).of(story.orders)
    info = NodeInfo(2, "storage-2", "host", 9092, reads_bucket_by_default=False)
    story.do(RegisterNode(info))
    assert not BucketReads(story.table.snapshot().nodes).of(story.orders)
    assert not story.table.state.reads_bucket(story.orders)
    assert story.node(2).info == info
    with pytest.raises(Conflict, match=r"remote\.read\.policy=Disable.*must keep its copy"):
        story.do(ForgetLocal((story.key,), story.holder))
    assert story.table.state.reads_bucket(story.alter({**TIERED, "remote.read.policy": "NotInDisk"}))


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
def test_the_last_readable_copy_is_not_forgotten_and_a_spare_one_is() -> None:
    story = Story(BARRED, replicas=2)
    story.do(ForgetLocal((story.key,), story.holder))
    (other,) = story.sealed.local_nodes
    with pytest.raises(Conflict, match="must keep its copy"):
        story.do(ForgetLocal((story.key,), other))
    story.alter(TIERED)
    story.do(ForgetLocal((story.key,), other))
    assert story.sealed.local_nodes == ()


def test_a_copy_is_made_again_when_a_holder_died_though_the_bucket_has_it() -> None:
    story = Story(BARRED, replicas=2)
    story.die(story.holder)
    assert any(one.kind is TroubleKind.TOO_FEW_COPIES for one in troubles(story.table.snapshot(), story.now_ms))
    story.do(RetireNode(story.holder, force_storage_id=f"storage-{story.holder}"))
    story.run_passes(story.holder)
    story.repair()
    story.report_all()
    assert sum(map(story.table.state.is_alive, story.sealed.local_nodes)) == 2


@pytest.mark.fault("all-local-copies-lost-bucket-whole")
def test_a_copy_is_made_from_the_bucket_when_the_only_holder_is_gone_for_good() -> None:
    """No node had a copy, so that none was made, and what the bucket had whole stayed unreadable."""
    story = Story(BARRED)
    story.die(story.holder)
    story.repair()
    assert story.sealed.replicas == (story.holder,), "it may come back"
    assert "nodes copy from the object store what a node held that has been away" in story.words()[0]
    story.repair(away=frozenset({story.holder}))
    (added,) = {*story.sealed.replicas} - {story.holder}
    story.report_all()
    assert added in story.sealed.local_nodes and story.words() == []


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
def test_copies_are_made_from_the_bucket_after_the_only_holder_was_given_up() -> None:
    story = Story(BARRED)
    story.do(RetireNode(story.holder))
    story.run_passes(story.holder)
    story.roll_away(story.holder)
    story.report_all()
    story.upload_all()
    story.die(story.holder)
    story.do(RetireNode(story.holder, force_storage_id=f"storage-{story.holder}"))
    story.run_passes(story.holder, count=12)
    record = story.record(story.holder)
    assert record.step.is_released and record.given_up == () and record.given_up_count == 0
    assert story.sealed.local_nodes == ()
    story.repair()
    story.report_all()
    assert len(story.sealed.local_nodes) == 1 and story.words() == []


@pytest.mark.fault("all-local-copies-lost-bucket-whole")
def test_what_is_only_partly_in_the_bucket_is_not_copied_from_there() -> None:
    story = Story(BARRED)
    assert is_copied_from_bucket(story.sealed)
    assert not is_copied_from_bucket(replace(story.sealed, remote=RemoteCopy(RemoteState.PARTIAL, 5)))
    assert not is_copied_from_bucket(replace(story.sealed, state=SegmentState.SEALING))


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
def test_a_dead_node_with_the_last_copy_leaves_once_others_have_copied_it_from_the_bucket() -> None:
    story = Story(BARRED)
    story.do(RetireNode(story.holder))
    story.run_passes(story.holder)
    story.roll_away(story.holder)
    story.report_all()
    story.upload_all()
    story.die(story.holder)
    assert "remote.read.policy=Disable" in story.words()[0] and f"start node {story.holder}" in story.words()[0]
    story.run_passes(story.holder)
    wait = story.record(story.holder).wait
    assert wait is not None and wait.reason is WaitReason.UNDER_REPLICATED and "being copied there" in wait.words
    story.repair()
    story.report_all()
    story.run_passes(story.holder)
    assert story.survey(story.holder).needed_count == 0
    story.leave(story.holder, by_node=next(one for one in (1, 2, 3) if one != story.holder))
    assert {*story.sealed.local_nodes} - {story.holder}


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
def test_a_mount_is_not_ended_while_its_directory_alone_is_read() -> None:
    story = Story(BARRED, nodes=4)
    gone = story.holder
    story.mount = Served.SERVING
    story.do(RetireNode(gone, RetireMode.VOLUME))
    story.run_passes(gone)
    story.roll_away(gone)
    story.report_all()
    story.upload_all()
    story.leave(gone, by_node=gone)
    story.do(BeginMount(gone, f"storage-{gone}", MountMode.VOLUME))
    with pytest.raises(Conflict, match=r"2 of them are whole in the object store, where remote\.read\.policy=Disable"):
        story.do(EndMount(f"tier/{gone}"))
    story.alter(TIERED)
    story.do(EndMount(f"tier/{gone}"))
    assert story.sealed.local_nodes == ()


@pytest.mark.fault("topic-remote-read-policy-disable-nodes")
def test_a_topic_keeps_its_readers_in_the_bucket_while_data_are_there_alone() -> None:
    """`topics alter` said nothing, and consumers waited without an end for what had been freed."""
    story = Story(TIERED)
    story.do(ForgetLocal((story.key,), story.holder))
    with pytest.raises(
        InvalidRequest, match=r"1 sealed segment is in the object store alone.*orders --shard 0 --to-offset 10`"
    ):
        story.alter(BARRED)
    assert "remote.read.policy" not in story.table.topic(story.orders.topic_id).settings
    story.alter({**TIERED, "retention.ms": "1"})
    story.do(AdvanceLogStart(story.key.shard_key, 10))
    assert story.alter(BARRED).settings["remote.read.policy"] == "Disable"


@pytest.mark.fault("consumer-reads-bucket-remote-read-policy")
def test_nodes_that_start_with_disable_as_their_default_copy_what_was_freed() -> None:
    """No change of the topic asked for it, so none could be refused."""
    story = Story(TIERED)
    story.do(ForgetLocal((story.key,), story.holder))
    assert story.words() == []
    story.do(RegisterNode(replace(story.node(story.holder).info, reads_bucket_by_default=False)))
    assert "wait: nodes copy them from the object store now; or run" in story.words()[0]
    story.report_all()
    assert story.sealed.local_nodes == (story.holder,) and story.words() == []


def test_a_replica_keeps_its_file_over_a_restart_where_readers_may_not_use_the_bucket() -> None:
    """Its report came after the upload: it was taken for a leftover."""
    story = Story(BARRED, replicas=2)
    story.do(ForgetLocal((story.key,), story.holder))
    assert judge_sealed(story.sealed, story.holder, has_file=True, may_read_bucket=False) is None
    assert judge_sealed(story.sealed, story.holder, has_file=True, may_read_bucket=True) is not None

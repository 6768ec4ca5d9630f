"""What a rebuild makes of mounts, of nodes that have left, and of what their directories alone have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from property.test_rebuilt_tables import SHARD, TOPIC_ID, found_part, seal
from stratalog.machines.rebuild.mounts import LeftOutKind, plan_leavers
from stratalog.machines.rebuild.shard import FoundManifest, FoundSegment
from stratalog.machines.rebuild.table import Published, RebuildPlan, Scan, plan_rebuild, records_of
from stratalog.machines.table.records import NodeEntry, ShardRow, StoredRecord, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import OpenVolume
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.errors import Fenced, InvalidRequest
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock, NodeInfo
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange, Volume
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, Segment, SegmentState
from stratalog.model.topic import Topic
from unit.machines.table.test_table_mounts import GONE  # the id of the node that has left

DISK = "retired-disk"


def left(mode: RetireMode = RetireMode.VOLUME, step: RetireStep = RetireStep.DONE) -> NodeEntry:
    record = Retirement(DISK, mode, step, 1, 2)
    return NodeEntry(NodeInfo(GONE, DISK, "host", 9092), 5, False, retirement=record)


def mounted(mode: MountMode = MountMode.VOLUME) -> Mount:
    volume = Volume("host", 1, "start") if mode is MountMode.VOLUME else None
    return Mount(f"tier/{GONE}", mode, GONE, DISK, MountState.SERVING, 7, 3, None, 1, 4, volume)


def sealed(epoch: int, base: int, end: int, **changes: object) -> Segment:
    key = SegmentKey(TOPIC_ID, 0, epoch, base)
    record = replace(seal(epoch, base, end), replicas=(GONE,))
    made = Segment(key, SegmentState.SEALED, None, (GONE, 1), (GONE,), 0, 0, end, record, (GONE, 1))
    return replace(made, **changes)  # type: ignore[arg-type]


def records(entry: NodeEntry, mount: Mount | None, *segments: Segment) -> list[StoredRecord]:
    topic = Topic("orders", TOPIC_ID, 1, 1, {}, 1)
    lock = Lock(f"tier/{GONE}", "node-1/4/mount", 7, 0, ("node-3/5/aa",))
    active = Segment(SegmentKey(TOPIC_ID, 0, 9, 90), SegmentState.ACTIVE, 1, (1,), (1,), 0, 0)
    last = segments[-1]
    assert last.end_offset is not None
    active = replace(active, key=SegmentKey(TOPIC_ID, 0, last.epoch + 1, last.end_offset))
    made: list[StoredRecord] = [TableHeader("c", 70, 500), topic, entry, lock, ShardRow(SHARD, 0), *segments, active]
    return made if mount is None else [*made, mount]


def table_of(plan: RebuildPlan) -> ShardTable:
    made = {
        one.key: Published(
            replace(seal(one.key.epoch, one.key.base_offset, one.end_offset), replicas=()), "made", b"d", 9
        )
        for one in plan.to_publish
    }
    table = ShardTable.load(records_of(plan, made, 100), "rebuilt")
    assert table is not None
    table.check_invariants()
    return table


@pytest.mark.fault("rebuilds-metadata-cluster-retired")
def test_of_what_a_directory_alone_has_whole_the_parts_that_the_bucket_has_stay_committed() -> None:
    """The directory may be lost some day: what went up before counts on."""
    known = RemoteCopy(RemoteState.PARTIAL, 4, (RemotePart("0.0-4.1", 0, 4, 0, 4),))
    first, second = sealed(0, 0, 10, remote=known), sealed(1, 10, 20)
    found = FoundSegment(first.key, (), (found_part(first.key, 0, 4), found_part(first.key, 4, 6)))
    plan = plan_rebuild(records(left(), mounted(), first, second), Scan({SHARD: [found]}, {}, {}, {}), (7, 8))
    assert [(one.key.epoch, one.chain_end, one.volumes) for one in plan.shards[0].in_volumes] == [
        (0, 6, (GONE,)),
        (1, 10, (GONE,)),
    ]
    assert plan.shards[0].lost == [] and [one.key.epoch for one in plan.to_publish] == [2]
    table = table_of(plan)
    kept, whole, *_ = table.shard(SHARD).segments
    assert (kept.seal, kept.local_nodes, kept.remote.state, kept.remote.commit_offset) == (
        first.seal,
        (GONE,),
        RemoteState.PARTIAL,
        6,
    )
    assert [part.object_key for part in kept.remote.parts] == ["0.0-4.1", "0.4-6.1"]
    assert kept.remote.size_bytes == 6, "what it costs is told, and parts that are merged take their bytes off"
    assert (whole.seal, whole.remote.state) == (second.seal, RemoteState.NONE)


def test_what_the_bucket_has_whole_is_taken_from_there_and_the_directory_stays_a_copy() -> None:
    first, second = sealed(0, 0, 10), sealed(1, 10, 20)
    assert second.seal is not None
    found = [
        FoundSegment(first.key, (), (found_part(first.key, 0, 10),)),
        FoundSegment(second.key, (FoundManifest("m", 20, 1, 1, second.seal, b"d", 9),)),
    ]
    plan = plan_rebuild(records(left(), mounted(), first, second), Scan({SHARD: found}, {}, {}, {}), (7,))
    assert plan.shards[0].in_volumes == []
    segments = table_of(plan).shard(SHARD).segments[:2]
    assert [(one.remote.state, one.local_nodes) for one in segments] == [(RemoteState.COMPLETE, (GONE,))] * 2


def test_the_directory_is_mounted_under_a_token_that_no_node_had_and_its_node_stays_away() -> None:
    plan = plan_rebuild(records(left(), mounted(), sealed(0, 0, 10)), Scan({}, {}, {GONE: 11}, {}), (7,))
    table = table_of(plan)
    (mount,) = table.state.mounts.values()
    assert (mount.state, mount.holder, mount.volume, mount.token) == (MountState.WAITING, None, None, 12)
    assert "node-1/4/mount" in table.state.locks[mount.name].earlier
    table.apply(RegisterNode(NodeInfo(7, "new", "host", 9092)), 200, table.state.topics[TOPIC_ID].topic_id)
    given = table.state.mounts[mount.name]
    assert (given.state, given.holder, given.token) == (MountState.TAKING, 7, 13)
    opened = table.apply(OpenVolume(GONE, DISK, "host", 5, "start"), 200, TOPIC_ID).result
    assert opened.volume == Volume("host", 5, "start")
    with pytest.raises(Fenced, match="was retired"):
        table.apply(RegisterNode(NodeInfo(GONE, "another", "host", 9092)), 200, TOPIC_ID)
    table.check_invariants()


@pytest.mark.parametrize("step", [RetireStep.RELEASE, RetireStep.MOUNT])
def test_one_that_was_released_and_is_not_mounted_yet_counts_too(step: RetireStep) -> None:
    plan = plan_rebuild(records(left(step=step), None, sealed(0, 0, 10)), Scan({}, {}, {}, {}), (7,))
    table = table_of(plan)
    assert not table.state.mounts and table.state.nodes[GONE].retirement == left(step=step).retirement
    assert table.shard(SHARD).segments[0].local_nodes == (GONE,), "the retirement goes on, and mounts it"


def test_a_person_gives_a_directory_up_by_the_id_and_nothing_else_is_mistaken_for_one() -> None:
    every = records(left(), mounted(), sealed(0, 0, 10))
    with pytest.raises(InvalidRequest, match=f"--without-volume {GONE}"):
        plan_rebuild(every, Scan({}, {}, {}, {}), (GONE,))
    with pytest.raises(InvalidRequest, match="no directory of a node 1"):
        plan_rebuild(every, Scan({}, {}, {}, {}), (7,), (1,))
    plan = plan_rebuild(every, Scan({}, {}, {}, {}), (GONE,), (GONE,))
    assert [(lost.base_offset, lost.end_offset) for lost in plan.shards[0].lost] == [(0, 10)]
    table = table_of(plan)
    assert not table.state.mounts and not table.state.nodes
    assert [one.kind for one in plan.leavers.left_out] == [LeftOutKind.RETIREMENT, LeftOutKind.MOUNT]


def test_a_directory_of_a_node_that_had_not_left_yet_is_a_lost_disk() -> None:
    """It was a member's: nothing says that it still exists."""
    plan = plan_rebuild(records(left(step=RetireStep.VERIFY), None, sealed(0, 0, 10)), Scan({}, {}, {}, {}), (7,))
    assert plan.shards[0].in_volumes == [] and len(plan.shards[0].lost) == 1
    (told,) = plan.leavers.left_out
    assert (told.kind, told.name) == (LeftOutKind.RETIREMENT, str(GONE)) and "step verify" in told.why


@pytest.mark.fault("metadata-rebuilt-nodes-leaving")
@pytest.mark.parametrize(
    ("entry", "nodes", "words"),
    [
        (left(RetireMode.OFFLOAD), (GONE,), "starts again under that id"),
        (replace(left(), retirement=None), (7,), "never left by a retirement"),
    ],
)
def test_each_mount_that_is_not_restored_is_reported_with_what_to_do(
    entry: NodeEntry, nodes: tuple[int, ...], words: str
) -> None:
    plan = plan_leavers([entry, mounted(MountMode.OFFLOAD)], nodes)
    assert plan.mounts == [] and plan.nodes == []
    told = next(one for one in plan.left_out if one.kind is LeftOutKind.MOUNT)
    assert told.name == f"tier/{GONE}" and words in told.why and told.next_step


@pytest.mark.fault("rebuilds-metadata-cluster-mounts")
def test_mounts_made_by_a_person_stay_as_they_are() -> None:
    ranges = (OffsetRange(2, 8),)
    topics = (MountedTopic(TOPIC_ID, "orders", ranges),)
    hand = Mount("2013", MountMode.HAND_MADE, -1, "", MountState.SERVING, 0, 3, topics=topics, expires_ms=99)
    every = [*records(left(RetireMode.OFFLOAD), mounted(MountMode.OFFLOAD), sealed(0, 0, 10)), hand]
    table = table_of(plan_rebuild(every, Scan({}, {}, {}, {}), (7,)))
    assert table.state.mounts["2013"] == hand
    assert table.state.mounts[f"tier/{GONE}"].mode is MountMode.OFFLOAD


def test_a_directory_whose_mount_was_ended_counts_no_more_and_its_id_is_free() -> None:
    known = replace(sealed(0, 0, 10), local_nodes=(1,))
    for nodes in ((7,), (GONE,)):
        plan = plan_rebuild(records(left(), None, known), Scan({}, {}, {}, {}), nodes)
        assert plan.leavers.volumes == frozenset() and len(plan.shards[0].lost) == 1
        assert (GONE in table_of(plan).state.nodes) is (nodes == (7,)), "its record stays unless its id is given anew"

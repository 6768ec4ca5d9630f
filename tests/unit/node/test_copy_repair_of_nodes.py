"""Copies of sealed segments that are too few are made again on another node, or by the node that lost its own."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from crc32c import crc32c

from stratalog.formats.batches.record_batch import ATTRIBUTES_AT, walk
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.machines.following.follower_events import FollowerLife
from stratalog.model.commands.table_commands import MoveReplicas, ReportReplica
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog_node.disk.files import SegmentFile
from stratalog_node.node import wall_ms
from stratalog_node.replication import following
from stratalog_node.shards.copies.sealed import SealedCopy
from support.node_cluster import NodeCluster
from support.waiting import eventually


async def repair(cluster: NodeCluster, away: tuple[int, ...] = (), steady: tuple[int, ...] = ()) -> None:
    """As the meta service does after a while."""
    snapshot = await cluster.meta.service.snapshot()
    steps = plan_moves(snapshot, frozenset(away), frozenset(steady))
    while True:
        try:
            next(steps)
        except StopIteration as done:
            await cluster.meta.service.perform(MoveReplicas(tuple(done.value.moves)))
            return


async def rolled(cluster: NodeCluster, key: ShardKey, *values: bytes) -> None:
    for value in values:
        await cluster.append(key, value)
    epoch = (await cluster.leads_again(key)).epoch
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    await cluster.is_sealed(key, epoch, copies=2)


def holders(cluster: NodeCluster, key: ShardKey, at: int, epoch: int = 0) -> tuple[int, ...]:
    return cluster.segments(key, at)[epoch].local_nodes


def is_copy_of_shard(cluster: NodeCluster, node_id: int, segment: SegmentKey) -> bool:
    shard = cluster.nodes[node_id].shards.get(segment.shard_key)
    return shard is not None and isinstance(shard.copies.get(segment.epoch), SealedCopy)


@pytest.mark.fault("node-lost-permanently-sealed")
async def test_what_a_node_held_that_is_gone_is_copied_to_another_and_served_there(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await rolled(cluster, key, b"one", b"two")
    segment = cluster.segments(key)[0].key
    await cluster.start(3)
    await cluster.kill(2)
    await cluster.lose(2)
    await repair(cluster, away=(2,))
    await eventually(lambda: holders(cluster, key, at=3) == (1, 2, 3))
    await eventually(lambda: is_copy_of_shard(cluster, 3, segment))
    layouts = [cluster.layout(node_id) for node_id in (1, 3)]
    mine, theirs = [layout.segment(segment).read_bytes() for layout in layouts]
    assert mine[-100:] == theirs[-100:] and len(mine) == len(theirs)
    await eventually(layouts[1].index(segment).exists)
    shard = cluster.nodes[3].shards.get(key)
    assert shard is not None and await shard.read(0, 1 << 20)
    assert cluster.nodes[3].following.stats.catch_up_bytes > 0, "nobody's acknowledgement waits for it"


async def copied_to_a_third_node(cluster: NodeCluster) -> tuple[ShardKey, SegmentKey]:
    """Node 2 is lost, and node 3 has its copy of a sealed segment."""
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await rolled(cluster, key, b"one")
    segment = cluster.segments(key)[0].key
    await cluster.start(3)
    await cluster.lose(2)
    await repair(cluster, away=(2,))
    await eventually(lambda: is_copy_of_shard(cluster, 3, segment))
    return key, segment


@pytest.mark.fault("lost-node-copies")
async def test_a_copy_in_the_place_of_one_that_is_back_goes_and_its_files_with_it(cluster: NodeCluster) -> None:
    key, segment = await copied_to_a_third_node(cluster)
    await cluster.restore_heartbeats(2)
    await repair(cluster, steady=(1, 2, 3))
    files = (cluster.layout(3).segment(segment), cluster.layout(3).index(segment))
    # The index block last: who had just proven the copy may write it beside the thread that deletes.
    await eventually(lambda: not any(file.exists() for file in files) and not is_copy_of_shard(cluster, 3, segment))
    assert holders(cluster, key, at=1) == (1, 2)


@pytest.mark.fault("lost-node-copies")
async def test_a_copy_that_goes_while_its_node_is_down_goes_at_its_next_start(cluster: NodeCluster) -> None:
    _, segment = await copied_to_a_third_node(cluster)
    await cluster.stop(3)
    await cluster.restore_heartbeats(2)
    await repair(cluster, steady=(1, 2, 3))
    await cluster.start(3)
    await eventually(lambda: not cluster.layout(3).segment(segment).exists())


@pytest.mark.fault("sealed-copy-file-gone")
async def test_a_node_whose_file_is_gone_says_so_and_copies_it_again(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await rolled(cluster, key, b"one")
    segment = cluster.segments(key)[0].key
    await cluster.stop(2)
    cluster.layout(2).segment(segment).unlink()
    await cluster.start(2)
    await cluster.nodes[2].lost_copies.check()
    assert cluster.nodes[2].following.stats.lost_copies == 1
    await eventually(lambda: is_copy_of_shard(cluster, 2, segment) and holders(cluster, key, at=2) == (1, 2))
    assert cluster.layout(2).segment(segment).exists()


@pytest.mark.fault("sealed-copy-file-gone")
async def test_a_copy_that_a_reader_found_damaged_is_copied_again(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await rolled(cluster, key, b"one")
    segment = cluster.segments(key)[0].key
    other = 3 - cluster.leader(key)
    await cluster.stop(other)
    path = cluster.layout(other).segment(segment)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    await cluster.start(other)
    shard = cluster.nodes[other].shards.get(key)
    assert shard is not None
    damaged = shard.copies[0]
    with contextlib.suppress(StratalogError):
        await shard.workers.reader.read_to_keep(shard, 0, 1 << 20)
    assert damaged.damage is not None
    await cluster.nodes[other].lost_copies.check()
    await eventually(lambda: holders(cluster, key, at=other) == (1, 2) and shard.copies.get(0) not in (None, damaged))
    assert path.read_bytes()[-20:] == whole[-20:]


def say_other(path: Path, before: bytes, after: bytes) -> None:
    """The first batch of a segment's file has another value, of the same length, and a checksum that fits."""
    whole = bytearray(path.read_bytes())
    at = whole.index(before)
    whole[at : at + len(before)] = after
    ((_, batch),) = walk(memoryview(whole)[SEGMENT_HEADER_BYTES:], source=str(path), verify=False)
    begin, end = SEGMENT_HEADER_BYTES + ATTRIBUTES_AT, SEGMENT_HEADER_BYTES + batch.size_bytes
    whole[begin - 4 : begin] = crc32c(bytes(whole[begin:end])).to_bytes(4, "big")
    path.write_bytes(whole)


@pytest.mark.fault("copy-differed-sealed-segment")
async def test_a_copy_that_differs_is_copied_again_if_no_other_node_can(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await cluster.append(key, b"right")
    cluster.meta.hold(ReportReplica)
    leader = cluster.leader(key)
    follower, segment = 3 - leader, cluster.segments(key)[0].key
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    await eventually(lambda: cluster.segments(key)[0].end_offset == 1)
    await eventually(lambda: (copy := cluster.replica(follower, key)) is not None and copy.end_offset == 1)
    await cluster.kill(follower)
    say_other(cluster.layout(follower).segment(segment), b"right", b"wrong")
    await cluster.start(follower)
    cluster.meta.release(ReportReplica)
    await eventually(lambda: holders(cluster, key, at=leader) == (leader,))
    await repair(cluster)
    await eventually(lambda: holders(cluster, key, at=leader) == (1, 2))
    copies = [cluster.layout(node_id).segment(segment).read_bytes() for node_id in (1, 2)]
    assert all(b"right" in copy and b"wrong" not in copy for copy in copies)
    assert not cluster.segments(key)[0].handed.reports


@pytest.mark.fault("copy-sealed-segment-bad")
async def test_a_copy_that_is_damaged_while_it_is_made_starts_again(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_ANEW_S", 0.01)
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await rolled(cluster, key, b"one")
    segment = cluster.segments(key)[0].key
    await cluster.start(3)
    await cluster.lose(2)
    proven = following.ReplicaCopy._proven
    damaged: list[SegmentKey] = []

    def prove(copy: following.ReplicaCopy) -> object:
        if not damaged and copy.key == segment:
            damaged.append(segment)
            path = copy.file.path
            path.write_bytes(path.read_bytes()[:-1] + b"!")
        return proven(copy)

    monkeypatch.setattr(following.ReplicaCopy, "_proven", prove)
    await repair(cluster, away=(2,))
    await eventually(lambda: is_copy_of_shard(cluster, 3, segment))
    assert damaged and cluster.nodes[3].following.stats.faulty_copies == 0


@pytest.mark.fault("copy-cannot-be-used-again")
async def test_pauses_between_copies_that_cannot_be_used_grow(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a transfer of the whole segment."""
    monkeypatch.setattr(following, "_ANEW_S", 0.01)
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await rolled(cluster, key, b"one")
    segment = cluster.segments(key)[0].key
    await cluster.start(3)
    await cluster.lose(2)
    pauses: list[float] = []
    proven, pause = following.ReplicaCopy._proven, following.Backoff.pause

    def prove(copy: following.ReplicaCopy) -> object:
        if len(pauses) < 4 and copy.key == segment:
            path = copy.file.path
            path.write_bytes(path.read_bytes()[:-1] + b"!")
        return proven(copy)

    async def noted(backoff: following.Backoff) -> None:
        if backoff in cluster.nodes[3].following._useless.values():
            pauses.append(backoff.next_s)
        await pause(backoff)

    monkeypatch.setattr(following.ReplicaCopy, "_proven", prove)
    monkeypatch.setattr(following.Backoff, "pause", noted)
    await repair(cluster, away=(2,))
    await eventually(lambda: is_copy_of_shard(cluster, 3, segment))
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
    assert not cluster.nodes[3].following._useless, "it is proven"


@pytest.mark.fault("segment-opened-fewer-replicas")
async def test_an_active_segment_with_too_few_replicas_is_filled_where_it_is(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    leader = cluster.leader(key)
    other = 3 - leader
    await cluster.append(key, b"zero")
    await cluster.kill(other)
    await cluster.lose(other)
    await cluster.append(key, b"one")
    shard = await cluster.leads_again(key)
    shard.ask_roll(wall_ms())
    await eventually(lambda: cluster.segments(key)[-1].epoch == 1 and cluster.segments(key)[-1].replicas == (leader,))
    await cluster.append(key, b"two")
    await cluster.start(3)
    await repair(cluster)
    await eventually(lambda: set(cluster.segments(key)[-1].isr) == {leader, 3})
    assert cluster.segments(key)[-1].epoch == 1, "not at the next roll"
    await cluster.append(key, b"three")
    replica = cluster.replica(3, key, 1)
    assert replica is not None and replica.copy.end_offset == 4
    shard.ask_roll(wall_ms())
    assert set((await cluster.is_sealed(key, 1, copies=2)).local_nodes) == {leader, 3}


# Starts -------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("follower-large-copies-restarted")
async def test_a_start_reads_of_a_followed_copy_what_came_after_its_checkpoint(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    other = 3 - cluster.leader(key)
    for _ in range(20):
        await cluster.append(key, bytes(200_000))
    following = cluster.nodes[other].following
    await cluster.stop(other)
    assert following.stats.checkpoints > 0
    read = SegmentFile.read
    sizes: list[int] = []

    def counted(file: SegmentFile, position: int, size: int) -> object:
        if str(cluster.root / str(other)) in str(file.path):
            sizes.append(size)
        return read(file, position, size)

    monkeypatch.setattr(SegmentFile, "read", counted)
    await cluster.start(other)
    await eventually(lambda: cluster.replica(other, key) is not None)
    replica = cluster.replica(other, key)
    assert replica is not None and replica.copy.end_offset == 20
    assert sum(sizes) < 500_000, "of four megabytes"
    await cluster.append(key, b"more")
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    await cluster.is_sealed(key, copies=2)


@pytest.mark.fault("follower-large-copies-restarted")
async def test_a_copy_shorter_than_its_checkpoint_does_not_count_as_whole(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    other = 3 - cluster.leader(key)
    for number in range(4):
        await cluster.append(key, b"%d" % number)
    segment = cluster.segments(key)[0].key
    await cluster.stop(other)
    path = cluster.layout(other).segment(segment)
    path.write_bytes(path.read_bytes()[:-50])
    await cluster.start(other)
    await eventually(lambda: cluster.replica(other, key) is not None)
    replica = cluster.replica(other, key)
    assert replica is not None and not replica.follower._is_tail_whole
    await eventually(lambda: replica.copy.end_offset == 4)
    assert replica.follower.life is FollowerLife.FOLLOWING

"""One of three copies is damaged, and its node comes first: the good copies decide, and it copies them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import parse_header, scan_valid_prefix
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.commands.table_commands import SealUnclean
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import GapReason, GivenUp, SegmentState, Vote
from support.node_cluster import NodeCluster
from support.waiting import eventually

RECORDS = [b"record %d" % at for at in range(20)]
SETTINGS = {"min_insync_replicas": "2"}


def flip_a_bit(path: Path, share: float) -> None:
    """In the batches, so far behind their beginning."""
    data = bytearray(path.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    at = SEGMENT_HEADER_BYTES + int((end - SEGMENT_HEADER_BYTES) * share)
    data[at] ^= 0x10
    path.write_bytes(data)


def whole_bytes(path: Path, segment: SegmentKey, end_offset: int) -> int:
    """Of the batches up to that offset."""
    batches = path.read_bytes()[SEGMENT_HEADER_BYTES:]
    found = scan_valid_prefix(batches, segment.base_offset, segment.epoch)
    assert found.next_offset == end_offset
    return found.end_position


def begin_of_batch(path: Path, offset: int) -> int:
    """In the file."""
    data, at = path.read_bytes(), SEGMENT_HEADER_BYTES
    while (header := parse_header(data[at:])).base_offset < offset:
        at += header.size_bytes
    return at


async def acknowledged_and_killed(cluster: NodeCluster, **settings: str) -> tuple[ShardKey, SegmentKey, int]:
    """Three nodes that all have all records are dead, and no checkpoint says how far. Returns also: who did not
    lead."""
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3, **(SETTINGS | settings))
    segment = cluster.segments(key)[0].key
    for record in RECORDS:
        await cluster.append(key, record)
    follower = next(node_id for node_id in (3, 2) if node_id != cluster.leader(key))
    for node_id in (1, 2, 3):
        await cluster.kill(node_id)
        shutil.rmtree(cluster.layout(node_id).checkpoints)
    for node_id in (1, 2, 3):
        await cluster.lose(node_id)
    return key, segment, follower


async def vote_of(cluster: NodeCluster, segment: SegmentKey, node_id: int) -> Vote:
    """In its present life."""

    async def votes() -> list[Vote]:
        record = await cluster.meta.service.segment(segment)
        return [vote for vote in record.handed.votes if vote.node_id == node_id]

    await eventually(votes)
    (vote,) = await votes()
    return vote


@pytest.mark.fault("nodes-killed-bit-flips")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.98], ids=["first", "middle", "last"])
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
async def test_a_damaged_copy_that_comes_first_decides_nothing(cluster: NodeCluster, share: float, policy: str) -> None:
    key, segment, damaged = await acknowledged_and_killed(cluster, flush_policy=policy)
    flip_a_bit(cluster.layout(damaged).segment(segment), share)
    for _ in range(2):  # what it found is there still for the next life to find
        await cluster.start(damaged)
        vote = await vote_of(cluster, segment, damaged)
        assert not vote.is_tail_whole and vote.end_offset < len(RECORDS)
        found = await cluster.meta.service.segment(segment)
        assert found.state is SegmentState.ACTIVE, f"it waits for the others: {found}"
        assert cluster.nodes[damaged].following.stats.damaged_copies == 1
        await cluster.kill(damaged)
    await cluster.start(damaged)

    good = next(node_id for node_id in (1, 2, 3) if node_id != damaged)
    await cluster.start(good)
    assert await cluster.values(key) == RECORDS
    await cluster.start(next(node_id for node_id in (1, 2, 3) if node_id not in (good, damaged)))
    sealed = await cluster.is_sealed(key, copies=3)
    assert sealed.end_offset == len(RECORDS) and not sealed.handed.given_up
    assert await cluster.append(key, b"later") == len(RECORDS)
    assert await cluster.values(key) == [*RECORDS, b"later"]


@pytest.mark.fault("follower-restarts-damaged-copy")
async def test_a_damaged_follower_is_counted_on_no_more_until_it_has_all_of_it_again(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3, **SETTINGS)
    for record in RECORDS:
        await cluster.append(key, record)
    leader, segment = cluster.leader(key), cluster.segments(key)[0].key
    damaged = next(node_id for node_id in (3, 2) if node_id != leader)
    await cluster.kill(damaged)
    shutil.rmtree(cluster.layout(damaged).checkpoints)
    flip_a_bit(cluster.layout(damaged).segment(segment), 0.5)
    with cluster.full_disk(damaged):
        await cluster.start(damaged)
        await eventually(lambda: damaged not in cluster.segments(key, leader)[0].isr)
        (doubt,) = cluster.segments(key, leader)[0].handed.doubts
        assert (doubt.node_id, doubt.is_faulty) == (damaged, True)
        assert cluster.replica(damaged, key).end_offset < len(RECORDS)
    await eventually(lambda: damaged in cluster.segments(key, leader)[0].isr)
    assert cluster.replica(damaged, key).end_offset == len(RECORDS)
    assert not cluster.segments(key, leader)[0].handed.doubts
    for other in (1, 2, 3):
        if other != damaged:
            await cluster.kill(other)
            await cluster.lose(other)
    assert await cluster.values(key) == RECORDS, "it decides alone now: it has all of it"


@pytest.mark.fault("nodes-killed-bit-flips")
async def test_what_was_seen_behind_the_damage_is_missed_though_the_file_was_written_to_since(
    cluster: NodeCluster,
) -> None:
    _, segment, damaged = await acknowledged_and_killed(cluster)
    path = cluster.layout(damaged).segment(segment)
    flip_a_bit(path, 0.5)
    await cluster.start(damaged)
    end_offset = (await vote_of(cluster, segment, damaged)).end_offset
    await cluster.kill(damaged)
    shutil.rmtree(cluster.layout(damaged).checkpoints)
    with open(path, "r+b") as file:  # as a life leaves it that began to copy it again
        file.truncate(SEGMENT_HEADER_BYTES + whole_bytes(path, segment, end_offset))
    await cluster.start(damaged)
    vote = await vote_of(cluster, segment, damaged)
    assert (vote.end_offset, vote.is_tail_whole) == (end_offset, False)


@pytest.mark.fault("nodes-killed-bit-flips-file")
async def test_a_person_continues_with_a_damaged_copy_and_the_data_behind_the_damage_is_kept(
    cluster: NodeCluster,
) -> None:
    key, segment, damaged = await acknowledged_and_killed(cluster)
    path = cluster.layout(damaged).segment(segment)
    flip_a_bit(path, 0.5)
    await cluster.start(damaged)
    vote = await vote_of(cluster, segment, damaged)
    rest = path.read_bytes()[SEGMENT_HEADER_BYTES + whole_bytes(path, segment, vote.end_offset) :]
    await cluster.meta.service.perform(SealUnclean(segment))
    sealed = await cluster.is_sealed(key)
    assert sealed.end_offset == vote.end_offset
    assert sealed.handed.given_up == (GivenUp(vote.end_offset, len(RECORDS), GapReason.UNCLEAN),)
    assert await cluster.values(key) == RECORDS[: vote.end_offset]
    (kept,) = path.parent.glob("*.given-up")
    assert kept.read_bytes() == rest


@pytest.mark.fault("file-shard-replica-damaged")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
async def test_the_only_copy_is_not_cut_where_it_is_damaged_and_its_shard_names_what_cannot_be_read(
    cluster: NodeCluster, policy: str
) -> None:
    await cluster.start(1)
    key = await cluster.shard(1, flush_policy=policy)
    for record in RECORDS:
        await cluster.append(key, record)
    path = cluster.layout(1).segment(cluster.segments(key)[0].key)
    await cluster.kill(1)
    shutil.rmtree(cluster.layout(1).checkpoints)
    intact = path.read_bytes()
    flip_a_bit(path, 0.5)
    damaged = path.read_bytes()
    for _ in range(2):
        await cluster.start(1)
        shard = cluster.nodes[1].shards.get(key)
        assert shard is not None
        await eventually(lambda shard=shard: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
        assert shard.stop is not None and f"offsets 10 to {len(RECORDS)} were written and are lost" in shard.stop.reason
        await cluster.kill(1)
        shutil.rmtree(cluster.layout(1).checkpoints)
        assert path.read_bytes().rstrip(b"\0") == damaged.rstrip(b"\0")
    path.write_bytes(intact)
    await cluster.start(1)
    assert await cluster.values(key) == RECORDS


@pytest.mark.fault("without-object-store-uncleanseal")
async def test_with_unclean_seal_the_only_copy_gives_up_all_from_the_damage_on_and_keeps_its_bytes(
    cluster: NodeCluster,
) -> None:
    await cluster.start(1)
    key = await cluster.shard(1, uncleanSeal="allow")
    for record in RECORDS:
        await cluster.append(key, record)
    segment = cluster.segments(key)[0].key
    path = cluster.layout(1).segment(segment)
    await cluster.kill(1)
    shutil.rmtree(cluster.layout(1).checkpoints)
    flip_a_bit(path, 0.5)
    rest = path.read_bytes()[begin_of_batch(path, 10) :]
    await cluster.start(1)
    await eventually(lambda: cluster.nodes[1].local.context.stats.given_up_offsets == 10)
    await cluster.leads_again(key)
    assert await cluster.values(key) == [*RECORDS[:10], *[None] * 10]
    assert await cluster.append(key, b"later") == len(RECORDS)
    (kept,) = path.parent.glob("*.given-up")
    assert kept.read_bytes().rstrip(b"\0") == rest.rstrip(b"\0")


@pytest.mark.fault("file-shard-replica-damaged")
async def test_after_a_power_cut_the_only_copy_continues_where_its_whole_batches_end(cluster: NodeCluster) -> None:
    await cluster.start(1)
    key = await cluster.shard(1)
    for record in RECORDS:
        await cluster.append(key, record)
    path = cluster.layout(1).segment(cluster.segments(key)[0].key)
    await cluster.power_cut(1)
    flip_a_bit(path, 0.5)
    await cluster.start(1)
    assert await cluster.values(key) == RECORDS[:10], "pages reach the disk in any order"
    assert await cluster.append(key, b"later") == 10


@pytest.mark.fault("nodes-killed-three-files")
@pytest.mark.parametrize("is_stopped_in_order", [True, False], ids=["stopped", "killed"])
async def test_a_copy_that_ends_below_its_checkpoint_decides_nothing_in_any_later_life(
    cluster: NodeCluster, is_stopped_in_order: bool
) -> None:
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3, **SETTINGS)
    segment = cluster.segments(key)[0].key
    for record in RECORDS:
        await cluster.append(key, record)
    short = next(node_id for node_id in (3, 2) if node_id != cluster.leader(key))
    path = cluster.layout(short).segment(segment)
    await cluster.stop(short)  # with a checkpoint of all that there is
    for node_id in {1, 2, 3} - {short}:
        await cluster.kill(node_id)
        await cluster.lose(node_id)
    with open(path, "r+b") as file:  # a repair of the file system took the end away
        file.truncate(begin_of_batch(path, 10))
    for _ in range(3):
        await cluster.start(short)
        vote = await vote_of(cluster, segment, short)
        assert (vote.end_offset, vote.is_tail_whole) == (10, False)
        assert (await cluster.meta.service.segment(segment)).state is SegmentState.ACTIVE, "it waits for the others"
        await (cluster.stop(short) if is_stopped_in_order else cluster.kill(short))
    await cluster.start(1, 2, 3)
    assert await cluster.values(key) == RECORDS


@pytest.mark.fault("copy-member-isr-damaged")
async def test_the_damaged_copy_of_the_only_member_waits_for_replicas_that_are_away(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3, min_insync_replicas="1")
    for record in RECORDS:
        await cluster.append(key, record)
    leader, segment = cluster.leader(key), cluster.segments(key)[0].key
    others = [node_id for node_id in (1, 2, 3) if node_id != leader]
    for node_id in others:
        await cluster.kill(node_id)
        await cluster.lose(node_id)
    await eventually(lambda: cluster.segments(key, leader)[0].isr == (leader,))
    await cluster.kill(leader)
    await cluster.lose(leader)
    shutil.rmtree(cluster.layout(leader).checkpoints)
    flip_a_bit(cluster.layout(leader).segment(segment), 0.5)
    await cluster.start(leader)
    vote = await vote_of(cluster, segment, leader)
    assert (vote.end_offset, vote.is_tail_whole, vote.seen_offset) == (10, False, len(RECORDS))
    assert (await cluster.meta.service.segment(segment)).state is SegmentState.ACTIVE, "others may have all of it"
    await cluster.start(others[0])
    assert await cluster.values(key) == RECORDS

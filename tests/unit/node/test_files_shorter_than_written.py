"""After `kill -9` a file has less than was acknowledged, and nothing in the directory shows it: the node knows from
memory how far it wrote, and its copy decides nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import parse_header, scan_valid_prefix
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import SegmentState, Vote
from support.node_cluster import NodeCluster
from support.waiting import eventually

RECORDS = [b"record %d" % at for at in range(20)]
Harm = Callable[[Path], None]


def zero_the_last_batches(path: Path) -> None:
    data = path.read_bytes()
    size = len(data.rstrip(b"\0"))
    path.write_bytes(data[: size // 2 + size // 3] + bytes(len(data) - size // 2 - size // 3))
    end = len(whole_batches(path))
    path.write_bytes(path.read_bytes()[:end] + bytes(len(data) - end))


def cut_between_two_batches(path: Path) -> None:
    """As a file system has it that was set back."""
    zero_the_last_batches(path)
    path.write_bytes(path.read_bytes().rstrip(b"\0"))
    path.write_bytes(whole_batches(path))


def whole_batches(path: Path) -> bytes:
    data = path.read_bytes()
    first = parse_header(data[SEGMENT_HEADER_BYTES:])
    found = scan_valid_prefix(data[SEGMENT_HEADER_BYTES:], first.base_offset, first.epoch)
    return data[: SEGMENT_HEADER_BYTES + found.end_position]


HARMS = pytest.mark.parametrize(
    "harm", [zero_the_last_batches, cut_between_two_batches, Path.unlink], ids=["zeros", "set back", "removed"]
)


async def acknowledged_and_killed(cluster: NodeCluster, replicas: int, **settings: str) -> tuple[ShardKey, SegmentKey]:
    nodes = range(1, replicas + 1)
    await cluster.start(*nodes)
    key = await cluster.shard(replicas, **settings)
    for record in RECORDS:
        await cluster.append(key, record)
    for node_id in nodes[1:]:
        if node_id != cluster.leader(key):
            await eventually(lambda node_id=node_id: cluster.replica(node_id, key).end_offset == len(RECORDS))
    segment = cluster.segments(key)[0].key
    for node_id in nodes:
        await cluster.kill(node_id)
        shutil.rmtree(cluster.layout(node_id).checkpoints)
    for node_id in nodes:
        await cluster.lose(node_id)
    return key, segment


@pytest.mark.fault("nodes-killed-last-batches")
@HARMS
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
async def test_such_a_copy_that_comes_first_decides_nothing(cluster: NodeCluster, harm: Harm, policy: str) -> None:
    key, segment = await acknowledged_and_killed(cluster, 3, min_insync_replicas="2", flush_policy=policy)
    harm(cluster.layout(3).segment(segment))

    async def votes() -> list[Vote]:
        return list((await cluster.meta.service.segment(segment)).handed.votes)

    for _ in range(2):  # another start does not make it better
        await cluster.start(3)
        await eventually(votes)
        record = await cluster.meta.service.segment(segment)
        assert record.state is SegmentState.ACTIVE, f"it waits for the others: {record}"
        (vote,) = record.handed.votes
        assert vote.end_offset < len(RECORDS) and not vote.is_tail_whole and vote.seen_offset == len(RECORDS)
        await cluster.kill(3)
    await cluster.start(3, 1)
    assert await cluster.values(key) == RECORDS
    await cluster.start(2)
    sealed = await cluster.is_sealed(key, copies=3)
    assert sealed.end_offset == len(RECORDS) and not sealed.handed.given_up


@pytest.mark.fault("nodes-killed-last-batches")
@HARMS
async def test_the_only_copy_names_what_it_lacks_and_serves_again_once_it_is_there(
    cluster: NodeCluster, harm: Harm
) -> None:
    key, segment = await acknowledged_and_killed(cluster, 1)
    path = cluster.layout(1).segment(segment)
    intact = path.read_bytes()
    harm(path)
    for _ in range(2):
        await cluster.start(1)
        shard = cluster.nodes[1].shards.get(key)
        assert shard is not None
        await eventually(lambda shard=shard: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
        assert shard.stop is not None and f"to {len(RECORDS)} were written and are lost" in shard.stop.reason
        await cluster.kill(1)
        shutil.rmtree(cluster.layout(1).checkpoints)
    path.write_bytes(intact)
    await cluster.start(1)
    assert await cluster.values(key) == RECORDS
    assert await cluster.append(key, b"later") == len(RECORDS)


@pytest.mark.fault("nodes-killed-last-batches")
@HARMS
async def test_what_is_given_up_by_policy_is_not_missed_again(cluster: NodeCluster, harm: Harm) -> None:
    key, segment = await acknowledged_and_killed(cluster, 1, uncleanSeal="allow")
    harm(cluster.layout(1).segment(segment))
    await cluster.start(1)
    kept = await cluster.values(key)
    end = kept.index(None)
    assert kept == [*RECORDS[:end], *[None] * (len(RECORDS) - end)], "batches without records are in their place"
    await cluster.append(key, b"later")
    await cluster.kill(1)
    await cluster.start(1)
    assert await cluster.values(key) == [*kept, b"later"]


async def test_after_a_restart_of_the_machine_a_file_is_what_it_is(cluster: NodeCluster) -> None:
    key, segment = await acknowledged_and_killed(cluster, 1)
    await cluster.start(1)
    await cluster.power_cut(1, segment, len(RECORDS) // 2)
    await cluster.start(1)
    assert await cluster.values(key) == RECORDS[: len(RECORDS) // 2]

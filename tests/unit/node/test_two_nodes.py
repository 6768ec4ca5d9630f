"""Two storage nodes over one meta service: the one that leads a shard is followed by the other, from its start on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.commands.table_commands import BeginRecovery, CreateTopic, ProposeIsr
from stratalog.settings.process import ProcessSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode, wall_ms
from stratalog_node.replication.replica import Replica
from stratalog_node.shards.log.shard_log import ShardLog
from support.gated_meta import GatedMeta
from support.shard_rig import make_batch
from support.waiting import eventually


class Pair:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.meta = GatedMeta(MetaService(MemoryStore(), wall_ms))
        self.nodes: dict[int, StorageNode] = {}

    async def start(self, node_id: int) -> StorageNode:
        settings = ProcessSettings(node_id=node_id, offsets_topic_num_partitions=1, flush_interval_ms=60_000)
        meta: object = self.meta
        where = self.root / str(node_id)
        node = self.nodes[node_id] = StorageNode(settings, where, Listen("127.0.0.1", 0), meta, None)  # type: ignore[arg-type]
        await node.start()
        return node

    async def stop(self, node_id: int) -> None:
        await self.nodes.pop(node_id).close()

    async def shard(self, **settings: str) -> tuple[StorageNode, StorageNode, ShardLog]:
        """The leader, the follower, and the shard at the leader."""
        overrides = {name.replace("_", "."): value for name, value in settings.items()}
        await self.meta.service.perform(CreateTopic("flights", shard_count=1, replication_factor=2, settings=overrides))
        one, two = self.nodes[1], self.nodes[2]
        await eventually(lambda: one.shards.by_name("flights", 0) is not None)
        await eventually(lambda: two.shards.by_name("flights", 0) is not None)
        shards = [node.shards.by_name("flights", 0) for node in (one, two)]
        leading = 0 if shards[0] is not None and shards[0].is_leader else 1
        shard = shards[leading]
        assert shard is not None and shard.is_leader
        return (one, two, shard) if leading == 0 else (two, one, shard)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    await pair.meta.service.start()
    await pair.start(1)
    await pair.start(2)
    yield pair
    for node_id in list(pair.nodes):
        await pair.stop(node_id)
    await pair.meta.service.close()


async def append(shard: ShardLog, *values: bytes) -> int:
    async with asyncio.timeout(20):
        return await shard.append([make_batch(values)])


def replica_at(follower: StorageNode, shard: ShardLog, epoch: int = 0) -> Replica | None:
    name = (shard.key.topic_id, shard.key.shard, epoch)
    return follower.following.replicas.get(name)  # type: ignore[call-overload, no-any-return]  # a name is a tuple


def is_copied(follower: StorageNode, shard: ShardLog, epoch: int = 0) -> bool:
    replica, active = replica_at(follower, shard, epoch), shard.active
    if replica is None or active is None or replica.copy.end_offset != active.leader.end_offset:
        return False
    end = SEGMENT_HEADER_BYTES + active.size_bytes
    mine, theirs = replica.copy.file.path.read_bytes(), active.file.path.read_bytes()
    return mine[SEGMENT_HEADER_BYTES:end] == theirs[SEGMENT_HEADER_BYTES:end]


async def test_what_the_leader_acknowledges_lies_on_both_disks(pair: Pair) -> None:
    _, follower, shard = await pair.shard()
    for number in range(20):
        assert await append(shard, b"%d" % number) == number
    assert shard.high_watermark == 20
    assert is_copied(follower, shard)


@pytest.mark.fault("follower-stops-loses-tail")
async def test_a_follower_that_was_stopped_in_order_comes_back_and_catches_up(pair: Pair) -> None:
    _, follower, shard = await pair.shard()
    await append(shard, b"one")
    node_id = follower.settings.node_id
    await pair.stop(node_id)
    waiting = asyncio.create_task(append(shard, b"two"))
    await eventually(lambda: shard.end_offset == 2)
    follower = await pair.start(node_id)
    await eventually(lambda: is_copied(follower, shard))
    assert await waiting == 1


async def test_a_roll_is_followed_into_the_next_segment(pair: Pair) -> None:
    _, follower, shard = await pair.shard()
    await append(shard, b"one")
    shard.ask_roll(wall_ms())
    await eventually(lambda: shard.active is not None and shard.active.key.epoch == 1)  # once a successor is known
    assert await append(shard, b"two") == 1
    await eventually(lambda: is_copied(follower, shard, 1))


@pytest.mark.fault("uploader-sealed-segment-lead")
async def test_a_follower_knows_that_what_ended_is_committed_and_tells_its_uploader(pair: Pair) -> None:
    """A sealed segment may be its to upload while another leads: what is committed must be known there, too."""
    _, follower, shard = await pair.shard()
    followed = follower.shards.by_name("flights", 0)
    assert followed is not None
    told: list[int] = []
    follower.local.context.events.on_committed(lambda view: told.append(view.high_watermark))
    await append(shard, b"one")
    await append(shard, b"two")
    shard.ask_roll(wall_ms())
    await eventually(lambda: followed.high_watermark == 2 and not followed.is_leader)
    await eventually(lambda: told == [2])


@pytest.mark.fault("replica-isr-shard-quiet")
async def test_a_follower_joins_the_isr_without_any_write(pair: Pair) -> None:
    """A shard that is quiet since a node died would have one replica less until its next record."""
    leader, _, shard = await pair.shard()
    active = leader.catalog.active_segment(shard.key)
    assert active is not None and shard.active is None, "nobody has written to it"
    await pair.meta.service.perform(ProposeIsr(active.key, (leader.settings.node_id,), active.isr_version))

    def is_whole() -> bool:
        active = leader.catalog.active_segment(shard.key)
        return active is not None and active.isr_version > 1 and set(active.isr) == {1, 2}

    await eventually(is_whole, timeout=20)


@pytest.mark.fault("leader-several-replicas-restarted")
async def test_a_leader_that_was_restarted_leads_no_more_and_what_it_led_is_sealed_with_all_of_it(pair: Pair) -> None:
    leader, follower, shard = await pair.shard()
    for number in range(5):
        await append(shard, b"%d" % number)
    node_id = leader.settings.node_id
    await pair.stop(node_id)
    leader = await pair.start(node_id)

    def is_sealed() -> bool:
        segments = follower.catalog.segments(shard.key)
        return bool(segments) and segments[0].seal is not None and segments[0].seal.end_offset == 5

    await eventually(is_sealed)
    assert set(follower.catalog.segments(shard.key)[0].local_nodes) == {1, 2}
    await eventually(lambda: any(led(node, shard) is not None for node in (leader, follower)))
    (goes_on,) = [found for node in (leader, follower) if (found := led(node, shard)) is not None]
    assert await append(goes_on, b"later") == 5
    assert goes_on.high_watermark == 6
    assert [bytes(piece) for piece in await goes_on.read(0, 1 << 20)]


def led(node: StorageNode, shard: ShardLog) -> ShardLog | None:
    found = node.shards.get(shard.key)
    return found if found is not None and found.is_leader else None


@pytest.mark.fault("leader-several-replicas-restarted")
async def test_a_leader_that_is_deposed_while_it_runs_follows_and_its_copy_is_proven(pair: Pair) -> None:
    leader, follower, shard = await pair.shard()
    for number in range(5):
        await append(shard, b"%d" % number)
    assert shard.active is not None
    key = shard.active.key
    await pair.meta.service.perform(BeginRecovery(key))

    def is_sealed() -> bool:
        segment = follower.catalog.segment(key)
        return segment is not None and segment.seal is not None and set(segment.local_nodes) == {1, 2}

    await eventually(is_sealed)
    await eventually(lambda: any(led(node, shard) is not None for node in (leader, follower)))
    (goes_on,) = [found for node in (leader, follower) if (found := led(node, shard)) is not None]
    assert await append(goes_on, b"later") == 5

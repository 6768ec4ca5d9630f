"""Tables of producers between nodes: replicas make the same one, and who lacks it has it from another, or waits."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.segments.index_block import decode_index_block
from stratalog.formats.segments.producers import decode_table, most_table_bytes
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog_node.serve.replicas import sealed_read
from stratalog_node.shards.copies.producer_tables import ProducerTables
from stratalog_node.shards.seal.sealing import Sealing
from support.node_cluster import NodeCluster
from support.shard_rig import make_batch
from support.waiting import eventually

pytestmark = pytest.mark.fault("index-block-table-producers")


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as nodes:
        yield nodes


def producer(number: int = 7, sequence: int = 0) -> dict[str, Any]:
    return {"producer_id": number, "producer_epoch": 0, "base_sequence": sequence}


def block_of(cluster: NodeCluster, node_id: int, segment: Segment) -> bytes:
    """The table in a node's index block; empty where it has none, or no block."""
    path = cluster.layout(node_id).index(segment.key)
    return decode_index_block(path.read_bytes(), source=str(path)).table if path.exists() else b""


def forget_table(cluster: NodeCluster, node_id: int, segment: Segment) -> None:
    """Behind the node's back: the copy, its index block, and what it remembers of them."""
    layout = cluster.layout(node_id)
    layout.index(segment.key).unlink(missing_ok=True)
    layout.segment(segment.key).unlink()
    cluster.nodes[node_id].local.context.tables._held.clear()


async def sealed(cluster: NodeCluster, *, producers: int = 1, **settings: Any) -> tuple[ShardKey, Segment]:
    """Two copies of a segment in which each producer wrote the batch whose offset is its number."""
    await cluster.start(1, 2, **settings)
    key = await cluster.shard(2)
    shard = await cluster.leads_again(key)
    await shard.append([make_batch([b"x"], **producer(number)) for number in range(producers)])
    shard.ask_roll(0)
    return key, await cluster.is_sealed(key, copies=2)


async def test_both_replicas_have_the_table_of_the_seal_in_their_blocks(cluster: NodeCluster) -> None:
    key, first = await sealed(cluster, producers=3)
    (await cluster.leads_again(key)).ask_roll(0)
    await cluster.append(key, b"y", **producer(8))
    (await cluster.leads_again(key)).ask_roll(0)
    second = await cluster.is_sealed(key, 1, copies=2)
    for segment, known in ((first, [0, 1, 2]), (second, [0, 1, 2, 8])):
        assert segment.seal is not None
        await eventually(lambda segment=segment: all(block_of(cluster, node, segment) for node in (1, 2)))  # type: ignore[misc]
        tables = {block_of(cluster, node, segment) for node in (1, 2)}
        assert len(tables) == 1
        assert [one.producer_id for one in decode_table(tables.pop(), source="block")] == known


async def test_replicas_with_other_limits_still_have_the_table_of_the_seal(cluster: NodeCluster) -> None:
    """The seal names the rule, and who cannot make the table by it has it from the other."""
    await cluster.start(1, producer_id_max_per_shard=20)
    await cluster.start(2, producer_id_max_per_shard=10)
    key = await cluster.shard(2)
    shard = await cluster.leads_again(key)
    await shard.append([make_batch([b"x"], **producer(number)) for number in range(15)])
    shard.ask_roll(0)
    segment = await cluster.is_sealed(key, copies=2)
    await eventually(lambda: block_of(cluster, 1, segment) == block_of(cluster, 2, segment) != b"")


async def test_a_table_that_the_leader_alone_can_make_lies_with_the_others_in_the_end(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was before is deleted. The others hear of the seal before the leader can answer them."""
    key, _ = await sealed(cluster)
    shard = await cluster.leads_again(key)
    await cluster.append(key, b"y", **producer(8))
    await cluster.meta.service.perform(AdvanceLogStart(key, 1))
    await eventually(lambda: cluster.segments(key)[0].epoch == 1)
    told, make_seal, find_copy, refused = threading.Event(), Sealing._make_seal, sealed_read.proven_copy, 0

    def last(self: Sealing, old: Any, before: Any) -> Any:
        told.wait(10)
        return make_seal(self, old, before)

    def busy(shard: Any, segment: Segment) -> Any:
        nonlocal refused
        refused += 1
        return find_copy(shard, segment) if refused > 2 else None

    monkeypatch.setattr(Sealing, "_make_seal", last)
    monkeypatch.setattr(sealed_read, "proven_copy", busy)
    shard.ask_roll(0)
    await eventually(lambda: cluster.segments(key)[0].handed.reports)
    told.set()
    second = await cluster.is_sealed(key, 1, copies=2)
    assert second.seal is not None and second.seal.producers.count == 2, "as the leader told it"
    await eventually(lambda: block_of(cluster, 1, second) == block_of(cluster, 2, second) != b"")


async def test_a_new_leader_without_the_table_has_it_from_a_node_that_has(cluster: NodeCluster) -> None:
    """Until then it refuses what it can, and counts no producer as new."""
    key, segment = await sealed(cluster)
    old = cluster.leader(key)
    (other,) = {1, 2} - {old}
    await eventually(lambda: block_of(cluster, other, segment))
    await cluster.kill(old)
    forget_table(cluster, other, segment)
    await cluster.lose(old)
    await eventually(lambda: cluster.led(key) is not None)
    with pytest.raises(Unavailable, match="what producers wrote before is not known"):
        await (await cluster.leads_again(key)).append([make_batch([b"x"], **producer(0))])
    await cluster.start(old)
    assert await cluster.append(key, b"x", **producer(0)) == 0, "a repetition, and known as one"
    stats = cluster.nodes[other].peer_reads.stats
    assert stats.tables >= 1


async def test_twenty_thousand_producers_outlive_the_loss_of_their_leader(cluster: NodeCluster) -> None:
    many = 20_000
    key, segment = await sealed(cluster, producers=many, producer_id_max_per_shard=many)
    assert segment.seal is not None and segment.seal.producers.count == many
    leader = cluster.leader(key)
    await cluster.kill(leader)
    await cluster.lose(leader)
    for number in (0, many - 1):
        assert await cluster.append(key, b"x", **producer(number)) == number


async def test_a_node_that_gives_more_than_a_table_can_have_is_not_read_on(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, segment = await sealed(cluster)
    assert segment.seal is not None
    most_bytes = most_table_bytes(segment.seal.producers)

    async def too_much(self: ProducerTables, segment: Segment) -> bytes:
        return bytes(most_bytes + 1)

    monkeypatch.setattr(ProducerTables, "here", too_much)
    peers = cluster.nodes[2].local.context.tables._peers
    assert peers is not None

    async def is_refused() -> bool:
        with pytest.raises(Unavailable) as refused:
            await peers.producer_table(segment, (1,))  # it may not know yet that its copy is sealed
        return f"gives {most_bytes + 1} bytes" in str(refused.value)

    await eventually(is_refused)

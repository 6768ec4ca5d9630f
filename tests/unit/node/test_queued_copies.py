"""Copies of sealed segments that cannot be made now, or that other nodes finish, do not block other copies."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.commands.table_commands import ReportLostCopies, ReportReplica
from stratalog.model.errors import DiskFull, Unavailable
from stratalog_node.node import wall_ms
from stratalog_node.replication import following, replica
from stratalog_node.replication.copy_queue import CopyQueue
from stratalog_node.replication.replica_copy import ReplicaCopy
from stratalog_node.shards.log.disk_usage import usage_of
from support.node_cluster import NodeCluster
from support.waiting import eventually
from unit.node.test_copy_repair_of_nodes import holders, is_copy_of_shard, repair, rolled


@pytest.mark.fault("meta-service-seals-segment")
async def test_a_copy_that_is_sealed_while_a_start_reads_it_is_served_and_uploaded_as_any_other(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await cluster.append(key, b"one")
    leader = cluster.leader(key)
    other = 3 - leader
    meta: Any = cluster.nodes[leader].meta
    perform = meta.perform

    async def mute(command: Any, **options: Any) -> Any:
        if isinstance(command, ReportReplica):
            raise Unavailable("not now")
        return await perform(command, **options)

    meta.perform = mute
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    segment = cluster.segments(key)[0].key
    await eventually(lambda: any(one.node_id == other for one in cluster.segments(key, leader)[0].handed.reports))
    await cluster.kill(other)
    is_opening, gate = threading.Event(), threading.Event()
    real = ReplicaCopy.open_found

    def slow(copy: ReplicaCopy, checkpoint: Any = None) -> bool:
        if copy.key == segment:
            is_opening.set()
            assert gate.wait(30)
        return real(copy, checkpoint)

    monkeypatch.setattr(ReplicaCopy, "open_found", slow)
    await cluster.start(other)
    await eventually(is_opening.is_set)
    meta.perform = perform
    await eventually(lambda: holders(cluster, key, at=other) == (1, 2))
    gate.set()
    await eventually(lambda: is_copy_of_shard(cluster, other, segment))
    assert not any(one.copy.key == segment for one in cluster.nodes[other].following.replicas.values())


@pytest.mark.fault("node-copies-sources-unavailable")
async def test_copies_without_a_source_do_not_block_other_copies(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CopyQueue", lambda: CopyQueue(1, patience_ms=20))
    await cluster.start(1, 2)
    first = await cluster.shard(replicas=2)
    await rolled(cluster, first, b"one")
    await cluster.start(3)
    await cluster.lose(1)
    second = await cluster.shard(2, "others")
    await rolled(cluster, second, b"two")
    assert holders(cluster, second, at=2) == (2, 3)
    await cluster.kill(1)
    lost = tuple(cluster.segments(key, 2)[0].key for key in (first, second))
    await cluster.stop(2)
    for segment in lost:
        cluster.layout(2).segment(segment).unlink()
    await cluster.start(2)
    due = cluster.nodes[2].following.stats
    await cluster.nodes[2].meta.perform(ReportLostCopies(lost[:1]))
    await eventually(lambda: due.copies_due == 1)
    await cluster.nodes[2].meta.perform(ReportLostCopies(lost[1:]))
    await eventually(lambda: is_copy_of_shard(cluster, 2, lost[1]))


@pytest.mark.fault("room-file-descriptor-node")
async def test_a_copy_whose_proof_finds_no_room_is_proven_once_there_is_some(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "_PROVE_AGAIN_S", 0.02)
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await cluster.append(key, b"one")
    real = ReplicaCopy.flush_and_prove
    refused: list[object] = []

    def full(copy: ReplicaCopy) -> object:
        if len(refused) < 3:
            refused.append(copy)
            raise DiskFull("no room for an index block")
        return real(copy)

    monkeypatch.setattr(ReplicaCopy, "flush_and_prove", full)
    (await cluster.leads_again(key)).ask_roll(wall_ms())
    await cluster.is_sealed(key, copies=2)
    assert refused and not any(node.following.faulty() for node in cluster.nodes.values())


@pytest.mark.fault("data-directory-failed-first-small")
async def test_copies_are_made_again_only_in_room_that_new_data_do_not_need(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(replicas=2)
    await rolled(cluster, key, b"one")
    segment = cluster.segments(key)[0].key
    free_bytes = usage_of(tmp_path).usable_bytes
    await cluster.start(3, disk_reserve_bytes=free_bytes * 7 // 10)  # it takes new data, and has no room for much else
    space = cluster.nodes[3].local.space
    space.poll()
    await cluster.lose(2)
    await repair(cluster, away=(2,))
    await eventually(lambda: cluster.nodes[3].following.stats.copies_due == 1)
    cluster.nodes[3].following.release_stuck_copies()
    assert not cluster.nodes[3].following._line.under_way and not cluster.layout(3).segment(segment).exists()
    space._reserve_bytes = 0
    space.poll()
    await eventually(lambda: is_copy_of_shard(cluster, 3, segment))

"""A fault in the program, in one thing that a replica does, ends neither its work nor what waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog_node.disk.fences import FenceBook
from stratalog_node.replication import replica
from stratalog_node.replication.following import Following
from stratalog_node.replication.replica_copy import ReplicaCopy
from support.node_cluster import NodeCluster


@pytest.mark.fault("fault-program-replica-flushes")
@pytest.mark.parametrize(
    ("where", "what"),
    [
        (ReplicaCopy, "flush_and_prove"),
        (ReplicaCopy, "flush"),
        (FenceBook, "promise"),
        (Following, "producers_at_end"),
        (Following, "submit"),
    ],
    ids=["proof", "flush", "promise", "producers", "report"],
)
async def test_a_fault_in_what_a_replica_does_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type, what: str
) -> None:
    monkeypatch.setattr(replica, "_PROVE_AGAIN_S", 0.01)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, 3)
        key = await cluster.shard(3, min_insync_replicas="2", flush_policy="fsync")
        await cluster.append(key, b"one")
        real, faults = getattr(where, what), 0

        def faulty(self: Any, *arguments: Any) -> Any:
            nonlocal faults
            if faults < 2:
                faults += 1
                raise AssertionError("a fault in the program")
            return real(self, *arguments)

        monkeypatch.setattr(where, what, faulty)
        leader = cluster.leader(key)
        await cluster.kill(leader)
        await cluster.lose(leader)
        await cluster.is_sealed(key, copies=2)
        assert faults == 2
        assert await cluster.values(key) == [b"one"]

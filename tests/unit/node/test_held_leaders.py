"""What a node confirms of a cut is what it led when it was held, and leads without a break since."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from stratalog.admin_api.cuts import CutRequest, HoldRequest
from stratalog.model.commands.table_commands import BeginRecovery
from stratalog_node.admin.cuts import CutAdmin
from support.node_cluster import NodeCluster
from support.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1)
        yield cluster


def cuts_of(cluster: NodeCluster, node_id: int = 1) -> CutAdmin:
    node = cluster.nodes[node_id]
    services: Any = SimpleNamespace(
        node_id=node_id,
        cluster_id=node.cluster_id,
        turn=node.turn,
        shards=node.shards,
        catalog=node.catalog,
        meta=node.meta,
    )
    return CutAdmin(services)


async def test_a_cut_is_void_where_a_shard_was_taken_from_its_leader_though_that_leads_again(
    cluster: NodeCluster,
) -> None:
    await cluster.start(2)
    key = await cluster.shard(2)
    await cluster.append(key, b"0")
    (follower,) = {1, 2} - {cluster.leader(key)}
    await cluster.kill(follower)
    await cluster.lose(follower)
    cuts, request = cuts_of(cluster, 3 - follower), CutRequest(cut_id=uuid4())
    held = await cuts.hold(HoldRequest(cut_id=request.cut_id))
    assert [(one.epoch, one.end_offset) for one in held.shards] == [(0, 1)]
    assert cuts.release(request).was_held
    assert (await cuts.confirm(request)).fault is None
    await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[0].key))
    await eventually(lambda: cluster.segments(key)[-1].epoch == 1)
    assert await cluster.append(key, b"1") == 1
    fault = (await cuts.confirm(request)).fault
    assert fault is not None and "does not lead shard 0" in fault


async def test_a_cut_holds_over_a_roll(cluster: NodeCluster) -> None:
    key = await cluster.shard(1)
    await cluster.append(key, b"0")
    cuts, request = cuts_of(cluster), CutRequest(cut_id=uuid4())
    await cuts.hold(HoldRequest(cut_id=request.cut_id))
    cuts.release(request)
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)
    await cluster.is_sealed(key)
    assert (await cuts.confirm(request)).fault is None

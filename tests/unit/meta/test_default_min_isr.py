"""The process's `min.insync.replicas` holds in the shard table, also once a store that failed is loaded again."""

from __future__ import annotations

import pytest

from stratalog.model.commands.table_commands import CreateTopic, NoteLives, RegisterNode
from stratalog.model.errors import StratalogError
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog_meta import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.failing_meta_store import FailingStore
from support.meta_worlds import HandClock
from support.waiting import eventually


@pytest.mark.fault("disk-progress-node-replica")
@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_a_leader_with_a_stuck_disk_stays_where_too_few_others_work_for_the_default(
    monkeypatch: pytest.MonkeyPatch, is_reloaded: bool
) -> None:
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.0)
    store = FailingStore(MemoryStore())
    service = MetaService(store, HandClock(), lease_ms=600_000, min_in_sync=2)
    await service.start()
    try:
        lives = {}
        for node_id in (1, 2, 3):
            told = await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
            lives[node_id] = Life(node_id, told.node_epoch)
        topic = await service.perform(CreateTopic("orders", 1, 3, {}))
        key = ShardKey(topic.topic_id, 0)
        leader = (await service.shard(key)).segments[-1].leader
        assert leader is not None
        if is_reloaded:
            store.is_full = True
            with pytest.raises(StratalogError):
                await service.perform(CreateTopic("lost", 1, 1, {}))
            store.is_full = False
            await eventually(lambda: service.why_no_changes is None)
        other = next(node_id for node_id in lives if node_id != leader)
        await service.perform(NoteLives(stuck=(lives[other],)))
        await service.perform(NoteLives(stuck=(lives[leader],)))
        assert (await service.shard(key)).segments[-1].leader == leader, "one replica alone takes no batch"
    finally:
        await service.close()

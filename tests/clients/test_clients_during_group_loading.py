"""Real clients whose group's log is read again while they are members: they stay members, with what they own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.groups.group import GroupError
from stratalog.settings.process import ProcessSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode, wall_ms
from stratalog_node.shards.log.shard_log import ShardLog
from support.group_members import ConfluentMember
from support.waiting import eventually

SETTINGS = ProcessSettings(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)
PATIENCE_S = 30


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[StorageNode]:
    meta = MetaService(MemoryStore(), wall_ms)
    await meta.start()
    node = StorageNode(SETTINGS, tmp_path / "node", Listen("127.0.0.1", 0), meta, None)
    await node.start()
    await meta.perform(CreateTopic("flights", shard_count=2, replication_factor=1, settings={}))
    await eventually(lambda: node.shards.by_name("flights", 1) is not None)
    yield node
    await node.close()
    await meta.close()


class SlowReads:
    """Reads of the group log wait until `end`; heartbeats that come meanwhile are counted."""

    def __init__(self, node: StorageNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self._node = node
        self._gate = asyncio.Event()
        self.heartbeats: list[GroupError] = []
        read, heartbeat = ShardLog.read, node.groups.heartbeat

        async def slow_read(shard: ShardLog, offset: int, max_bytes: int) -> Any:
            await self._gate.wait()
            return await read(shard, offset, max_bytes)

        async def watched_heartbeat(*args: Any) -> GroupError:
            error = await heartbeat(*args)
            if node.groups._hosting.is_loading:
                self.heartbeats.append(error)
            return error

        monkeypatch.setattr(ShardLog, "read", slow_read)
        monkeypatch.setattr(node.groups, "heartbeat", watched_heartbeat)

    async def load_anew(self) -> None:
        """As a start or a failover: nothing is known of any group until its log has been read."""
        self._node.groups.unload(0)
        self._node.groups.adopt()
        await eventually(lambda: len(self.heartbeats) >= 3, PATIENCE_S)
        self._gate.set()
        await self._node.groups.load(0)


@pytest.mark.fault("group-log-read-start")
async def test_aiokafka_stays_a_member(node: StorageNode, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = AIOKafkaConsumer(
        "flights", bootstrap_servers=f"127.0.0.1:{node.address[1]}", group_id="g", heartbeat_interval_ms=200,
        session_timeout_ms=6_000, enable_auto_commit=False,
    )  # fmt: skip
    await consumer.start()
    await eventually(lambda: len(consumer.assignment()) == 2, PATIENCE_S)
    before = (await node.groups.describe("g")).status
    await SlowReads(node, monkeypatch).load_anew()
    beats = node.groups.stats.rebalances
    await consumer.commit(dict.fromkeys(consumer.assignment(), 5))
    after = (await node.groups.describe("g")).status
    assert (after.generation, after.members[0].member_id) == (before.generation, before.members[0].member_id)
    assert node.groups.stats.rebalances == beats and len(consumer.assignment()) == 2
    await consumer.stop()


@pytest.mark.fault("group-log-read-start")
async def test_librdkafka_keeps_what_it_owns(node: StorageNode, monkeypatch: pytest.MonkeyPatch) -> None:
    member = ConfluentMember(f"127.0.0.1:{node.address[1]}", "g", ["flights"])
    await eventually(lambda: member.owned == {0, 1}, PATIENCE_S)
    before = (await node.groups.describe("g")).status
    await SlowReads(node, monkeypatch).load_anew()
    after = (await node.groups.describe("g")).status
    assert (after.generation, after.members[0].member_id) == (before.generation, before.members[0].member_id)
    assert member.lost == [] and member.owned == {0, 1}
    await asyncio.to_thread(member.leave)

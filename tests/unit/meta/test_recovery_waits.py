"""The meta service decides a recovery without a replica whose node is alive and does not promise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stratalog.model.commands.table_commands import BeginRecovery, CreateTopic, PromiseFence, RegisterNode
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog.model.segment import SegmentState
from stratalog_meta import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.waiting import eventually

PATIENCE_MS = 100
"""Of the hand-moved clock; the service looks at it every 10 ms of real time."""


@dataclass
class Monotonic:
    now_ms: int = 5_000

    def __call__(self) -> int:
        return self.now_ms


async def fenced_segment(service: MetaService) -> tuple[SegmentKey, list[Life]]:
    """On three nodes, in recovery, and promised by node 2."""
    lives = []
    for node_id in (1, 2, 3):
        registered = await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
        lives.append(Life(node_id, registered.node_epoch))
    topic = await service.perform(CreateTopic("orders", 1, 3, {}))
    key = SegmentKey(topic.topic_id, 0, 0, 0)
    fence = (await service.perform(BeginRecovery(key))).fence
    await service.perform(PromiseFence(key, fence, 12, 12, is_tail_whole=True, caller=lives[1]))
    return key, lives


@pytest.mark.fault("replica-node-alive-disk")
async def test_a_recovery_ends_without_nodes_that_only_send_heartbeats() -> None:
    clock = Monotonic()
    service = MetaService(MemoryStore(), lambda: 0, lease_ms=3_600_000, monotonic_ms=clock, patience_ms=PATIENCE_MS)
    await service.start()
    try:
        key, lives = await fenced_segment(service)
        assert (await service.segment(key)).state is SegmentState.ACTIVE

        async def has_ended() -> bool:
            clock.now_ms += 5
            for life in lives:
                await service.heartbeat(Heartbeat(life))
            return (await service.segment(key)).state is SegmentState.SEALING

        await eventually(has_ended)
        segment = await service.segment(key)
        assert (segment.end_offset, segment.handed.source, segment.isr) == (12, 2, (2,))
        assert service.life_stats.silent_replicas == 2
    finally:
        await service.close()


async def test_while_promises_cannot_arrive_no_replica_is_left_out() -> None:
    clock = Monotonic()
    is_asked = False
    service = MetaService(MemoryStore(), lambda: 0, lease_ms=3_600_000, monotonic_ms=clock, patience_ms=PATIENCE_MS)
    await service.start(lambda: is_asked)
    try:
        key, _ = await fenced_segment(service)
        looks = 0

        async def is_late() -> bool:
            nonlocal looks
            clock.now_ms += 5
            looks += 1
            return looks > 10 * PATIENCE_MS // 5

        await eventually(is_late)
        assert (await service.segment(key)).state is SegmentState.ACTIVE
    finally:
        await service.close()

"""A mount that is to last for a time ends by itself once that is over, and no other does."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from stratalog.model.commands.mount_commands import CreateMount
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode, RollSegment, SealSegment
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import NodeInfo
from stratalog_meta.mount_expiry import MountExpiry
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import seal_record
from support.waiting import eventually


async def with_two_mounts(service: MetaService) -> None:
    """One of them lasts for 500 ms."""
    await service.perform(RegisterNode(NodeInfo(1, "storage", "host", 9092)))
    topic = await service.perform(CreateTopic("orders", 1, 1))
    active = (await service.shard(ShardKey(topic.topic_id, 0))).segments[-1]
    await service.perform(RollSegment(active.key, 10))
    record = seal_record(await service.segment(active.key), 10)
    await service.perform(SealSegment(active.key, record))
    when = record.first_timestamp_ms, record.max_timestamp_ms + 1
    await service.perform(CreateMount("for-ever", ("orders",), *when))
    await service.perform(CreateMount("a-while", ("orders",), *when, lasts_ms=500))


@pytest.mark.fault("mount-ends-clients-read")
async def test_a_mount_ends_when_its_time_is_over() -> None:
    now_ms = 1_000
    service = MetaService(MemoryStore(), lambda: now_ms)
    await service.start()
    await with_two_mounts(service)
    expiry = MountExpiry(lambda: now_ms, service._parts()[0])
    now_ms = 1_499
    await expiry.end_expired()
    assert {mount.name for mount in (await service.snapshot()).mounts} == {"for-ever", "a-while"}
    now_ms = 1_500
    await expiry.end_expired()
    assert {mount.name for mount in (await service.snapshot()).mounts} == {"for-ever"}
    await service.close()


@pytest.mark.fault("mount-ends-clients-read")
async def test_the_service_itself_ends_it_in_each_of_its_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no request: neither in the service that made the mount nor in the next one over its store."""
    monkeypatch.setattr("stratalog_meta.mount_expiry._LONGEST_PAUSE_S", 0.01)
    now_ms, store = 1_000, MemoryStore()

    async def names(service: MetaService) -> set[str]:
        return {mount.name for mount in (await service.snapshot()).mounts}

    first = MetaService(store, lambda: now_ms)
    await first.start()
    await with_two_mounts(first)
    assert await names(first) == {"for-ever", "a-while"}
    now_ms = 1_500
    await eventually(lambda: _is(names(first), {"for-ever"}))
    await first.perform(CreateMount("once-more", ("orders",), 0, 2**62, lasts_ms=500))
    await first.close()
    second = MetaService(store, lambda: now_ms)
    await second.start()
    assert await names(second) == {"for-ever", "once-more"}
    now_ms = 2_000
    await eventually(lambda: _is(names(second), {"for-ever"}))
    await second.close()


async def _is(found: Awaitable[set[str]], wanted: set[str]) -> bool:
    return await found == wanted

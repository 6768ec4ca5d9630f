"""What a part of the meta service reads, and keeps, is never older than the changes that it was given meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.table_commands import BeginRecovery, CreateTopic, PromiseFence, RegisterNode
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog.model.retirement import RetireMode
from stratalog_meta import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.failing_meta_store import FailingStore
from support.meta_worlds import HandClock
from support.waiting import eventually

pytestmark = pytest.mark.fault("read-overtaken-by-write")


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(MemoryStore())


@pytest.fixture
async def service(store: FailingStore) -> AsyncIterator[MetaService]:
    service = MetaService(store, HandClock(), lease_ms=3_600_000, monotonic_ms=HandClock(), patience_ms=3_600_000)
    await service.start()
    for node_id in (1, 2, 3):
        await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
    yield service
    store.let_go()
    await service.close()


async def with_a_change_behind(
    service: MetaService, store: FailingStore, reading: Coroutine[Any, Any, None], change: Coroutine[Any, Any, Any]
) -> None:
    """Both in one turn of the writer, the read first."""
    store.hold()
    before = store.writes
    holding = asyncio.ensure_future(service.perform(CreateTopic("held", 1, 1, {})))
    await eventually(lambda: store.writes == before + 1)
    asked = [asyncio.ensure_future(reading)]
    await asyncio.sleep(0)
    asked.append(asyncio.ensure_future(change))
    await asyncio.sleep(0)
    store.let_go()
    await asyncio.gather(holding, *asked)


async def test_a_reader_knows_what_was_published_before_it_continues(service: MetaService, store: FailingStore) -> None:
    writer, history, _ = service._parts()
    seen: list[tuple[int, int]] = []

    async def reading() -> None:
        seen.append((await writer.read(lambda table: table.version), history.version))

    async def changes() -> None:
        await asyncio.gather(*(service.perform(CreateTopic(f"topic-{number}", 1, 1, {})) for number in range(3)))

    await with_a_change_behind(service, store, reading(), changes())
    ((read, published),) = seen
    assert read == published


async def test_a_node_that_registers_while_the_leases_are_read_again_is_not_refused(
    service: MetaService, store: FailingStore
) -> None:
    lives = service._lives
    assert lives is not None
    lives.reread()
    registering = service._parts()[0].submit(RegisterNode(NodeInfo(1, "disk-1", "host", 9092)))
    await with_a_change_behind(service, store, lives._check_leases(), registering)
    (node,) = [node for node in (await service.snapshot()).nodes if node.node_id == 1]
    await service.heartbeat(Heartbeat(node.life))


async def test_a_promise_given_while_recoveries_are_read_again_is_not_forgotten(
    service: MetaService, store: FailingStore
) -> None:
    lives = {node.node_id: node.life for node in (await service.snapshot()).nodes}
    topic = await service.perform(CreateTopic("orders", 1, 3, {}))
    key = SegmentKey(topic.topic_id, 0, 0, 0)
    fence = (await service.perform(BeginRecovery(key))).fence
    waits = service._waits
    assert waits is not None
    waits.reread()
    promising = service.perform(PromiseFence(key, fence, 12, 12, is_tail_whole=True, caller=lives[2]))
    await with_a_change_behind(service, store, waits._check_waits(), promising)
    (wait,) = waits._patience._waits.values()
    assert [Life(vote.node_id, vote.life) for vote in wait.segment.handed.votes] == [lives[2]]


async def test_a_node_retired_while_retirements_are_looked_through_begins_to_leave(
    service: MetaService, store: FailingStore
) -> None:
    retirements = service._retirements
    assert retirements is not None
    retirements.reread()
    retiring = service.perform(RetireNode(1, RetireMode.OFFLOAD))
    await with_a_change_behind(service, store, retirements.run_pass(), retiring)
    assert retirements._is_any


@pytest.mark.parametrize("part", ["_lives", "_waits", "_repairs"])
async def test_a_part_whose_read_failed_reads_again(
    service: MetaService, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    keeper: Any = getattr(service, part)
    checks = {"_lives": "_check_leases", "_waits": "_check_waits", "_repairs": "_repair_once"}
    check = getattr(keeper, checks[part])
    writer, _, _ = service._parts()
    real, reads = writer.read, []

    async def read(work: Any) -> Any:
        reads.append(work)
        if len(reads) == 1:
            raise Unavailable("the store hangs")
        return await real(work)

    keeper.reread()
    monkeypatch.setattr(writer, "read", read)
    with pytest.raises(Unavailable):
        await check()
    noted: list[int] = []
    if part == "_repairs":
        presence = keeper._presence
        monkeypatch.setattr(type(presence), "node_changed", lambda self, node, now_ms: noted.append(node.node_id))
        keeper._is_due = True  # as the loop around it does
    await check()
    assert len(reads) == 2, "what was not read is still to be read"
    assert part != "_repairs" or noted == [1, 2, 3]
    await check()
    assert len(reads) == 2

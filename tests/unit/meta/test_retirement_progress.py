"""The progress of a retirement: its rate, the time left, the lack of progress, and what nodes say of their object
store. The test moves the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stratalog.machines.plans.retirement import STALL_MS
from stratalog.model.commands.retirement_commands import ReportSighting, RetireNode
from stratalog.model.commands.table_commands import (
    AcquireLock,
    CommitParts,
    CompleteRemote,
    CreateTopic,
    PrepareSegment,
    RegisterNode,
    RollSegment,
    SealSegment,
)
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Heartbeat, Life, NodeInfo, PartCommit, Vitals
from stratalog.model.retirement import RetireMode, RetireStep, WaitReason
from stratalog.model.segment import RemotePart
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog_meta.retirements import Retirements
from stratalog_meta.service import MetaService
from stratalog_meta.stats import RetirementStats
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock, seal_record

MIB = 1 << 20
GIB = 1 << 30
RECORDS = 100
INTERVAL_MS = 1_000


@dataclass
class Leaving:
    """Node 1 leaves; four sealed segments of 100 MiB each lie there alone."""

    clock: HandClock = field(default_factory=HandClock)
    store_away_ms: int = 0
    sealed: list[SegmentKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.service = MetaService(MemoryStore(), self.clock)

    async def begin(self) -> None:
        await self.service.start()
        self.retirements = Retirements(
            self.service._parts()[0],
            self.clock,
            self.clock,
            lambda: {2: Vitals(50 * GIB, 100 * GIB, True, self.store_away_ms)},
            RetirementStats(),
            verify_interval_ms=INTERVAL_MS,
        )
        await self.service.perform(RegisterNode(NodeInfo(1, "disk-1", "host", 9_001)))
        for number in range(4):
            topic = await self.service.perform(
                CreateTopic(f"flights-{number}", 1, 1, {"remote.storage.enable": "true"})
            )
            key = (await self.service.shard(ShardKey(topic.topic_id, 0))).segments[-1].key
            self.sealed.append(key)
        self.life = Life(2, (await self.service.perform(RegisterNode(NodeInfo(2, "disk-2", "host", 9_002)))).node_epoch)
        await self.service.perform(RetireNode(1, RetireMode.OFFLOAD))
        await self.run_passes(2)
        self.clock.now_ms += 20_000
        await self.run_passes()
        for key in self.sealed:  # before nothing was sealed, and no byte counted
            await self.service.perform(PrepareSegment(key))
            await self.service.perform(RollSegment(key, RECORDS))
            record = replace(seal_record(key, RECORDS), size_bytes=100 * MIB)
            await self.service.perform(SealSegment(key, record))
        self.lock = await self.service.perform(AcquireLock("tier/1", "node-1/1/aa", 600_000))
        await self.run_passes(3)

    async def run_passes(self, count: int = 1) -> RetirementStatus:
        for _ in range(count):
            await self.retirements.run_pass()
        return await self.status()

    async def status(self) -> RetirementStatus:
        node = next(node for node in (await self.service.snapshot()).nodes if node.node_id == 1)
        return self.retirements.status(node)

    async def after(self, ms: int) -> RetirementStatus:
        self.clock.now_ms += ms
        return await self.run_passes(2)  # what it notes the first time the second one rests on

    async def upload(self, number: int, records: int = RECORDS) -> None:
        """So much of one of them, from its start."""
        key = self.sealed[number]
        part = RemotePart(f"chunk-{number}", 0, 10, 0, records)
        await self.service.perform(CommitParts(self.lock, (PartCommit(key, 0, part),)))
        if records == RECORDS:
            await self.service.perform(CompleteRemote(self.lock, key, f"manifest-{number}", b"digest", 10))


@pytest.fixture
async def leaving() -> AsyncIterator[Leaving]:
    made = Leaving()
    await made.begin()
    yield made
    await made.service.close()


async def test_the_rate_and_the_time_left_follow_what_got_less(leaving: Leaving) -> None:
    told = await leaving.run_passes()
    assert told.retirement.step is RetireStep.OFFLOAD
    assert (told.remaining_segments, told.remaining_bytes) == (4, 400 * MIB)
    assert (told.bytes_per_second, told.seconds_left) == (0, -1), "nobody can tell yet"
    await leaving.upload(0)
    told = await leaving.after(10_000)
    assert (told.remaining_bytes, told.bytes_per_second, told.seconds_left) == (300 * MIB, 10 * MIB, 30)
    assert told.words == "3 segments, 300.0 MiB still only here; at 10.0 MiB/s, 30 s left"
    await leaving.upload(1, records=50)
    told = await leaving.after(10_000)
    assert (told.remaining_bytes, told.bytes_per_second) == (250 * MIB, 150 * MIB // 20)
    assert told.seconds_left == 250 * MIB // (150 * MIB // 20)


async def test_the_rate_is_of_the_last_half_minute_and_no_older(leaving: Leaving) -> None:
    await leaving.upload(0)
    assert (await leaving.after(10_000)).bytes_per_second == 10 * MIB
    for _ in range(2):
        told = await leaving.after(10_000)
    assert told.bytes_per_second == 100 * MIB * 1_000 // 30_000
    for _ in range(2):
        told = await leaving.after(10_000)
    assert (told.bytes_per_second, told.seconds_left) == (0, -1)
    assert told.words == "3 segments, 300.0 MiB still only here; at 0.0 MiB/s"


@pytest.mark.fault("object-store-unavailable-during")
async def test_uploads_without_progress_for_a_minute_are_said_and_no_sooner(leaving: Leaving) -> None:
    assert (await leaving.after(STALL_MS - 1)).retirement.wait is None
    told = await leaving.after(1)
    wait = told.retirement.wait
    assert wait is not None and wait.reason is WaitReason.STORE_UNREACHABLE
    assert wait.words.startswith("not in the object store yet: 4 segments, 400.0 MiB; no progress for 60 s")
    assert told.words.startswith("waits (StoreUnreachable): not in the object store yet")
    later = (await leaving.after(30_000)).retirement.wait
    assert later is not None and "no progress for 90 s" in later.words and later.since_ms == wait.since_ms
    await leaving.upload(0, records=1)
    told = await leaving.after(1_000)
    assert told.retirement.wait is None and told.remaining_bytes == 400 * MIB - MIB, "it goes on"
    assert (await leaving.after(STALL_MS - 1)).retirement.wait is None, "the minute begins anew"
    assert (await leaving.after(1)).retirement.wait is not None


@pytest.mark.fault("object-store-unavailable-during")
@pytest.mark.parametrize("step", [RetireStep.OFFLOAD, RetireStep.VERIFY, RetireStep.SNAPSHOT])
async def test_a_store_that_does_not_answer_a_node_is_said_at_each_step_that_needs_it(
    leaving: Leaving, step: RetireStep
) -> None:
    if step is not RetireStep.OFFLOAD:
        for number in range(4):
            await leaving.upload(number)
        await leaving.run_passes(2)
    if step is RetireStep.SNAPSHOT:
        for _ in range(2):
            record = (await leaving.status()).retirement
            sighting = ReportSighting(
                1, "disk-1", record.begun_ms, 4, seen_ms=record.last_check_ms, caller=leaving.life
            )
            await leaving.service.perform(sighting)
            await leaving.after(INTERVAL_MS)
    told = await leaving.run_passes()
    assert (told.retirement.step, told.retirement.wait) == (step, None)
    leaving.store_away_ms = 90_000
    told = await leaving.after(1)
    assert told.retirement.step is step and told.retirement.wait is not None
    assert told.retirement.wait.reason is WaitReason.STORE_UNREACHABLE and "for 90 s" in told.words
    leaving.store_away_ms = 120_000
    assert "for 120 s" in (await leaving.after(1)).words, "the status tells it sooner than the record"
    leaving.store_away_ms = 0
    assert (await leaving.after(1)).retirement.wait is None


async def test_what_a_node_says_of_its_store_with_a_heartbeat_is_in_the_status() -> None:
    service = MetaService(MemoryStore(), HandClock(), lease_ms=600_000)
    await service.start()
    lives = [
        Life(node_id, (await service.perform(RegisterNode(NodeInfo(node_id, "disk", "host", 9_000)))).node_epoch)
        for node_id in (1, 2)
    ]
    retirements = service._retirements
    assert retirements is not None
    topic = await service.perform(CreateTopic("flights", 1, 1, {"remote.storage.enable": "true"}))
    segment = (await service.shard(ShardKey(topic.topic_id, 0))).segments[-1]
    leader = segment.leader
    assert leader is not None
    await service.perform(RetireNode(leader, RetireMode.OFFLOAD))

    async def told(away_ms: int) -> RetirementStatus:
        for life in lives:
            vitals = Vitals(50 * GIB, 100 * GIB, True, away_ms if life.node_id == leader else 0)
            await service.heartbeat(Heartbeat(life, vitals=vitals))
        for _ in range(3):
            await retirements.run_pass()
        (status,) = await service.retirements()
        return status

    assert (await told(0)).retirement.step is RetireStep.SEAL
    await service.perform(PrepareSegment(segment.key))
    await service.perform(RollSegment(segment.key, RECORDS))
    await service.perform(SealSegment(segment.key, seal_record(segment.key, RECORDS, (leader,))))
    assert (await told(0)).retirement.wait is None
    waits = (await told(65_000)).retirement
    assert waits.step is RetireStep.OFFLOAD and waits.wait is not None
    assert waits.wait.reason is WaitReason.STORE_UNREACHABLE and "has not answered for 65 s" in waits.wait.words
    assert (await told(0)).retirement.wait is None
    await service.close()


@pytest.mark.fault("thousands-nodes-leave-once")
async def test_others_have_their_turn_between_the_plans_of_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of nodes and topics all plans together take seconds."""
    service = MetaService(MemoryStore(), HandClock(), lease_ms=600_000)
    await service.start()
    for node_id in range(1, 9):
        await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
        await service.perform(RetireNode(node_id, RetireMode.OFFLOAD))
    clock, writer = HandClock(), service._parts()[0]
    retirements = Retirements(writer, clock, clock, dict, RetirementStats())
    turns: list[int] = []
    count = 0

    async def others() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    real = retirements._plan

    def plan(*asked: Any) -> Any:
        turns.append(count)
        return real(*asked)

    monkeypatch.setattr(retirements, "_plan", plan)
    for _ in range(5):
        await retirements.run_pass()  # what it notes takes turns of its own
    turns.clear()
    task = asyncio.create_task(others())
    await retirements.run_pass()
    task.cancel()
    assert len(turns) == 8 and len(set(turns)) == 8
    await service.close()

"""Group commit: commands share synced writes, readers never see what is not durable, a failed store refuses changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine

import pytest

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands import table_commands
from stratalog.model.errors import AlreadyExists, DiskFull, Fenced, NotFound, OutcomeUnknown, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, Lock, NodeInfo, PartCommit, SegmentChanged, Snapshot, TopicChanged
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_meta import MetaService, writer
from stratalog_meta.stores.memory import MemoryStore
from support.failing_meta_store import FailingStore
from support.meta_worlds import HandClock, MetaWorld, collect, part, seal_record
from support.waiting import eventually


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(memory: MemoryStore) -> FailingStore:
    return FailingStore(memory)


@pytest.fixture
async def world(store: FailingStore) -> AsyncIterator[MetaWorld]:
    clock = HandClock()
    service = MetaService(store, clock)
    await service.start()
    world = MetaWorld(service, service, clock, None)
    await world.node()
    yield world
    store.let_go()
    await service.close()


async def restarted(memory: MemoryStore) -> MetaService:
    """Another service over what the store kept."""
    service = MetaService(memory, HandClock())
    await service.start()
    return service


async def test_commands_that_come_while_a_write_is_under_way_share_the_next_one(
    world: MetaWorld, store: FailingStore
) -> None:
    store.hold()
    before = store.writes
    first = asyncio.ensure_future(world.topic("first"))
    await eventually(lambda: store.writes == before + 1)
    rest = [asyncio.ensure_future(world.topic(f"topic-{number}")) for number in range(50)]
    await asyncio.sleep(0)
    store.let_go()
    await asyncio.gather(first, *rest)
    assert store.writes == before + 2
    assert len((await world.client.snapshot()).topics) == 51


async def test_a_turn_that_is_too_large_goes_in_several_writes(
    world: MetaWorld, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_WRITES_PER_TURN", 100)
    before = store.writes
    await asyncio.gather(*(world.topic(f"topic-{number}", shard_count=60) for number in range(4)))
    assert store.writes - before == 4


async def test_a_bundle_of_many_parts_is_one_write(world: MetaWorld, store: FailingStore) -> None:
    topic = await world.topic(shard_count=1_000)
    lock = await world.lock()
    before = store.writes
    commits = [PartCommit(SegmentKey(topic.topic_id, shard, 0, 0), 0, part(0, 5)) for shard in range(1_000)]
    outcomes = await world.client.perform(table_commands.CommitParts(lock, (*commits, commits[0])))
    assert store.writes == before + 1
    assert len(outcomes) == 1_001 and all(isinstance(outcome, Segment) for outcome in outcomes)
    assert await world.client.perform(table_commands.CommitParts(lock, ())) == ()
    await world.client.perform(table_commands.ReleaseLock(lock))
    with pytest.raises(Fenced):
        await world.client.perform(table_commands.CommitParts(lock, tuple(commits)))
    with pytest.raises(Fenced):
        await world.client.perform(table_commands.CommitParts(lock, ()))


async def test_readers_wait_for_what_is_not_durable_yet(world: MetaWorld, store: FailingStore) -> None:
    version = (await world.client.snapshot()).version
    watching = asyncio.ensure_future(collect(world.client.watch(version), 1))
    store.hold()
    creating = asyncio.ensure_future(world.topic())
    await eventually(lambda: store.writes == 2 + 1)
    reading = asyncio.ensure_future(world.client.snapshot())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not creating.done() and not reading.done() and not watching.done()
    store.let_go()
    await creating
    assert len((await reading).topics) == 1
    assert len(await watching) == 1


async def test_a_refusal_waits_for_what_it_rests_on(world: MetaWorld, store: FailingStore) -> None:
    """A second creation is refused because of the first; were the first lost, the refusal would have been a lie."""
    store.hold()
    before = store.writes
    holding = asyncio.ensure_future(world.lock())
    await eventually(lambda: store.writes == before + 1)
    twins = [asyncio.ensure_future(world.topic("same")) for _ in range(2)]
    await asyncio.sleep(0)
    store.fails_before = True
    store.let_go()
    outcomes = await asyncio.gather(holding, *twins, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, Unavailable, Unavailable]
    assert not any(isinstance(outcome, AlreadyExists) for outcome in outcomes)


@pytest.mark.fault("write-metadata-store-fails")
async def test_a_refused_read_waits_for_what_it_rests_on(world: MetaWorld, store: FailingStore) -> None:
    """It is refused because of a deletion; were that lost, the reader would have been told a lie."""
    topic = await world.topic("kept")
    store.hold()
    before = store.writes
    holding = asyncio.ensure_future(world.lock())
    await eventually(lambda: store.writes == before + 1)
    deleting = asyncio.ensure_future(world.client.perform(table_commands.DeleteTopic(topic.topic_id)))
    reading = asyncio.ensure_future(world.service.topic(topic.topic_id))
    store.release_one()
    await holding
    await eventually(lambda: store.writes == before + 2)
    await asyncio.sleep(0)
    assert not reading.done(), "refused before the deletion is durable"
    store.fails_before = True
    store.let_go()
    with pytest.raises(OutcomeUnknown):
        await deleting
    assert await reading == topic


@pytest.mark.fault("write-metadata-store-fails")
async def test_a_failed_turn_that_held_a_read_of_what_it_made_leaves_the_service_alive(
    world: MetaWorld, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write made a shard and a reader saw it; then there was no room for either."""
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.01)
    topic = await world.topic("grown")
    store.hold()
    before = store.writes
    holding = asyncio.ensure_future(world.lock())
    await eventually(lambda: store.writes == before + 1)
    growing = asyncio.ensure_future(world.client.perform(table_commands.AddShards(topic.topic_id, 2)))
    first = asyncio.ensure_future(world.service.shard(ShardKey(topic.topic_id, 1)))
    second = asyncio.ensure_future(world.client.snapshot())
    store.release_one()
    await holding
    store.is_full = True
    store.let_go()
    outcomes = await asyncio.gather(growing, first, second, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[:2]] == [OutcomeUnknown, NotFound]
    assert outcomes[2] == await world.client.snapshot()
    store.is_full = False
    await eventually(lambda: world.service.why_no_changes is None)
    assert (await world.client.perform(table_commands.AddShards(topic.topic_id, 2))).shard_count == 2


@pytest.mark.fault("write-metadata-store-fails")
async def test_a_fault_of_the_writer_itself_answers_everybody_and_readers_continue(
    world: MetaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(writer.TableWriter, "_answer", break_down)
        outcomes = await asyncio.gather(
            world.topic("first"), world.topic("second"), world.client.snapshot(), return_exceptions=True
        )
    assert [type(outcome) for outcome in outcomes[:2]] == [OutcomeUnknown] * 2
    with pytest.raises(Unavailable, match="a bug"):
        await world.topic("late")
    await world.client.snapshot()
    await world.service.close()


@pytest.mark.fault("write-metadata-store-fails")
async def test_a_store_without_room_heals_whatever_it_said_meanwhile(
    world: MetaWorld, store: FailingStore, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.0)
    store.is_full = True
    with pytest.raises(OutcomeUnknown):
        await world.topic("lost")
    said: list[str] = []

    async def close() -> None:
        said.append("a bare exception")
        raise RuntimeError(said[0])

    with monkeypatch.context() as patch:
        patch.setattr(memory, "close", close)
        await eventually(lambda: len(said) > 1)
    store.is_full = False
    await eventually(lambda: world.service.why_no_changes is None)


async def test_a_fault_while_a_store_is_opened_again_leaves_no_request_waiting(
    world: MetaWorld, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.0)

    def break_down(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.service._parts()[0], "_restart_history", break_down)
    store.is_full, store.fails_after = True, True  # the kept state differs from the published one
    with pytest.raises(OutcomeUnknown):
        await world.topic("kept")
    store.is_full, store.fails_after = False, False
    await eventually(lambda: world.service.is_broken)
    with pytest.raises(Unavailable, match="a bug"):
        await world.topic("late")
    await world.client.snapshot()
    await world.service.close()


@pytest.mark.parametrize("when", ["while the write fails", "before the store is opened anew", "while it is opened"])
async def test_who_may_change_nothing_any_more_is_not_let_again_by_a_store_that_heals(
    world: MetaWorld, store: FailingStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The bucket knows newer metadata than this service: what it acknowledged from then on would be lost."""
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.0)
    table_writer = world.service._parts()[0]
    store.hold()
    before = store.writes
    creating = asyncio.ensure_future(world.topic("kept"))
    await eventually(lambda: store.writes == before + 1)
    store.loses_answer = True
    if when == "while the write fails":
        table_writer.refuse_changes("older than the bucket")
    if when == "while it is opened":
        store.release_one()
    else:
        store.let_go()
    with pytest.raises(OutcomeUnknown):
        await creating
    if when == "before the store is opened anew":
        table_writer.refuse_changes("older than the bucket")
    if when == "while it is opened":
        await eventually(lambda: store.writes == before + 2)
        table_writer.refuse_changes("older than the bucket")
        store.let_go()
    for _ in range(100):
        await asyncio.sleep(0)  # longer than a store takes to be opened again
        assert world.service.why_no_changes == "older than the bucket"
    assert world.service.is_broken
    with pytest.raises(Unavailable, match="older than the bucket"):
        await world.topic("late")


@pytest.mark.parametrize("landed", [False, True])
async def test_after_a_failed_write_changes_are_refused_and_readers_see_what_was_durable(
    world: MetaWorld, store: FailingStore, memory: MemoryStore, landed: bool
) -> None:
    kept = await world.active(await world.topic("kept"))
    lock = await world.lock()
    before = await world.client.snapshot()
    watching = asyncio.ensure_future(collect(world.client.watch(before.version), 1))
    store.fails_after, store.fails_before = landed, not landed
    commands = [
        world.topic("lost"),
        world.client.perform(table_commands.RollSegment(kept.key, 5)),
        world.client.perform(table_commands.DeleteTopic(kept.key.topic_id)),
    ]
    outcomes = await asyncio.gather(*commands, world.client.snapshot(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[:3]] == [OutcomeUnknown] * 3
    assert outcomes[3] == before == await world.client.snapshot()
    assert world.service.why_no_changes is not None and "disk" not in world.service.why_no_changes
    with pytest.raises(Unavailable, match="reading continues"):
        await world.client.perform(table_commands.CommitParts(lock, (PartCommit(kept.key, -1, part(0, 5)),)))
    assert not watching.done(), "watchers hear of nothing that was not durable"
    watching.cancel()
    await world.service.close()
    again = await restarted(memory)
    names = {topic.name for topic in (await again.snapshot()).topics}
    assert names == ({"lost"} if landed else {"kept"}), "the restart finds what the store kept, whole or not at all"
    await again.close()


@pytest.mark.fault("metadata-store-room")
@pytest.mark.parametrize("landed", [False, True])
async def test_a_store_without_room_is_opened_again_until_there_is_some(
    world: MetaWorld, store: FailingStore, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """What the last write became is read again, and watchers hear of it."""
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.01)
    kept = await world.active(await world.topic("kept"))
    before = await world.client.snapshot()
    watching = asyncio.ensure_future(collect(world.client.watch(before.version), 1))
    store.is_full, store.fails_after = True, landed
    with pytest.raises(OutcomeUnknown):
        await world.topic("lost")
    with pytest.raises(DiskFull):
        await world.client.perform(table_commands.RollSegment(kept.key, 5))
    assert await world.client.snapshot() == before
    store.is_full = store.fails_after = False
    await eventually(lambda: world.service.why_no_changes is None)
    rolled = await world.client.perform(table_commands.RollSegment(kept.key, 5))
    assert rolled.base_offset == 5
    names = {topic.name for topic in (await world.client.snapshot()).topics}
    assert names == ({"kept", "lost"} if landed else {"kept"})
    (change_set,) = await watching
    assert change_set.version == before.version + 1
    assert isinstance(change_set.changes[0], TopicChanged if landed else SegmentChanged)


@pytest.mark.fault("metadata-store-fails-damaged")
async def test_a_store_that_broke_is_not_trusted_again(
    world: MetaWorld, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed flush the page cache may show what the disk does not hold: only a restart reads the disk."""
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.0)
    store.fails_before = True
    with pytest.raises(OutcomeUnknown):
        await world.topic("lost")
    store.fails_before = False
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="started again"):
        await world.topic("late")


async def kept_in_part(
    world: MetaWorld, store: FailingStore, kept: int, *asked: Coroutine[object, object, object]
) -> list[object]:
    """What becomes of requests that share a write when the store keeps only the first `kept` commands."""
    store.hold()
    before = store.writes
    holding = asyncio.ensure_future(world.lock())
    await eventually(lambda: store.writes == before + 1)
    waiting = [asyncio.ensure_future(one) for one in asked]
    await asyncio.sleep(0)
    store.release_one()
    await holding
    store.refuses_after = kept
    store.let_go()
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_store_that_refuses_a_part_of_a_turn_and_knows_it_continues(
    world: MetaWorld, store: FailingStore, memory: MemoryStore
) -> None:
    """What it kept is answered and published, the rest was surely not done, and the next command is performed."""
    version = (await world.client.snapshot()).version
    watching = asyncio.ensure_future(collect(world.client.watch(version), 2))
    first, second, third, twin, seen = await kept_in_part(
        world,
        store,
        1,
        world.topic("first"),
        world.topic("second"),
        world.topic("third"),
        world.topic("second"),
        world.client.snapshot(),
    )
    assert isinstance(first, Topic)
    assert [type(one) for one in (second, third, twin)] == [DiskFull] * 3, "surely not done, so no OutcomeUnknown"
    assert isinstance(seen, Snapshot) and [topic.name for topic in seen.topics] == ["first"]
    assert world.service.why_no_changes is None and world.service.stats.store_refusals == 1
    await world.topic("second")
    assert [change_set.version for change_set in await watching] == [version + 1, version + 2]
    await world.service.close()
    again = await restarted(memory)
    assert {topic.name for topic in (await again.snapshot()).topics} == {"first", "second"}
    await again.close()


async def test_a_store_that_could_not_be_asked_is_read_again_once_it_can(
    world: MetaWorld, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 0.01)
    store.loses_answer = True
    with pytest.raises(OutcomeUnknown):
        await world.topic("kept-all-the-same")
    await eventually(lambda: world.service.why_no_changes is None)
    assert [topic.name for topic in (await world.client.snapshot()).topics] == ["kept-all-the-same"]
    await world.topic("next")


async def test_a_caller_that_goes_away_does_not_disturb_the_others(world: MetaWorld, store: FailingStore) -> None:
    store.hold()
    before = store.writes
    holding = asyncio.ensure_future(world.topic("first"))
    await eventually(lambda: store.writes == before + 1)
    leaving = asyncio.ensure_future(world.topic("leaver"))
    staying = asyncio.ensure_future(world.topic("stayer"))
    await asyncio.sleep(0)
    leaving.cancel()
    holding.cancel()
    store.let_go()
    await staying
    names = {topic.name for topic in (await world.client.snapshot()).topics}
    assert names == {"first", "stayer"}, "what was written stands, what was not begun is dropped"


@pytest.mark.fault("request-handler-fails")
async def test_a_bug_in_one_request_leaves_the_service_alive(world: MetaWorld, store: FailingStore) -> None:
    store.hold()
    before = store.writes
    holding = asyncio.ensure_future(world.topic("first"))
    await eventually(lambda: store.writes == before + 1)
    wrong = asyncio.ensure_future(world.client.perform(table_commands.AcquireLock(None, "a", 5)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    store.let_go()
    await holding
    with pytest.raises(TypeError):
        await wrong
    await world.topic("second")


async def test_closing_answers_what_was_asked_before(world: MetaWorld, store: FailingStore) -> None:
    store.hold()
    before = store.writes
    asked = [asyncio.ensure_future(world.topic("first"))]
    await eventually(lambda: store.writes == before + 1)
    asked += [asyncio.ensure_future(world.topic("second")), asyncio.ensure_future(world.client.snapshot())]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(world.service.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await world.topic("late")
    store.let_go()
    await closing
    await asyncio.gather(*asked)


async def test_a_watcher_of_a_closing_service_learns_of_it(world: MetaWorld) -> None:
    version = (await world.client.snapshot()).version
    watching = asyncio.ensure_future(collect(world.client.watch(version), 1))
    await asyncio.sleep(0)
    await world.service.close()
    with pytest.raises(Unavailable):
        await watching


async def test_a_service_asked_before_its_start_is_unavailable(memory: MemoryStore) -> None:
    service = MetaService(memory, HandClock())
    assert service.why_no_changes is not None
    with pytest.raises(Unavailable):
        await service.snapshot()
    with pytest.raises(Unavailable):
        await service.perform(table_commands.RegisterNode(NodeInfo(1, "s", "h", 1)))
    with pytest.raises(Unavailable):
        service.watch(0)
    await service.close()


async def test_a_restarted_service_continues_where_it_was(memory: MemoryStore) -> None:
    first = await restarted(memory)
    world = MetaWorld(first, first, HandClock(), None)
    segment = await world.ready_topic()
    lock = await world.lock()
    await first.perform(table_commands.RollSegment(segment.key, 9))
    ids = await first.perform(table_commands.AllocateProducerIds(10))
    before = await first.snapshot()
    await first.close()
    second = await restarted(memory)
    assert second.cluster_id == first.cluster_id
    assert await second.snapshot() == before
    assert (await second.perform(table_commands.AllocateProducerIds(1))).first == ids.end
    assert isinstance(await second.perform(table_commands.AcquireLock("tier/1", lock.holder, 1)), Lock)
    node = before.nodes[0]
    assert (await second.perform(table_commands.RegisterNode(node))).node_epoch == 2
    assert [entry.version for entry in await collect(second.watch(before.version), 1)] == [before.version + 1]
    with pytest.raises(Unavailable):
        await first.start()
    await second.close()


async def test_a_service_that_cannot_load_lets_go_of_the_store(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(ShardTable, "load", refuse)
        with pytest.raises(Unavailable):
            await MetaService(memory, HandClock()).start()
    service = await restarted(memory)
    await service.close()


async def recover_two_copies_that_differ(world: MetaWorld) -> None:
    """And give up what no replica promised."""
    lives = []
    for number in (8, 9):
        told = await world.client.perform(table_commands.RegisterNode(NodeInfo(number, f"disk-{number}", "host", 9092)))
        lives.append(Life(number, told.node_epoch))
    topic = await world.client.perform(table_commands.CreateTopic("two", 1, 2))
    segment = (await world.service.shard(ShardKey(topic.topic_id, 0))).segments[-1]
    await world.client.perform(table_commands.BeginRecovery(segment.key))
    ended = await world.client.perform(table_commands.SealUnclean(segment.key))
    assert ended.end_offset == 0
    for life in lives:
        digest = bytes([life.node_id])
        vote = table_commands.PromiseFence(segment.key, 1, 0, 0, is_tail_whole=True, caller=life)
        await world.client.perform(vote)
        proof = seal_record(segment.key, 0, digest=digest)
        await world.client.perform(table_commands.ReportReplica(segment.key, proof, caller=life))


async def test_every_metric_moves(world: MetaWorld, store: FailingStore) -> None:
    registry = MetricRegistry()
    registry.add("stratalog_meta", world.service.stats)
    version = (await world.client.snapshot()).version
    await asyncio.gather(*(world.topic(f"topic-{number}", shard_count=1_000) for number in range(20)))
    with pytest.raises(AlreadyExists):
        await world.topic("topic-1")
    with pytest.raises(NotFound):
        await collect(world.client.watch(version), 1)
    await recover_two_copies_that_differ(world)
    store.refuses_after = 0
    with pytest.raises(DiskFull):
        await world.topic("refused")
    store.fails_before = True
    with pytest.raises(OutcomeUnknown):
        await world.topic("lost")
    still = [
        name
        for name, values in registry.values().items()
        if name.startswith("stratalog_meta_") and not any(values.values())
    ]
    assert not still, "these metrics never moved"


@pytest.mark.fault("command-changes-thousands-records")
async def test_the_loop_turns_while_thousands_of_segments_are_deleted_and_readers_see_all_or_nothing(
    world: MetaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await world.ready_topic()
    first = segment.key
    for offset in range(1, 1_001):
        segment = await world.client.perform(table_commands.RollSegment(segment.key, offset))
    monkeypatch.setattr(writer, "SLICE_S", 0.0)
    turns = 0
    deleting = asyncio.ensure_future(world.client.perform(table_commands.AdvanceLogStart(first.shard_key, 1_000)))
    seen = []
    while not deleting.done():
        seen.append(asyncio.ensure_future(world.service.shard(first.shard_key)))
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 1_000 // 256
    assert {len(shard.segments) for shard in await asyncio.gather(*seen)} <= {1, 1_001}
    assert len((await deleting).segments) == 1

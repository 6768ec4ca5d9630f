"""The leading service keeps a snapshot of its metadata in the bucket, and stops where the bucket knows more."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.machines.rebuild.meta_backups import FoundSnapshot
from stratalog.machines.table.dump import capture, writes_of
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.rights_commands import AlterCredentials
from stratalog.model.commands.table_commands import (
    CommitParts,
    CompleteRemote,
    CreateTopic,
    ForgetLocal,
    RollSegment,
    SealSegment,
)
from stratalog.model.errors import Conflict, Corrupt, Fenced, OutcomeUnknown, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import PartCommit
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import RemoteState
from stratalog.objects import open_store
from stratalog.stored import encoding
from stratalog.stored.snapshots import list_snapshots, read_snapshot
from stratalog_meta import MetaService
from stratalog_meta.bucket.backups import BackupPlace
from stratalog_meta.stores.memory import MemoryStore
from stratalog_meta.stores.meta_store import MetaStore
from support.failing_meta_store import FailingStore
from support.faulty_store import Fault, FaultyStore
from support.meta_worlds import HandClock, MetaWorld, part, seal_record
from support.waiting import eventually


@pytest.fixture
async def bucket() -> AsyncIterator[FaultyStore]:
    store = FaultyStore(open_store("memory:"), HandClock())
    yield store
    await store.close()


@asynccontextmanager
async def running(
    bucket: FaultyStore,
    store: MetaStore,
    *,
    interval_s: float = 0.01,
    patience_s: float = 5.0,
    is_told: Callable[[], bool] = bool,
) -> AsyncIterator[MetaWorld]:
    clock = HandClock()
    place = BackupPlace(bucket, interval_s, soonest_s=0.01, start_patience_s=patience_s, is_told=is_told)
    service = MetaService(store, clock, backups=place)
    await service.start()
    try:
        yield MetaWorld(service, service, clock, None)
    finally:
        await service.close()


async def standing(bucket: FaultyStore, service: MetaService) -> list[FoundSnapshot]:
    return await list_snapshots(bucket.inner, ObjectNames("", service.cluster_id))


async def until_told(world: MetaWorld) -> None:
    async def is_told() -> bool:
        return world.service.backup_stats.version == await world.service.read_version()

    await eventually(is_told)


async def complete_segment(world: MetaWorld) -> SegmentKey:
    """A sealed segment, whole in the object store and on node 1."""
    segment = await world.ready_topic()
    await world.client.perform(RollSegment(segment.key, 10))
    await world.client.perform(SealSegment(segment.key, seal_record(segment.key, 10)))
    lock = await world.lock()
    await world.client.perform(CommitParts(lock, (PartCommit(segment.key, -1, part(0, 10)),)))
    await world.client.perform(CompleteRemote(lock, segment.key, "m", b"digest", 100))
    return segment.key


async def test_a_snapshot_in_the_bucket_holds_all_that_the_store_does(bucket: FaultyStore) -> None:
    store = MemoryStore()
    async with running(bucket, store) as world:
        await complete_segment(world)
        await until_told(world)
        newest = (await standing(bucket, world.service))[-1]
        _, records = await read_snapshot(bucket, ObjectNames("", world.service.cluster_id), newest)
    table = ShardTable.load(await store.load(), "store")
    assert table is not None
    told = {key: value for key, value in encoding.encode(writes_of(records)) if not key.startswith((b"l", b"a"))}
    kept = encoding.encode(writes_of(capture(table.state).records()))
    assert told == {key: value for key, value in kept if not key.startswith((b"l", b"a"))}


async def test_no_key_of_a_user_and_no_token_of_a_life_is_in_the_bucket(bucket: FaultyStore) -> None:
    """A reader of the bucket must not log in by what is there, or act as a node."""
    keys = ScramCredential(b"salt-of-alice", b"s" * 32, b"k" * 32, 4_096)
    store = MemoryStore()
    async with running(bucket, store) as world:
        await world.node()
        await world.client.perform(AlterCredentials(put=(UserCredential("alice", ScramMechanism.SCRAM_SHA_256, keys),)))
        (node,) = (await world.client.snapshot()).nodes
        await until_told(world)
        newest = (await standing(bucket, world.service))[-1]
        _, records = await read_snapshot(bucket, ObjectNames("", world.service.cluster_id), newest)
    secrets = [str(node.token).encode(), b"alice", keys.salt.hex().encode(), keys.stored_key.hex().encode()]
    kept = b"".join(key + value for key, value in store._items.items())
    told = b"".join(key + (value or b"") for key, value in encoding.encode(writes_of(records)))
    assert node.token and [secret in kept for secret in secrets] == [True] * 4
    assert [secret in told for secret in secrets] == [False] * 4


async def test_only_what_changed_is_put_and_few_snapshots_stay(bucket: FaultyStore) -> None:
    async with running(bucket, MemoryStore()) as world:
        await world.node()
        for number in range(6):
            await world.topic(f"topic-{number}")
            await until_told(world)
        assert world.service.backup_stats.puts >= 6
        put = world.service.backup_stats.puts
        looks = bucket.requests["list"]
        await eventually(lambda: bucket.requests["list"] == looks)
        assert world.service.backup_stats.puts == put, "nothing changed"
        await eventually(lambda: len(bucket.deletions) > 0)
        assert len(await standing(bucket, world.service)) <= 4


async def test_a_start_continues_from_its_own_snapshots(bucket: FaultyStore) -> None:
    store = MemoryStore()
    for number in range(3):
        async with running(bucket, store) as world:
            await world.node()
            await world.topic(f"topic-{number}")
            await until_told(world)
    assert len(await standing(bucket, world.service)) <= 4


@pytest.mark.fault("metadata-restored-older-copy")
async def test_an_older_copy_of_the_metadata_is_refused_with_what_to_do(bucket: FaultyStore) -> None:
    store = MemoryStore()
    async with running(bucket, store) as world:
        await world.node()
        await until_told(world)
    older = copy.deepcopy(store)
    async with running(bucket, store) as world:
        await world.topic()
        await until_told(world)
    with pytest.raises(Fenced, match=r"older than the bucket.*meta rebuild"):
        async with running(bucket, older):
            pass
    async with running(bucket, store):
        pass


@pytest.mark.fault("metadata-restored-older-copy")
async def test_a_copy_that_went_further_without_the_bucket_is_refused_as_well(bucket: FaultyStore) -> None:
    store = MemoryStore()
    async with running(bucket, store) as world:
        await world.node()
        await until_told(world)
    copied = copy.deepcopy(store)
    async with running(bucket, store) as world:
        await world.topic()
        await until_told(world)
    alone = MetaService(copied, HandClock())
    await alone.start()
    for number in range(20):
        await alone.perform(CreateTopic(f"other-{number}", 1, 1))
    await alone.close()
    with pytest.raises(Fenced, match="went another way"):
        async with running(bucket, copied):
            pass


@pytest.mark.fault("metadata-restored-older-copy")
async def test_a_copy_that_takes_over_while_this_one_runs_ends_its_changes(bucket: FaultyStore) -> None:
    store = MemoryStore()
    async with running(bucket, store) as world:
        await world.node()
        await until_told(world)
        other = copy.deepcopy(store)
        other._is_open = False
        async with running(bucket, other) as elsewhere:
            await elsewhere.topic("theirs")
            await until_told(elsewhere)
        await world.topic("ours")
        await eventually(lambda: world.service.is_broken)
        with pytest.raises(Unavailable, match="older than the bucket"):
            await world.topic("late")
        assert world.service.backup_stats.is_older == 1
        assert (await world.client.snapshot()).topics[-1].name == "ours", "reading continues"


@pytest.mark.fault("bucket-unavailable-answers-fails")
async def test_a_bucket_that_is_away_holds_up_nothing_and_is_reported(bucket: FaultyStore) -> None:
    bucket.is_away = True
    async with running(bucket, MemoryStore()) as world:
        await world.node()
        await world.topic()
        await eventually(lambda: world.service.backup_stats.is_failing == 1)
        await eventually(lambda: world.service.backup_stats.failures > 0)
        bucket.is_away = False
        await until_told(world)
        await eventually(lambda: world.service.backup_stats.is_failing == 0)


def said(lines: Sequence[MutableMapping[str, Any]]) -> list[str]:
    return [line["event"] for line in lines if "snapshot" in line["event"] and line["log_level"] != "debug"]


async def test_what_the_log_says_of_the_bucket_already_is_not_said_again(bucket: FaultyStore) -> None:
    bucket.is_away = is_told = True
    with capture_logs() as lines:
        async with running(bucket, MemoryStore(), is_told=lambda: is_told) as world:
            await world.node()
            await eventually(lambda: world.service.backup_stats.failures > 1)
            assert not said(lines) and world.service.backup_stats.is_failing == 1
            is_told = False
            await eventually(lambda: said(lines))
            bucket.is_away = False
            await eventually(lambda: world.service.backup_stats.is_failing == 0)
    assert said(lines) == ["no snapshot of the metadata can be put", "snapshots of the metadata are put again"]


@pytest.mark.fault("bucket-unavailable-answers-fails")
async def test_a_bucket_that_never_answers_does_not_keep_a_start_waiting(bucket: FaultyStore) -> None:
    bucket.hangs = lambda prefix: "/meta/" in prefix
    async with running(bucket, MemoryStore(), patience_s=0.01) as world:
        await world.node()
        assert world.service.backup_stats.is_failing == 1


@pytest.mark.fault("bucket-unavailable-answers-fails")
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.CUT, Fault.SLOW_DOWN, Fault.TAKEN])
async def test_a_put_that_fails_is_followed_by_another_try(bucket: FaultyStore, fault: Fault) -> None:
    bucket.script.append(fault)
    async with running(bucket, MemoryStore()) as world:
        await world.node()
        await until_told(world)
        newest = (await standing(bucket, world.service))[-1]
        await read_snapshot(bucket, ObjectNames("", world.service.cluster_id), newest)


@pytest.mark.fault("bucket-unavailable-answers-fails")
async def test_a_piece_that_is_not_the_one_put_is_refused(bucket: FaultyStore) -> None:
    async with running(bucket, MemoryStore()) as world:
        await world.node()
        await until_told(world)
        names = ObjectNames("", world.service.cluster_id)
        newest = (await standing(bucket, world.service))[-1]
        piece = newest.keys[1]
        body = bytearray(await bucket.get(piece))
        body[-1] ^= 1
        await bucket.delete([piece])
        await bucket.inner.put(piece, [bytes(body)])
        with pytest.raises(Corrupt, match="not the piece"):
            await read_snapshot(bucket, names, newest)


@pytest.mark.fault("metadata-restored-older-copy")
async def test_no_copy_is_freed_before_a_snapshot_knows_its_objects(bucket: FaultyStore) -> None:
    async with running(bucket, MemoryStore(), interval_s=3_600) as world:
        await world.node()
        await until_told(world)
        bucket.is_away = True
        key = await complete_segment(world)
        with pytest.raises(Conflict, match="stays where it is"):
            await world.client.perform(ForgetLocal((key,), 1))
        bucket.is_away = False

        async def is_freed() -> bool:
            try:
                await world.client.perform(ForgetLocal((key,), 1))
            except Conflict:
                return False
            return True

        await eventually(is_freed)
        assert world.service.backup_stats.version > 1, "one was put for it, long before its time"


@pytest.mark.fault("completion-unknown-then-kept")
async def test_a_completion_of_unknown_outcome_is_not_mistaken_for_known_to_an_older_snapshot(
    bucket: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store keeps it and loses its answer. Until it is opened again, the metadata are those of the last snapshot;
    then the segment is complete, and no snapshot knows its objects."""
    monkeypatch.setattr("stratalog_meta.writer.HEAL_AFTER_S", 3_600)
    store = FailingStore(MemoryStore())
    async with running(bucket, store, interval_s=3_600) as world:
        segment = await world.ready_topic()
        await world.client.perform(RollSegment(segment.key, 10))
        await world.client.perform(SealSegment(segment.key, seal_record(segment.key, 10)))
        lock = await world.lock()
        await world.client.perform(CommitParts(lock, (PartCommit(segment.key, -1, part(0, 10)),)))
        await eventually(lambda: world.service.backup_stats.puts)
        backups, (writer, _, _) = world.service._backups, world.service._parts()
        assert backups is not None
        names = ObjectNames("", world.service.cluster_id)

        async def back_up() -> None:
            world.clock.now_ms += 1_000  # the lock under which the last one was put is over
            await backups._back_up(writer, names)

        await back_up()
        store.loses_answer = True
        with pytest.raises(OutcomeUnknown):
            await world.client.perform(CompleteRemote(lock, segment.key, "m", b"digest", 100))
        await back_up()
        await writer._reopen()
        assert (await world.service.segment(segment.key)).remote.state is RemoteState.COMPLETE
        with pytest.raises(Conflict, match="stays where it is"):
            await world.client.perform(ForgetLocal((segment.key,), 1))
        await back_up()
        await world.client.perform(ForgetLocal((segment.key,), 1))

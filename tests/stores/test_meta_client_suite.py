"""What every way to the meta service promises: the service in this process and the HTTP client, over every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.model.commands import table_commands
from stratalog.model.commands.rights_commands import (
    AlterCredentials,
    AlterQuotas,
    CreateRules,
    DeletedRules,
    DeleteRules,
)
from stratalog.model.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Rejected,
    Reserved,
    Unavailable,
)
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    CredentialChanged,
    CredentialDeleted,
    Lock,
    Node,
    NodeChanged,
    PartCommit,
    PartReplacement,
    QuotasChanged,
    QuotasDeleted,
    RuleCreated,
    RuleDeleted,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    TopicChanged,
    TopicDeleted,
    life_name,
)
from stratalog.model.producers import ProducerTally
from stratalog.model.quotas import (
    DEFAULT,
    EntityQuotas,
    QuotaAlteration,
    QuotaChange,
    QuotaEntity,
    QuotaKey,
    QuotaLimits,
)
from stratalog.model.rights import Operation, Permission, Resource, ResourceType, Rule, RuleFilter
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import RemoteState, SealRecord, Segment, SegmentState
from support.meta_worlds import CLIENT_KINDS, START_MS, MetaWorld, collect, part, placed, running, seal_record


@pytest.fixture(params=CLIENT_KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetaWorld]:
    async with running(placed(request, request.param), tmp_path) as started:
        yield started


def the_segment(outcome: object) -> Segment:
    assert isinstance(outcome, Segment), outcome
    return outcome


# Nodes and topics -----------------------------------------------------------------------------------------------
async def test_a_node_gets_a_higher_epoch_with_each_life(world: MetaWorld) -> None:
    node = await world.node(7, rack="a")
    second = await world.client.perform(table_commands.RegisterNode(node))
    assert second.node_epoch == 2
    assert second.cluster_id == await world.client.read_cluster_id() == world.service.cluster_id
    told = Node(7, node.storage_id, node.host, node.port, "a", epoch=2, is_alive=True, token=second.token)
    assert (await world.client.snapshot()).nodes == (told,)


async def test_the_version_is_that_of_the_newest_change(world: MetaWorld) -> None:
    await world.node()
    before = await world.client.read_version()
    await world.client.perform(table_commands.CreateTopic("orders", shard_count=1, replication_factor=1, settings={}))
    after = await world.client.read_version()
    assert after > before
    assert (await world.client.snapshot()).version == after


async def test_a_created_topic_has_an_active_segment_in_each_shard(world: MetaWorld) -> None:
    await world.node()
    topic = await world.client.perform(
        table_commands.CreateTopic("orders", shard_count=3, replication_factor=1, settings={"retention.ms": "1000"})
    )
    snapshot = await world.client.snapshot()
    assert snapshot.topics == (topic,)
    assert not topic.is_internal and dict(topic.settings) == {"retention.ms": "1000"} and topic.created_ms == START_MS
    assert [shard.key for shard in snapshot.shards] == [ShardKey(topic.topic_id, shard) for shard in range(3)]
    for shard in snapshot.shards:
        assert shard.log_start_offset == 0
        (segment,) = shard.segments
        assert segment.key == SegmentKey(topic.topic_id, shard.key.shard, 0, 0)
        assert (segment.state, segment.leader, segment.isr) == (SegmentState.ACTIVE, 1, (1,))


@pytest.mark.fault("client-admin-api-command")
async def test_the_services_own_topics_are_made_with_fixed_settings_and_never_changed_by_others(
    world: MetaWorld,
) -> None:
    await world.node()
    client = world.client
    for is_internal, settings in ((False, {}), (True, {"retention.ms": "1"})):
        with pytest.raises(Reserved):
            await client.perform(
                table_commands.CreateTopic(
                    GROUP_LOG, shard_count=1, replication_factor=1, settings=settings, is_internal=is_internal
                )
            )
    topic = await client.perform(
        table_commands.CreateTopic(GROUP_LOG, shard_count=2, replication_factor=1, settings={}, is_internal=True)
    )
    assert topic.is_internal and topic.settings["retention.ms"] == "-1"
    for change in (
        client.perform(table_commands.AlterTopic(topic.topic_id, {"segment.bytes": "1000"})),
        client.perform(table_commands.AlterTopic(topic.topic_id, topic.settings)),
        client.perform(table_commands.AddShards(topic.topic_id, 3)),
        client.perform(table_commands.DeleteTopic(topic.topic_id)),
    ):
        with pytest.raises(Reserved, match="internal"):
            await change
    assert (await client.snapshot()).topics == (topic,)


async def test_validating_a_topic_creates_nothing(world: MetaWorld) -> None:
    await world.node()
    before = await world.client.snapshot()
    topic = await world.client.perform(
        table_commands.CreateTopic("orders", shard_count=3, replication_factor=1, settings={}), validate_only=True
    )
    assert topic.shard_count == 3
    assert await world.client.snapshot() == before
    await world.topic("orders")
    with pytest.raises(AlreadyExists):
        await world.client.perform(
            table_commands.CreateTopic("orders", shard_count=1, replication_factor=1, settings={}), validate_only=True
        )


@pytest.mark.parametrize(
    ("name", "shards", "replicas", "kind"),
    [
        ("", 1, 1, InvalidRequest),
        ("..", 1, 1, InvalidRequest),
        ("a/b", 1, 1, InvalidRequest),
        ("x" * 250, 1, 1, InvalidRequest),
        ("a", 0, 1, InvalidRequest),
        ("a", 1, 0, InvalidRequest),
        ("a", 1, 2, InvalidRequest),
        ("a", 1_000_000, 1, LimitExceeded),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    world: MetaWorld, name: str, shards: int, replicas: int, kind: type[Rejected]
) -> None:
    await world.node()
    with pytest.raises(kind):
        await world.client.perform(
            table_commands.CreateTopic(name, shard_count=shards, replication_factor=replicas, settings={})
        )


async def test_a_topic_without_any_node_waits_for_one(world: MetaWorld) -> None:
    with pytest.raises(Unavailable, match="no storage node"):
        await world.topic()


async def test_a_deleted_topic_vanishes_and_its_segments_wait_for_their_purge(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    await world.client.perform(table_commands.RollSegment(segment.key, 10))
    topic_id = segment.key.topic_id
    await world.client.perform(table_commands.DeleteTopic(topic_id))
    snapshot = await world.client.snapshot()
    assert not snapshot.topics and not snapshot.shards
    deleted = await world.client.deleted_segments()
    assert {entry.epoch for entry in deleted} == {0, 1}
    assert all(entry.state is SegmentState.DELETED and entry.deleted_ms == START_MS for entry in deleted)
    with pytest.raises(NotFound):
        await world.client.perform(table_commands.DeleteTopic(topic_id))
    await world.client.perform(table_commands.PurgeSegments(tuple([entry.key for entry in deleted])))
    await world.client.perform(table_commands.PurgeSegments(tuple([entry.key for entry in deleted])))
    assert await world.client.deleted_segments() == []


async def test_a_topic_created_again_has_a_new_id_and_never_meets_old_data(world: MetaWorld) -> None:
    old = await world.ready_topic("orders")
    await world.client.perform(table_commands.DeleteTopic(old.key.topic_id))
    new = await world.topic("orders")
    assert new.topic_id != old.key.topic_id
    with pytest.raises(Rejected):
        await world.client.perform(table_commands.RollSegment(old.key, 10))
    assert (await world.active(new)).base_offset == 0


async def test_shards_are_added_but_never_taken_away(world: MetaWorld) -> None:
    await world.node()
    topic = await world.topic(shard_count=2)
    grown = await world.client.perform(table_commands.AddShards(topic.topic_id, 4))
    assert grown.shard_count == 4
    assert len((await world.client.snapshot()).shards) == 4
    for count in (4, 3, 0):
        with pytest.raises(InvalidRequest):
            await world.client.perform(table_commands.AddShards(topic.topic_id, count))
    with pytest.raises(NotFound):
        await world.client.perform(table_commands.AddShards(uuid4(), 4))


async def test_settings_are_replaced_as_a_whole(world: MetaWorld) -> None:
    await world.node()
    topic = await world.topic()
    altered = await world.client.perform(table_commands.AlterTopic(topic.topic_id, {"a": "1"}))
    assert dict(altered.settings) == {"a": "1"}
    with pytest.raises(Conflict):
        await world.client.perform(table_commands.AlterTopic(topic.topic_id, {"b": "2"}, expected={}))
    altered = await world.client.perform(table_commands.AlterTopic(topic.topic_id, {"b": "2"}, expected={"a": "1"}))
    assert (await world.client.snapshot()).topics == (altered,)
    with pytest.raises(InvalidRequest):
        await world.client.perform(table_commands.AlterTopic(topic.topic_id, {"c": "3"}, shard_count=1))
    assert (await world.client.snapshot()).topics == (altered,), "settings and shards change together or not at all"
    grown = await world.client.perform(table_commands.AlterTopic(topic.topic_id, {"c": "3"}, shard_count=2))
    assert (grown.shard_count, dict(grown.settings)) == (2, {"c": "3"})
    assert await world.client.topic(topic.topic_id) == grown
    assert len((await world.client.snapshot()).shards) == 2
    assert dict(altered.settings) == {"b": "2"}
    with pytest.raises(LimitExceeded):
        await world.client.perform(table_commands.AlterTopic(topic.topic_id, {"b": "2" * 100_000}))


# Life of a segment ----------------------------------------------------------------------------------------------
async def test_a_roll_opens_the_next_segment_where_the_last_one_ends(world: MetaWorld) -> None:
    first = await world.ready_topic()
    second = await world.client.perform(table_commands.RollSegment(first.key, 100))
    assert second.key == SegmentKey(first.key.topic_id, 0, 1, 100)
    assert second.state is SegmentState.ACTIVE
    assert await world.client.perform(table_commands.RollSegment(first.key, 100)) == second, (
        "a repeated roll is answered alike"
    )
    with pytest.raises(Fenced):
        await world.client.perform(table_commands.RollSegment(first.key, 101))
    shard = (await world.client.snapshot()).shards[0]
    assert [(entry.state, entry.end_offset) for entry in shard.segments] == [
        (SegmentState.SEALING, 100),
        (SegmentState.ACTIVE, None),
    ]


async def test_a_segment_is_sealed_once(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    producers = ProducerTally(5, bytes(range(16)), 5_000, 86_400_000)
    record = SealRecord(0, 0, 10, START_MS, START_MS + 5, 1000, bytes(range(200, 216)), producers, (1,), START_MS)
    with pytest.raises(Conflict):
        await world.client.perform(table_commands.SealSegment(segment.key, record))
    await world.client.perform(table_commands.RollSegment(segment.key, 10))
    sealed = await world.client.perform(table_commands.SealSegment(segment.key, record))
    assert sealed.state is SegmentState.SEALED
    assert sealed.seal == record and sealed.leader is None and sealed.local_nodes == (1,)
    assert await world.client.perform(table_commands.SealSegment(segment.key, record)) == sealed
    with pytest.raises(Conflict):
        await world.client.perform(
            table_commands.SealSegment(segment.key, seal_record(segment.key, 10, digest=b"other"))
        )


async def test_the_isr_changes_by_compare_and_set(world: MetaWorld) -> None:
    for node_id in (1, 2, 3):
        await world.node(node_id)
    segment = await world.active(await world.topic(replication_factor=3))
    assert segment.leader is not None
    shrunk = await world.client.perform(table_commands.ProposeIsr(segment.key, (segment.leader,), segment.isr_version))
    assert shrunk.isr == (segment.leader,) and shrunk.isr_version == segment.isr_version + 1
    with pytest.raises(Conflict):
        await world.client.perform(table_commands.ProposeIsr(segment.key, tuple(segment.isr), segment.isr_version))
    with pytest.raises(InvalidRequest):
        await world.client.perform(table_commands.ProposeIsr(segment.key, (99, segment.leader), shrunk.isr_version))


async def test_a_recovery_takes_a_segment_from_its_leader_once(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    fenced = await world.client.perform(table_commands.BeginRecovery(segment.key))
    assert (fenced.fence, fenced.leader) == (1, None)
    assert await world.client.perform(table_commands.BeginRecovery(segment.key)) == fenced
    with pytest.raises(Fenced):
        await world.client.perform(table_commands.ProposeIsr(segment.key, segment.isr, segment.isr_version))


async def test_the_log_start_only_rises_and_deletes_what_is_wholly_below(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    await world.client.perform(table_commands.RollSegment(segment.key, 10))
    shard = await world.client.perform(table_commands.AdvanceLogStart(segment.key.shard_key, 9))
    assert shard.log_start_offset == 9 and len(shard.segments) == 2
    shard = await world.client.perform(table_commands.AdvanceLogStart(segment.key.shard_key, 15))
    assert shard.log_start_offset == 15
    assert [entry.epoch for entry in shard.segments] == [1], "the ACTIVE segment stays"
    assert (
        await world.client.perform(table_commands.AdvanceLogStart(segment.key.shard_key, 12))
    ).log_start_offset == 15
    (gone,) = await world.client.deleted_segments()
    assert gone.key == segment.key
    with pytest.raises(NotFound):
        await world.client.perform(table_commands.AdvanceLogStart(ShardKey(uuid4(), 0), 1))


# Remote copies --------------------------------------------------------------------------------------------------
async def test_parts_are_committed_one_after_another_and_completed_by_a_manifest(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    lock = await world.lock()
    (outcome,) = await world.client.perform(
        table_commands.CommitParts(lock, (PartCommit(segment.key, -1, part(0, 5)),))
    )
    assert the_segment(outcome).remote.commit_offset == 5
    (outcome,) = await world.client.perform(
        table_commands.CommitParts(lock, (PartCommit(segment.key, 5, part(5, 10)),))
    )
    remote = the_segment(outcome).remote
    assert remote.state is RemoteState.PARTIAL
    assert tuple(remote.parts) == (part(0, 5), part(5, 10)) and remote.size_bytes == 10
    await world.client.perform(table_commands.RollSegment(segment.key, 10))
    manifest = {"manifest_key": "data/x.manifest", "manifest_digest": b"\xff\x00", "size_bytes": 12}
    with pytest.raises(Conflict):
        await world.client.perform(table_commands.CompleteRemote(lock, segment.key, **manifest))  # type: ignore[arg-type]
    await world.client.perform(table_commands.SealSegment(segment.key, seal_record(segment.key, 10)))
    whole = await world.client.perform(
        table_commands.CompleteRemote(
            lock, segment.key, manifest_key="data/x.manifest", manifest_digest=b"\xff\x00", size_bytes=12
        )
    )
    assert whole.remote.state is RemoteState.COMPLETE and not whole.remote.parts
    assert whole.remote.manifest_digest == b"\xff\x00" and whole.remote.commit_offset == 10
    with pytest.raises(Conflict):
        await world.client.perform(
            table_commands.CompleteRemote(lock, segment.key, manifest_key="y", manifest_digest=b"1", size_bytes=12)
        )


@pytest.mark.fault("merge-chunks-killed-midway")
async def test_a_manifest_gives_way_to_another_by_compare_and_set(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    lock = await world.lock()
    await world.client.perform(table_commands.CommitParts(lock, (PartCommit(segment.key, -1, part(0, 10)),)))
    await world.client.perform(table_commands.RollSegment(segment.key, 10))
    await world.client.perform(table_commands.SealSegment(segment.key, seal_record(segment.key, 10)))
    await world.client.perform(table_commands.CompleteRemote(lock, segment.key, "m.manifest", b"old", 12))
    swap = table_commands.ReplaceManifest(lock, segment.key, b"old", "merged.manifest", b"new", 9)
    for _ in range(2):  # the answer of the first was lost
        merged = (await world.client.perform(swap)).remote
        assert (merged.manifest_key, merged.manifest_digest, merged.size_bytes) == ("merged.manifest", b"new", 9)
        assert (merged.state, merged.commit_offset) == (RemoteState.COMPLETE, 10)
        assert merged.replaced_ms == world.clock.now_ms
    with pytest.raises(Conflict):
        await world.client.perform(
            table_commands.ReplaceManifest(lock, segment.key, b"old", "late.manifest", b"late", 9)
        )
    other = Lock(lock.name, lock.holder, lock.epoch + 1, lock.expires_ms)
    with pytest.raises(Fenced):
        await world.client.perform(
            table_commands.ReplaceManifest(other, segment.key, b"new", "late.manifest", b"late", 9)
        )
    assert (await world.client.snapshot()).shards[0].segments[0].remote == merged


async def test_each_commit_of_a_bundle_is_independent(world: MetaWorld) -> None:
    await world.node()
    topic = await world.topic(shard_count=2)
    gone = await world.topic("gone")
    lock = await world.lock()
    first, second, dead = await world.active(topic, 0), await world.active(topic, 1), await world.active(gone)
    await world.client.perform(table_commands.DeleteTopic(gone.topic_id))
    outcomes = await world.client.perform(
        table_commands.CommitParts(
            lock,
            (
                PartCommit(dead.key, -1, part(0, 3)),
                PartCommit(first.key, 7, part(7, 9)),
                PartCommit(SegmentKey(uuid4(), 0, 0, 0), -1, part(0, 3)),
                PartCommit(second.key, -1, part(0, 4)),
            ),
        )
    )
    assert [type(outcome) for outcome in outcomes] == [Conflict, Conflict, NotFound, Segment]
    assert (await world.active(topic, 1)).remote.commit_offset == 4
    assert (await world.active(topic, 0)).remote.state is RemoteState.NONE


@pytest.mark.fault("two-uploaders-node-deposed")
async def test_a_deposed_uploader_is_fenced(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    old = await world.client.perform(table_commands.AcquireLock("tier/1", "a", 1_000))
    with pytest.raises(Conflict):
        await world.client.perform(table_commands.AcquireLock("tier/1", "b", 1_000))
    world.clock.now_ms += 1_000
    new = await world.client.perform(table_commands.AcquireLock("tier/1", "b", 1_000))
    assert new.epoch == old.epoch + 1
    with pytest.raises(Fenced):
        await world.client.perform(table_commands.CommitParts(old, (PartCommit(segment.key, -1, part(0, 5)),)))
    with pytest.raises(Fenced):
        await world.client.perform(table_commands.ReplaceParts(old, ()))
    with pytest.raises(Fenced):
        await world.client.perform(
            table_commands.CompleteRemote(old, segment.key, manifest_key="m", manifest_digest=b"d", size_bytes=1)
        )
    await world.client.perform(table_commands.ReleaseLock(old))
    (outcome,) = await world.client.perform(table_commands.CommitParts(new, (PartCommit(segment.key, -1, part(0, 5)),)))
    assert the_segment(outcome).remote.commit_offset == 5


async def test_a_lock_is_renewed_and_released_by_its_holder(world: MetaWorld) -> None:
    lock = await world.client.perform(table_commands.AcquireLock("tier/1", "a", 1_000))
    world.clock.now_ms += 500
    renewed = await world.client.perform(table_commands.AcquireLock("tier/1", "a", 1_000))
    assert renewed.epoch == lock.epoch and renewed.expires_ms == lock.expires_ms + 500
    await world.client.perform(table_commands.ReleaseLock(renewed))
    await world.client.perform(table_commands.ReleaseLock(renewed))
    assert (await world.client.perform(table_commands.AcquireLock("tier/1", "b", 1_000))).epoch == lock.epoch + 1
    with pytest.raises(InvalidRequest):
        await world.client.perform(table_commands.AcquireLock("tier/2", "a", 0))


@pytest.mark.fault("object-store-works-part")
async def test_a_lock_remembers_its_last_holders_and_those_it_is_asked_to(world: MetaWorld) -> None:
    async def held(holder: str, lasting: Sequence[str] = ()) -> Lock:
        lock = await world.client.perform(table_commands.AcquireLock("tier/1", holder, 1_000, tuple(lasting)))
        await world.client.perform(table_commands.ReleaseLock(lock))
        return lock

    for at in range(20):
        await held(f"life-{at}/n{at}", ("/n1", "/n3"))
    lasting = await held("new", ("/n1", "/n3", "/unknown"))
    assert lasting.earlier == ("life-1/n1", "life-3/n3", *(f"life-{at}/n{at}" for at in range(4, 20)))
    assert (await held("newer")).earlier == (*(f"life-{at}/n{at}" for at in range(5, 20)), "new")
    with pytest.raises(InvalidRequest):
        await held("greedy", [f"/{at}" for at in range(129)])
    with pytest.raises(InvalidRequest):
        await held("greedy", [""])


async def test_a_node_that_comes_back_takes_its_lock_at_once(world: MetaWorld) -> None:
    await world.node()
    earlier = await world.client.perform(table_commands.AcquireLock("tier/1", life_name(1, 1), 60_000))
    await world.node()
    later = await world.client.perform(table_commands.AcquireLock("tier/1", life_name(1, 2), 60_000))
    assert later.epoch == earlier.epoch + 1


async def test_parts_are_replaced_by_others_with_the_same_offsets(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    lock = await world.lock()
    old = [part(0, 5), part(5, 7), part(7, 9)]
    for piece in old:
        await world.client.perform(
            table_commands.CommitParts(lock, (PartCommit(segment.key, piece.base_offset, piece),))
        )
    merged = part(0, 7, "bundles/compacted")
    replacement = PartReplacement(segment.key, tuple(old[:2]), (merged,))
    (outcome,) = await world.client.perform(table_commands.ReplaceParts(lock, (replacement,)))
    assert tuple(the_segment(outcome).remote.parts) == (merged, old[2])
    (outcome,) = await world.client.perform(table_commands.ReplaceParts(lock, (replacement,)))
    assert isinstance(outcome, Segment), "a repeated replacement is answered as done"
    (outcome,) = await world.client.perform(
        table_commands.ReplaceParts(lock, (PartReplacement(segment.key, (old[1],), (part(5, 7, "x"),)),))
    )
    assert isinstance(outcome, Conflict)
    (outcome,) = await world.client.perform(
        table_commands.CommitParts(lock, (PartCommit(segment.key, 9, part(9, 12)),))
    )
    assert tuple(the_segment(outcome).remote.parts) == (merged, old[2], part(9, 12))


async def test_a_local_copy_is_kept_until_the_remote_one_is_complete(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    lock = await world.lock()
    with pytest.raises(Conflict):
        await world.client.perform(table_commands.ForgetLocal((segment.key,), 1))
    await world.client.perform(table_commands.CommitParts(lock, (PartCommit(segment.key, -1, part(0, 5)),)))
    await world.client.perform(table_commands.RollSegment(segment.key, 5))
    await world.client.perform(table_commands.SealSegment(segment.key, seal_record(segment.key, 5)))
    with pytest.raises(Conflict):
        await world.client.perform(table_commands.ForgetLocal((segment.key,), 1))
    await world.client.perform(
        table_commands.CompleteRemote(lock, segment.key, manifest_key="m", manifest_digest=b"d", size_bytes=5)
    )
    await world.client.perform(table_commands.ForgetLocal((segment.key,), 1))
    await world.client.perform(table_commands.ForgetLocal((segment.key,), 1))
    assert (await world.client.snapshot()).shards[0].segments[0].local_nodes == ()
    with pytest.raises(NotFound):
        await world.client.perform(table_commands.ForgetLocal((SegmentKey(uuid4(), 0, 0, 0),), 1))


async def test_a_trial_of_a_command_says_what_it_would_come_to_and_changes_nothing(world: MetaWorld) -> None:
    segment = await world.ready_topic()
    before = await world.client.snapshot()
    opened = await world.client.perform(table_commands.RollSegment(segment.key, 10), validate_only=True)
    assert (opened.epoch, opened.base_offset) == (1, 10)
    await world.client.perform(table_commands.DeleteTopic(segment.key.topic_id), validate_only=True)
    with pytest.raises(NotFound):
        await world.client.perform(table_commands.RollSegment(opened.key, 20), validate_only=True)
    assert await world.client.snapshot() == before
    assert await world.client.perform(table_commands.RollSegment(segment.key, 10)) == opened


async def test_producer_ids_are_never_given_twice(world: MetaWorld) -> None:
    blocks = await asyncio.gather(*(world.client.perform(table_commands.AllocateProducerIds(10)) for _ in range(20)))
    given = [producer_id for block in blocks for producer_id in range(block.first, block.end)]
    assert len(set(given)) == 200
    with pytest.raises(InvalidRequest):
        await world.client.perform(table_commands.AllocateProducerIds(0))


# Watch ----------------------------------------------------------------------------------------------------------
async def test_a_watch_delivers_every_change_in_order(world: MetaWorld) -> None:
    start = await world.client.snapshot()
    watching = asyncio.ensure_future(collect(world.client.watch(start.version), 6))
    segment = await world.ready_topic()
    lock = await world.lock()
    await world.client.perform(table_commands.CommitParts(lock, (PartCommit(segment.key, -1, part(0, 5)),)))
    await world.client.perform(table_commands.CommitParts(lock, (PartCommit(segment.key, 5, part(5, 6)),)))
    await world.client.perform(table_commands.DeleteTopic(segment.key.topic_id))
    await world.client.perform(table_commands.PurgeSegments((segment.key,)))
    sets = await asyncio.wait_for(watching, 10)
    assert [entry.version for entry in sets] == list(range(start.version + 1, start.version + 7))
    kinds = [[type(change) for change in entry.changes] for entry in sets]
    assert kinds == [
        [NodeChanged],
        [TopicChanged, ShardChanged],
        [SegmentChanged],
        [SegmentChanged],
        [TopicDeleted, SegmentChanged],
        [SegmentPurged],
    ]
    (opened,) = [change for change in sets[1].changes if isinstance(change, ShardChanged)]
    assert opened.shard.segments == (segment,)
    (second,) = sets[3].changes
    assert isinstance(second, SegmentChanged)
    assert tuple(second.segment.remote.parts) == (part(0, 5), part(5, 6))


async def test_a_watch_and_a_snapshot_come_to_the_same(world: MetaWorld) -> None:
    """A follower of a segment's changes knows all that a snapshot says, including parts."""
    segment = await world.ready_topic()
    lock = await world.lock()
    version = (await world.client.snapshot()).version
    pieces = [part(offset, offset + 1) for offset in range(20)]
    for piece in pieces:
        await world.client.perform(
            table_commands.CommitParts(lock, (PartCommit(segment.key, piece.base_offset, piece),))
        )
    await world.client.perform(
        table_commands.ReplaceParts(lock, (PartReplacement(segment.key, tuple(pieces[3:6]), (part(3, 6, "merged"),)),))
    )
    await world.client.perform(table_commands.CommitParts(lock, (PartCommit(segment.key, 20, part(20, 30)),)))
    sets = await asyncio.wait_for(collect(world.client.watch(version), 22), 10)
    (last,) = sets[-1].changes
    assert isinstance(last, SegmentChanged)
    assert last.segment == (await world.client.snapshot()).shards[0].segments[0]
    assert len(last.segment.remote.parts) == 19
    for index, change_set in enumerate(sets[:20]):
        (change,) = change_set.changes
        assert isinstance(change, SegmentChanged)
        assert tuple(change.segment.remote.parts) == tuple(pieces[: index + 1])


async def test_a_watch_from_a_version_that_never_was_asks_for_a_snapshot(world: MetaWorld) -> None:
    version = (await world.client.snapshot()).version
    with pytest.raises(NotFound):
        await asyncio.wait_for(collect(world.client.watch(version + 1), 1), 10)


@pytest.mark.parametrize("kind", ["in-process/memory", "http/memory"])
async def test_a_watcher_that_falls_behind_must_take_a_snapshot(kind: str, tmp_path: Path) -> None:
    async with running(kind, tmp_path, max_history_changes=8) as world:
        version = (await world.client.snapshot()).version
        for node_id in range(20):
            await world.node(node_id)
        with pytest.raises(NotFound):
            await asyncio.wait_for(collect(world.client.watch(version), 1), 10)
        now = (await world.client.snapshot()).version
        assert len(await asyncio.wait_for(collect(world.client.watch(now - 8), 8), 10)) == 8


# Rights ---------------------------------------------------------------------------------------------------------
def a_rule(name: str) -> Rule:
    return Rule(Resource(ResourceType.TOPIC, name), "User:alice", "*", Operation.READ, Permission.ALLOW)


async def test_a_node_gets_rights_in_its_first_load_and_in_order_by_its_watch(world: MetaWorld) -> None:
    await world.node()
    client, rule = world.client, a_rule("orders")
    keys = ScramCredential(b"salt", b"s" * 32, b"k" * 32, 4_096)
    user = UserCredential("alice", ScramMechanism.SCRAM_SHA_256, keys)
    before = (await client.snapshot()).version
    assert await client.perform(CreateRules((rule,))) == (rule,)
    assert await client.perform(AlterCredentials(put=(user,))) == (None,)
    loaded = await client.snapshot()
    assert (loaded.rules, loaded.credentials) == ((rule,), (user,))
    assert await client.perform(DeleteRules((RuleFilter(name="orders"),))) == (DeletedRules((rule,)),)
    assert await client.perform(AlterCredentials((user.name,))) == (None,)
    sets = await collect(client.watch(before), 4)
    assert [change for one in sets for change in one.changes] == [
        RuleCreated(rule),
        CredentialChanged(user),
        RuleDeleted(rule),
        CredentialDeleted(user.name),
    ]
    emptied = await client.snapshot()
    assert (emptied.rules, emptied.credentials) == ((), ())


async def test_a_node_gets_quotas_in_its_first_load_and_in_order_by_its_watch(world: MetaWorld) -> None:
    await world.node()
    client, entity = world.client, QuotaEntity("alice", DEFAULT)
    key, wrong = QuotaKey.REQUEST_PERCENTAGE, QuotaAlteration(QuotaEntity(), ())
    before = (await client.snapshot()).version
    set_it = QuotaAlteration(entity, (QuotaChange(key, 12.5),))
    kept, refused = await client.perform(AlterQuotas((set_it, wrong)))
    assert kept is None and isinstance(refused, InvalidRequest)
    quotas = EntityQuotas(entity, QuotaLimits(request_percentage=12.5))
    assert (await client.snapshot()).quotas == (quotas,)
    assert await client.perform(AlterQuotas((QuotaAlteration(entity, (QuotaChange(key, None),)),))) == (None,)
    sets = await collect(client.watch(before), 2)
    assert [change for one in sets for change in one.changes] == [QuotasChanged(quotas), QuotasDeleted(entity)]
    assert (await client.snapshot()).quotas == ()


async def test_thousands_of_rules_are_made_and_deleted_in_one_command_each(world: MetaWorld) -> None:
    rules = tuple(a_rule(f"topic-{number}") for number in range(10_000))
    assert await world.client.perform(CreateRules(rules)) == rules
    assert set((await world.client.snapshot()).rules) == set(rules)
    (deleted,) = await world.client.perform(DeleteRules((RuleFilter(),)))
    assert isinstance(deleted, DeletedRules) and set(deleted.rules) == set(rules)
    assert (await world.client.snapshot()).rules == ()


# Together -------------------------------------------------------------------------------------------------------
async def test_of_many_concurrent_creations_one_wins(world: MetaWorld) -> None:
    await world.node()
    outcomes = await asyncio.gather(*(world.topic("same") for _ in range(10)), return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 9


async def test_a_large_snapshot_comes_whole(world: MetaWorld) -> None:
    await world.node()
    await asyncio.gather(*(world.topic(f"topic-{number}", shard_count=3) for number in range(200)))
    snapshot = await world.client.snapshot()
    assert snapshot == await world.service.snapshot()
    assert len(snapshot.shards) == 600


async def test_a_stopped_service_is_unavailable(world: MetaWorld) -> None:
    await world.node()
    await world.service.close()
    with pytest.raises(Unavailable):
        await world.topic()
    with pytest.raises(Unavailable):
        await world.client.snapshot()

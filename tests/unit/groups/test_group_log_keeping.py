"""The group log itself: snapshots bound the reload, trims are safe, damage is not guessed over."""

from __future__ import annotations

import pytest

from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.formats.groups.group_log import GroupEntry, encode_entry
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.errors import Unavailable
from stratalog.model.groups.group import GroupError
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.log import LogLimits
from stratalog_node.groups.requests import TopicShard
from support.group_node import GroupNode, committing, joining, syncing, task
from support.memory_shard import MemoryShard
from support.waiting import eventually

SMALL = CoordinatorLimits(log=LogLimits(snapshot_min_bytes=4_000, chunk_entries=3))


async def commit_many(node: GroupNode, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        errors = await node.groups.commit_offsets(committing(f"g{n % 7}", ("orders", n % 4, n)))
        assert errors == [GroupError.NONE]


async def everything(node: GroupNode) -> dict[tuple[str, str, int], int]:
    found = {}
    for n in range(7):
        fetched = await node.groups.fetch_offsets(f"g{n}", None)
        for topic, shard, committed in fetched.offsets:
            assert committed is not None
            found[(f"g{n}", topic, shard)] = committed.offset
    return found


def newest(count: int) -> dict[tuple[str, str, int], int]:
    return {(f"g{n % 7}", "orders", n % 4): n for n in range(count)}


async def test_the_log_is_trimmed_behind_a_snapshot_and_read_back_whole() -> None:
    node = await GroupNode(limits=SMALL).start()
    joined = await node.groups.join(joining("g0", "a", session_timeout_ms=1_000_000))
    await node.groups.sync(syncing("g0", joined.member_id, 1, **{joined.member_id: b"work"}))
    await node.groups.commit_offsets(
        committing("g0", ("clicks", 0, 99), member_id=joined.member_id, generation=joined.generation)
    )
    for n in range(600):
        if n % 7:
            await node.groups.commit_offsets(committing(f"g{n % 7}", ("orders", n % 4, n)))
    await node.settle()
    assert node.groups.stats.snapshots >= 2
    assert node.trims and all(shard.log_start_offset > 0 for shard in node.shards.values())
    assert all(shard.size_bytes < 20_000 for shard in node.shards.values()), "the log grows without bound"
    expected = await everything(node)
    await node.kill()
    assert await everything(node) == expected
    assert expected[("g0", "clicks", 0)] == 99
    assert node.groups.stats.incomplete_loads == 0
    assert (await node.groups.sync(syncing("g0", joined.member_id, 1))).assignment == b"work"


async def test_commits_continue_during_a_snapshot_and_are_not_overtaken_by_it() -> None:
    limits = CoordinatorLimits(log=LogLimits(snapshot_min_bytes=3_000, chunk_entries=1))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    await commit_many(node, 400)
    await node.settle()
    assert node.groups.stats.snapshots > 0
    await node.kill()
    assert await everything(node) == newest(400)
    assert node.groups.stats.incomplete_loads == 0


@pytest.mark.parametrize("crash_after", range(25, 45))
async def test_a_kill_in_the_middle_of_a_snapshot_loses_nothing(crash_after: int) -> None:
    limits = CoordinatorLimits(log=LogLimits(snapshot_min_bytes=3_000, chunk_entries=1))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    await commit_many(node, crash_after)
    await node.kill()
    assert await everything(node) == newest(crash_after)
    await commit_many(node, 60, crash_after)
    await node.kill()
    assert await everything(node) == newest(crash_after + 60)
    assert node.groups.stats.incomplete_loads == 0


async def test_a_snapshot_that_fails_is_given_up_and_nothing_is_trimmed() -> None:
    limits = CoordinatorLimits(log=LogLimits(snapshot_min_bytes=3_000, chunk_entries=1))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    shard = node.shard_of("g0")
    count = 0
    while node.groups._hosting._shards[0].log._snapshot is None:  # type: ignore[union-attr]
        await commit_many(node, 1, count)
        count += 1
    shard.fail(Unavailable("no room"))
    await node.settle()
    assert not node.trims
    await node.kill()
    assert await everything(node) == newest(count)


@pytest.mark.fault("power-fails-right-group")
async def test_a_snapshot_is_on_the_disk_before_anything_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await GroupNode(limits=SMALL, offsets_topic_num_partitions=1).start()
    shard = node.shard_of("g0")
    shard.flush_error = Unavailable("the disk is away")
    await commit_many(node, 100)
    await node.settle()
    assert node.groups.stats.snapshots and not node.trims
    shard.flush_error = None
    durable: list[int] = []
    trim = shard.trim
    monkeypatch.setattr(shard, "trim", lambda offset: (durable.append(shard.durable_end), trim(offset)))
    await commit_many(node, 100, 100)
    await node.settle()
    assert node.trims and all(end > offset for end, (_, offset) in zip(durable, node.trims, strict=True))


@pytest.mark.fault("node-killed-commits-start")
async def test_a_short_log_that_is_opened_again_and_again_does_not_grow_for_ever() -> None:
    limits = CoordinatorLimits(log=LogLimits(most_openings=4))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    await commit_many(node, 10)
    for _ in range(20):
        await node.kill()
        await node.settle()
    shard = node.shard_of("g0")
    assert node.trims and len(shard.batches) < 10, "each opening stays, and is a segment after a kill"
    assert await everything(node) == newest(10)
    assert node.groups.stats.incomplete_loads == 0


async def test_a_log_whose_beginning_is_missing_is_reported() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    await commit_many(node, 10)
    shard = node.shard_of("g0")
    shard.trim(shard.end_offset - 2)
    await node.kill()
    assert node.groups.stats.incomplete_loads == 1


@pytest.mark.fault("member-sends-name-group")
async def test_a_damaged_log_is_not_served_as_if_it_were_empty() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    await commit_many(node, 10)
    shard = node.shard_of("g0")
    await node.groups.stop()
    shard.damage(3)
    node.groups = node._coordinator()
    await node.groups.start()
    await node.settle()
    fetched = await node.groups.fetch_offsets("g0", [TopicShard("orders", 0)])
    assert fetched.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS, "offsets that cannot be read are not 'none'"
    await node.groups.stop()


@pytest.mark.fault("member-sends-name-group")
async def test_records_of_a_client_in_the_internal_topic_do_no_harm() -> None:
    node = await GroupNode(offsets_topic_num_partitions=1).start()
    await commit_many(node, 10)
    key, value = encode_entry(GroupEntry("g0", None, -1))
    for record in (Record(NEXT_OFFSET, 0, None, b"junk"), Record(NEXT_OFFSET, 0, key, value)):
        await node.shard_of("g0").append([encode_batch([record])])
    await node.kill()
    assert await everything(node) == newest(10)
    assert node.groups.stats.foreign_batches == 2


async def test_what_waits_to_be_appended_is_bounded() -> None:
    limits = CoordinatorLimits(log=LogLimits(max_pending_bytes=2_000))
    node = await GroupNode(limits=limits, offsets_topic_num_partitions=1).start()
    shard = node.shard_of("g")
    shard.hold()
    commits = [task(node.groups.commit_offsets(committing(f"g{n}", ("orders", 0, n)))) for n in range(60)]
    await node.settle()
    refused = [commit for commit in commits if commit.done()]
    assert refused and all(commit.result() == [GroupError.COORDINATOR_NOT_AVAILABLE] for commit in refused)
    shard.release()
    outcomes = [await commit for commit in commits]
    assert [GroupError.NONE] in outcomes


async def test_each_shard_has_its_own_log() -> None:
    node = await GroupNode(offsets_topic_num_partitions=4).start()
    for n in range(40):
        await node.groups.commit_offsets(committing(f"group-{n}", ("orders", 0, n)))
    used = [shard for shard in node.shards.values() if shard.appends > 1]
    assert len(used) == 4
    assert all(isinstance(shard, MemoryShard) for shard in used)


async def test_a_node_that_lost_a_race_for_the_topic_uses_the_one_that_is_there() -> None:
    node = GroupNode()
    await node.perform(
        CreateTopic("__consumer_offsets", shard_count=3, replication_factor=1, settings={}, is_internal=True)
    )
    await node.groups.start()
    await eventually(lambda: node.groups.stats.shards_loaded == 3)
    await node.groups.ensure_ready()
    key = node.groups.shard_key_of("g")
    assert key is not None and key.shard < 3

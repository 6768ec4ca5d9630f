"""The history of changes is bounded, and its watchers hold nothing but a version."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.meta_api.watch_lines import RECORDS_PER_LINE
from stratalog.model.commands.table_commands import AlterTopic, CreateTopic, RegisterNode
from stratalog.model.errors import NotFound
from stratalog.model.metadata import ChangeSet, Node, NodeChanged, NodeInfo, TopicChanged
from stratalog_meta import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_meta.watch import CHANGES_TOGETHER, ChangeHistory
from support.meta_worlds import HandClock, collect


def change_set(version: int, size: int = 1) -> ChangeSet:
    return ChangeSet(version, tuple(NodeChanged(Node(number, "s", "h", 1)) for number in range(size)))


async def test_the_history_keeps_the_newest_changes_within_its_bound() -> None:
    history = ChangeHistory(0, max_changes=10)
    for version in range(1, 6):
        history.publish([change_set(version, size=4)])
    assert [entry.version for entry in await collect(history.watch(3), 2)] == [4, 5]
    with pytest.raises(NotFound, match="snapshot"):
        await collect(history.watch(2), 1)


async def test_a_set_larger_than_the_bound_is_kept_while_it_is_the_newest() -> None:
    history = ChangeHistory(0, max_changes=10)
    history.publish([change_set(1)])
    history.publish([change_set(2, size=100)])
    assert len((await collect(history.watch(1), 1))[0].changes) == 100
    history.publish([change_set(3)])
    with pytest.raises(NotFound):
        await collect(history.watch(1), 1)


async def test_a_watcher_that_pauses_too_long_learns_it_when_it_comes_back() -> None:
    history = ChangeHistory(0, max_changes=4)
    watch = history.watch(0)
    history.publish([change_set(1)])
    assert (await anext(watch)).version == 1
    for version in range(2, 12):
        history.publish([change_set(version)])
    with pytest.raises(NotFound):
        await anext(watch)


async def test_many_watchers_wake_on_one_change() -> None:
    history = ChangeHistory(5)
    watching = [asyncio.ensure_future(collect(history.watch(5), 1)) for _ in range(20)]
    await asyncio.sleep(0)
    history.publish([change_set(6)])
    assert all(sets[0].version == 6 for sets in await asyncio.gather(*watching))


async def test_sets_that_became_durable_together_reach_watchers_as_one_set() -> None:
    history = ChangeHistory(0)
    sets = [change_set(version, size=2) for version in range(1, 101)]
    history.publish(sets)
    (together,) = await collect(history.watch(0), 1)
    assert together.version == 100 and together.changes == tuple(change for one in sets for change in one.changes)
    assert history.version == 100


async def test_sets_are_merged_up_to_what_one_line_of_a_watch_holds() -> None:
    assert CHANGES_TOGETHER == RECORDS_PER_LINE
    history = ChangeHistory(0)
    history.publish([change_set(1, size=CHANGES_TOGETHER), *(change_set(version) for version in range(2, 2_002))])
    count = 1 + -(-2_000 // CHANGES_TOGETHER)
    sets = await collect(history.watch(0), count)
    assert all(len(one.changes) <= CHANGES_TOGETHER for one in sets) and sets[-1].version == 2_001
    assert sum(len(one.changes) for one in sets) == CHANGES_TOGETHER + 2_000


async def test_a_watcher_whose_version_lies_inside_a_merged_set_gets_only_what_follows_it() -> None:
    history = ChangeHistory(0)
    sets = [change_set(version, size=2) for version in range(1, 11)]
    history.publish(sets)
    for known in range(10):
        (rest,) = await collect(history.watch(known), 1)
        assert rest.version == 10
        assert rest.changes == tuple(change for one in sets[known:] for change in one.changes)


@pytest.mark.fault("snapshot-inside-a-turn")
async def test_a_watch_from_a_snapshot_inside_a_turn_reports_nothing_that_the_snapshot_has() -> None:
    """It told the changes before the snapshot once more, so that a node's view went back and forth again."""
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    try:
        await service.perform(RegisterNode(NodeInfo(1, "storage-1", "127.0.0.1", 9092)))
        topic = await service.perform(CreateTopic("orders", 1, 1, {}))
        values = [str(value) for value in range(1_000, 6_000, 1_000)]
        *alters, last = [AlterTopic(topic.topic_id, {"retention.ms": value}) for value in values]
        asked = [asyncio.ensure_future(service.perform(alter)) for alter in alters[:2]]
        snapshot_asked = asyncio.ensure_future(service.snapshot())
        asked += [asyncio.ensure_future(service.perform(alter)) for alter in alters[2:]]
        await asyncio.gather(*asked)
        snapshot = await snapshot_asked
        assert snapshot.topics[0].settings == alters[-1].settings, "it has all that was written in its turn"
        await service.perform(last)
        for known, expected in ((snapshot.version, [last]), (snapshot.version - 2, [*alters[2:], last])):
            sets = await collect(service.watch(known), 1 + (known < snapshot.version))
            changes = [change for one in sets for change in one.changes]
            told = [change.topic.settings for change in changes if isinstance(change, TopicChanged)]
            assert told == [alter.settings for alter in expected]
    finally:
        await service.close()


async def test_a_merged_set_leaves_the_history_whole() -> None:
    history = ChangeHistory(0, max_changes=10)
    history.publish([change_set(version) for version in range(1, 9)])
    history.publish([change_set(version) for version in range(9, 13)])
    assert [one.version for one in await collect(history.watch(8), 1)] == [12]
    for known in (0, 4, 7):
        with pytest.raises(NotFound, match="snapshot"):
            await collect(history.watch(known), 1)

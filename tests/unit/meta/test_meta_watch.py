"""The history of changes is bounded, and its watchers hold nothing but a version."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.model.errors import NotFound
from stratalog.model.metadata import ChangeSet, Node, NodeChanged
from stratalog_meta.watch import ChangeHistory
from support.meta_worlds import collect


def change_set(version: int, size: int = 1) -> ChangeSet:
    return ChangeSet(version, tuple(NodeChanged(Node(number, "s", "h", 1)) for number in range(size)))


async def test_the_history_keeps_the_newest_changes_within_its_bound() -> None:
    history = ChangeHistory(0, max_changes=10)
    for version in range(1, 6):
        history.publish(change_set(version, size=4))
    assert [entry.version for entry in await collect(history.watch(3), 2)] == [4, 5]
    with pytest.raises(NotFound, match="snapshot"):
        await collect(history.watch(2), 1)


async def test_a_set_larger_than_the_bound_is_kept_while_it_is_the_newest() -> None:
    history = ChangeHistory(0, max_changes=10)
    history.publish(change_set(1))
    history.publish(change_set(2, size=100))
    assert len((await collect(history.watch(1), 1))[0].changes) == 100
    history.publish(change_set(3))
    with pytest.raises(NotFound):
        await collect(history.watch(1), 1)


async def test_a_watcher_that_pauses_too_long_learns_it_when_it_comes_back() -> None:
    history = ChangeHistory(0, max_changes=4)
    watch = history.watch(0)
    history.publish(change_set(1))
    assert (await anext(watch)).version == 1
    for version in range(2, 12):
        history.publish(change_set(version))
    with pytest.raises(NotFound):
        await anext(watch)


async def test_many_watchers_wake_on_one_change() -> None:
    history = ChangeHistory(5)
    watching = [asyncio.ensure_future(collect(history.watch(5), 1)) for _ in range(20)]
    await asyncio.sleep(0)
    history.publish(change_set(6))
    assert all(sets[0].version == 6 for sets in await asyncio.gather(*watching))

"""A topic of many shards is deleted: its copies go in a few turns of the disk, and others get theirs in between."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from stratalog.model.commands.table_commands import CreateTopic, DeleteTopic
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.fences import FenceBook
from stratalog_node.replication.replica_copy import ReplicaCopy
from stratalog_node.replication.unfollowed_copies import UnfollowedCopies
from support.node_cluster import NodeCluster
from support.waiting import eventually

MANY = 1_000


def key_of(shard: int) -> SegmentKey:
    return SegmentKey(uuid.UUID(int=1), shard, 0, 0)


class CopyOnDisk:
    """What is removed of a followed copy: its file."""

    def __init__(self, folder: Path, shard: int) -> None:
        self.key = key_of(shard)
        self.path = folder / f"{shard}.log"
        self.path.touch()

    def remove(self) -> None:
        self.path.unlink()

    @property
    def as_copy(self) -> ReplicaCopy:
        return cast(ReplicaCopy, self)  # nothing else of it is asked for here


class Disk:
    """One thing at a time, in the order in which it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.fences = FenceBook(folder / "fences.json")
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.turns: list[Callable[[], object]] = []
        self.tasks: set[asyncio.Task[object]] = set()
        self._lock = asyncio.Lock()
        self.left = UnfollowedCopies(
            self.on_disk,
            self.on_disk,
            lambda work: self.tasks.add(asyncio.ensure_future(work)),
            self.fences,
            self.checkpoints,
            self.gather,
        )
        self.is_gathered = asyncio.Event()
        self.is_gathered.set()

    async def gather(self) -> None:
        await self.is_gathered.wait()

    async def on_disk(self, work: Callable[[], object]) -> object:
        async with self._lock:
            self.turns.append(work)
            return await asyncio.to_thread(work)

    async def rest(self) -> None:
        await asyncio.gather(*self.tasks)


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.is_gathered.set()
    await made.rest()
    made.checkpoints.close()


async def test_a_thousand_copies_that_go_leave_room_for_what_others_wait_for(disk: Disk, tmp_path: Path) -> None:
    copies = [CopyOnDisk(tmp_path, shard) for shard in range(MANY)]
    for copy in copies:
        disk.left.forget(copy.key)
        disk.left.remove(copy.as_copy)
    await asyncio.sleep(0)  # the work begins, and takes the disk

    def promise() -> None:
        disk.fences.promise({key_of(MANY): 7})

    await disk.on_disk(promise)
    assert disk.turns.index(promise) <= 1  # it stood behind one turn, however many are due
    await disk.rest()
    assert not any(copy.path.exists() for copy in copies)
    assert disk.fences.promised(key_of(MANY)) == 7


def note_writes_of_fences(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many fences each write of fences.json has, from now on."""
    writes: list[int] = []
    write = FenceBook._write

    def note_write(book: FenceBook, fences: dict[SegmentKey, int], seen: dict[SegmentKey, int]) -> None:
        writes.append(len(fences))
        write(book, fences, seen)

    monkeypatch.setattr(FenceBook, "_write", note_write)
    return writes


async def test_what_was_promised_of_them_is_forgotten_with_one_write(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in range(20):
        disk.fences.promise({key_of(shard): 3})
    writes = note_writes_of_fences(monkeypatch)
    for shard in range(19):
        disk.left.forget(key_of(shard))
    await disk.rest()
    assert writes == [1]
    assert [FenceBook(tmp_path / "fences.json").promised(key_of(shard)) for shard in (0, 18, 19)] == [0, 0, 3]


@pytest.mark.fault("node-leads-thousands-shards")
async def test_segments_that_are_sealed_one_by_one_share_the_rewrites_of_the_list(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.fences.promise({key_of(shard): 3 for shard in range(50)})
    writes = note_writes_of_fences(monkeypatch)
    disk.is_gathered.clear()
    for shard in range(49):
        disk.left.forget(key_of(shard))
        await disk.on_disk(lambda: None)  # the disk is free for each of them
    assert len(writes) == 1
    disk.is_gathered.set()
    await disk.rest()
    assert writes[1:] == [1]


async def test_a_stop_forgets_what_is_due(disk: Disk, tmp_path: Path) -> None:
    disk.fences.promise({key_of(shard): 3 for shard in range(3)})
    disk.is_gathered.clear()
    disk.left.forget(key_of(0))
    await eventually(lambda: disk.fences.promised(key_of(0)) == 0)
    disk.left.forget(key_of(1))
    for task in disk.tasks:
        task.cancel()
    await asyncio.gather(*disk.tasks, return_exceptions=True)
    disk.tasks.clear()
    await disk.left.close()
    assert [FenceBook(tmp_path / "fences.json").promised(key_of(shard)) for shard in range(3)] == [0, 0, 3]


async def test_a_stop_waits_for_the_thread_of_work_that_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_at_work, is_beside_it, may_end = threading.Event(), threading.Event(), threading.Event()
    fences = FenceBook(tmp_path / "fences.json")
    fences.promise({key_of(0): 3})
    forget = fences.forget

    def held(keys: Iterable[SegmentKey]) -> None:
        (is_beside_it if is_at_work.is_set() else is_at_work).set()
        assert may_end.wait(30)
        forget(keys)

    monkeypatch.setattr(fences, "forget", held)
    tasks: list[asyncio.Task[None]] = []
    left = UnfollowedCopies(
        asyncio.to_thread,
        asyncio.to_thread,
        lambda work: tasks.append(asyncio.ensure_future(work)),  # type: ignore[arg-type]
        fences,
        Checkpoints(tmp_path / "checkpoints"),
    )
    left.forget(key_of(0))
    await asyncio.to_thread(is_at_work.wait, 30)
    (work,) = tasks
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    stop = asyncio.ensure_future(left.close())
    assert not await asyncio.to_thread(is_beside_it.wait, 0.2)
    may_end.set()
    await stop
    assert FenceBook(tmp_path / "fences.json").promised(key_of(0)) == 0


async def test_nothing_is_due_any_more_for_a_segment_that_is_followed_again(disk: Disk, tmp_path: Path) -> None:
    copies = [CopyOnDisk(tmp_path, shard) for shard in range(MANY)]
    for copy in copies:
        disk.left.forget(copy.key)
        disk.left.remove(copy.as_copy)
    last = copies[-1]
    await disk.left.settle(last.key)
    assert not last.path.exists()
    last.path.touch()  # the copy that is made again
    await disk.on_disk(lambda: disk.fences.promise({last.key: 9}))
    await disk.rest()
    assert last.path.exists()
    assert disk.fences.promised(last.key) == 9


async def test_a_file_that_cannot_be_removed_keeps_no_other_from_going(disk: Disk, tmp_path: Path) -> None:
    copies = [CopyOnDisk(tmp_path, shard) for shard in range(3)]
    copies[1].path.unlink()
    copies[1].path.mkdir()
    for copy in copies:
        disk.left.remove(copy.as_copy)
    await disk.rest()
    assert [copy.path.exists() for copy in copies] == [False, True, False]


async def test_files_of_a_deleted_topic_go_from_all_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        topic = await cluster.meta.service.perform(CreateTopic("flights", 12, 2))
        keys = [ShardKey(topic.topic_id, number) for number in range(12)]
        await eventually(lambda: all(cluster.led(key) is not None for key in keys))
        for key in keys:
            await cluster.append(key, b"a")
        followed = [replica for node in cluster.nodes.values() for replica in node.following.replicas.values()]
        files = [replica.copy.file.path for replica in followed if replica.copy.key.topic_id == topic.topic_id]
        await eventually(lambda: len(files) == 12 and all(path.exists() for path in files))
        await cluster.meta.service.perform(DeleteTopic(topic.topic_id))
        await eventually(lambda: not any(path.exists() for path in files))

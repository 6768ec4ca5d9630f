"""Concurrency of work on the files of followed segments: flushes beside each other, proofs and a copy's own work in
turns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from stratalog.model.ids import SegmentKey
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.replication.copy_scheduler import CopyScheduler


def copy_of(shard: int, size_bytes: int = 100) -> Any:
    file = SimpleNamespace(size_bytes=size_bytes, pin=lambda: None, unpin=lambda: None)
    return SimpleNamespace(key=SegmentKey(UUID(int=1), shard, 0, 0), file=file)


@pytest.fixture
async def turns() -> AsyncIterator[CopyScheduler]:
    threads = DiskThreads()
    yield CopyScheduler(threads)
    threads.close()


class Meeting:
    """Work that ends once `expected` of it are at work at the same time."""

    def __init__(self, expected: int) -> None:
        self._barrier = threading.Barrier(expected)

    def __call__(self) -> None:
        self._barrier.wait(30)


class Held:
    """Work that a thread does until it is let go."""

    def __init__(self) -> None:
        self.is_at_work = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.is_at_work.set()
        assert self.may_end.wait(30)


def noting(done: list[str], name: str) -> Callable[[], None]:
    return lambda: done.append(name)


async def test_proofs_of_several_copies_are_made_one_at_a_time(turns: CopyScheduler) -> None:
    """Each of them takes the interpreter from the event loop."""
    at_work, most = 0, 0
    changing = threading.Lock()

    def prove() -> None:
        nonlocal at_work, most
        with changing:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.001)  # gives the others a chance to begin
        with changing:
            at_work -= 1

    await asyncio.gather(*(turns.settle(copy_of(shard), prove, reads_all=True) for shard in range(20)))
    assert most == 1


async def test_files_come_and_go_beside_proofs(turns: CopyScheduler) -> None:
    """A first batch does not wait for thousands of proofs."""
    meeting = Meeting(3)
    await asyncio.gather(
        turns.settle(copy_of(1), meeting, reads_all=True),
        turns.settle(copy_of(2), meeting),
        turns.change(copy_of(3), meeting, is_urgent=True),
    )


async def test_work_on_one_copy_is_done_in_the_order_in_which_it_was_asked_for(turns: CopyScheduler) -> None:
    """Also where the copy object is another: the segment was let go of, and is followed again."""
    proof, done = Held(), list[str]()
    first = asyncio.ensure_future(turns.settle(copy_of(1), proof, reads_all=True))
    await asyncio.to_thread(proof.is_at_work.wait, 30)
    rest = [
        asyncio.ensure_future(turns.change(copy_of(1), noting(done, "opened"), is_urgent=True)),
        asyncio.ensure_future(turns.settle(copy_of(1), noting(done, "flushed"))),
    ]
    await turns.settle(copy_of(2), noting(done, "another"))
    assert done == ["another"]
    proof.may_end.set()
    await asyncio.gather(first, *rest)
    assert done == ["another", "opened", "flushed"]


async def test_large_proofs_are_made_one_at_a_time(turns: CopyScheduler) -> None:
    large, done = Held(), list[str]()
    first = asyncio.ensure_future(turns.settle(copy_of(1, 64 << 20), large, reads_all=True))
    await asyncio.to_thread(large.is_at_work.wait, 30)
    second = asyncio.ensure_future(turns.settle(copy_of(2, 64 << 20), noting(done, "large"), reads_all=True))
    await turns.settle(copy_of(3), noting(done, "small"), reads_all=True)
    await turns.settle(copy_of(4, 64 << 20), noting(done, "flush"))
    assert done == ["small", "flush"]
    large.may_end.set()
    await asyncio.gather(first, second)
    assert done[-1] == "large"


@pytest.mark.fault("flushes-slow-many-seals")
async def test_what_clients_wait_for_waits_for_no_flush_behind(turns: CopyScheduler) -> None:
    """After a failover each shard accepts writes once its seal is written. With slow flushes the seals waited for the
    periodic flushes and the index blocks of all other copies, for minutes."""
    held = Held()
    behind = [asyncio.ensure_future(turns.settle_behind(copy_of(shard), held)) for shard in range(100)]
    await asyncio.to_thread(held.is_at_work.wait, 30)
    waited_for = copy_of(99)  # its own periodic flush has not begun
    await turns.settle(waited_for, lambda: None)
    await turns.settle(waited_for, lambda: None, reads_all=True)
    assert not any(one.done() for one in behind)
    held.may_end.set()
    await asyncio.gather(*behind)


@pytest.mark.fault("flushes-slow-many-seals")
async def test_flushes_of_many_copies_wait_for_the_disk_side_by_side(turns: CopyScheduler) -> None:
    meeting = Meeting(64)
    await asyncio.gather(*(turns.settle(copy_of(shard), meeting) for shard in range(64)))


@pytest.mark.fault("flushes-slow-many-seals")
async def test_proofs_have_threads_though_as_many_flushes_as_there_may_be_hang(turns: CopyScheduler) -> None:
    held = Held()
    flushes = [asyncio.ensure_future(turns.settle(copy_of(shard), held)) for shard in range(200)]
    flushes += [asyncio.ensure_future(turns.settle_behind(copy_of(shard), held)) for shard in range(200, 300)]
    await asyncio.to_thread(held.is_at_work.wait, 30)
    await turns.settle(copy_of(300), lambda: None, reads_all=True)
    held.may_end.set()
    await asyncio.gather(*flushes)


async def test_files_come_and_go_one_at_a_time_those_that_clients_wait_for_first(turns: CopyScheduler) -> None:
    held, done = Held(), list[str]()
    tasks = [asyncio.ensure_future(turns.in_turn(held))]
    await asyncio.to_thread(held.is_at_work.wait, 30)
    tasks += [
        asyncio.ensure_future(turns.in_turn(noting(done, "checkpoint"))),
        asyncio.ensure_future(turns.at_once(noting(done, "files"))),
        asyncio.ensure_future(turns.change(copy_of(1), noting(done, "opened"), is_urgent=True)),
    ]
    await asyncio.sleep(0)
    held.may_end.set()
    await asyncio.gather(*tasks)
    assert done == ["files", "opened", "checkpoint"]

"""A node dies that led many segments: what another promises of them is on the disk with a few writes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.fences import FenceBook
from stratalog_node.replication.promises import Promises
from support.waiting import eventually

MANY = 2_000


def key_of(shard: int) -> SegmentKey:
    return SegmentKey(uuid.UUID(int=1), shard, 0, 0)


class Counted(FenceBook):
    """Counts its writes; the one with the number `failing` fails."""

    def __init__(self, path: Path, failing: int = 0) -> None:
        super().__init__(path)
        self.writes = 0
        self.failing = failing

    def _write(self, fences: dict[SegmentKey, int], seen: dict[SegmentKey, int]) -> None:
        self.writes += 1
        if self.writes == self.failing:
            raise Unavailable("the disk does not answer")
        super()._write(fences, seen)


class SlowThread:
    """Runs what it is given once it is let."""

    def __init__(self) -> None:
        self.is_let = asyncio.Event()

    async def run(self, work: Callable[[], None]) -> None:
        await self.is_let.wait()
        await asyncio.to_thread(work)


@pytest.mark.fault("replica-disk-busy-long")
async def test_promises_that_wait_for_the_disk_are_written_together(tmp_path: Path) -> None:
    book, thread = Counted(tmp_path / "fences.json"), SlowThread()
    promises = Promises(thread.run, book)
    waiting = [asyncio.ensure_future(promises.write(key_of(shard), shard + 1)) for shard in range(MANY)]
    await asyncio.sleep(0)  # the first one is being written
    thread.is_let.set()
    await asyncio.gather(*waiting)
    assert book.writes == 2, "one, and all that came while it was written"
    found = FenceBook(tmp_path / "fences.json")
    assert [found.promised(key_of(shard)) for shard in range(MANY)] == list(range(1, MANY + 1))


async def test_of_two_promises_of_a_segment_the_higher_one_counts(tmp_path: Path) -> None:
    book = Counted(tmp_path / "fences.json")
    promises = Promises(asyncio.to_thread, book)
    await asyncio.gather(promises.write(key_of(0), 7), promises.write(key_of(0), 3))
    await promises.write(key_of(0), 5)
    assert FenceBook(tmp_path / "fences.json").promised(key_of(0)) == 7


async def test_a_failed_write_is_reported_to_all_and_the_next_promise_tries_again(tmp_path: Path) -> None:
    book, thread = Counted(tmp_path / "fences.json", failing=2), SlowThread()
    promises = Promises(thread.run, book)
    waiting = [asyncio.ensure_future(promises.write(key_of(shard), 2)) for shard in range(4)]
    await asyncio.sleep(0)
    thread.is_let.set()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in told] == [type(None), *[Unavailable] * 3]
    assert book.promised(key_of(1)) == 0
    await promises.write(key_of(1), 2)
    assert FenceBook(tmp_path / "fences.json").promised(key_of(1)) == 2


async def test_one_that_gives_up_takes_no_other_promise_with_it(tmp_path: Path) -> None:
    book = Counted(tmp_path / "fences.json")
    calls: list[Callable[[], None]] = []

    async def background(work: Callable[[], None]) -> None:
        calls.append(work)
        if len(calls) == 1:
            await asyncio.Event().wait()  # until it is cancelled
        await asyncio.to_thread(work)

    promises = Promises(background, book)
    first, second = (asyncio.ensure_future(promises.write(key_of(shard), 2)) for shard in range(2))
    await eventually(lambda: calls)
    first.cancel()
    await second
    assert FenceBook(tmp_path / "fences.json").promised(key_of(1)) == 2

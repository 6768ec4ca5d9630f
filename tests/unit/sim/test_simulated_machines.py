"""The base of the simulated product worlds: virtual time, and a disk that loses what was not flushed."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from stratalog_sim.product.files import SECTOR_BYTES, FileSystem
from stratalog_sim.product.loop import Idle, VirtualLoop


def test_time_moves_to_the_next_timer_and_timers_of_one_time_run_in_their_order() -> None:
    loop = VirtualLoop(Random(1))
    ran: list[tuple[str, float]] = []
    for name, delay in (("late", 3_600.0), ("first", 1.0), ("second", 1.0)):
        loop.call_later(delay, lambda name=name: ran.append((name, loop.time())))
    loop.call_later(7_200.0, loop.stop)
    loop.run_forever()
    loop.close()
    assert ran == [("first", 1.0), ("second", 1.0), ("late", 3_600.0)]


def test_work_for_an_executor_takes_virtual_time_and_tasks_are_distinguished_by_number() -> None:
    loop = VirtualLoop(Random(1))

    async def work() -> tuple[int, list[int]]:
        assert await asyncio.to_thread(lambda: 7) == 7
        tasks = {asyncio.ensure_future(asyncio.sleep(0.1)) for _ in range(5)}
        await asyncio.wait(tasks)
        return loop.now_us, [hash(task) for task in tasks]

    now_us, numbers = loop.run_until_complete(work())
    loop.close()
    assert 100_000 < now_us < 101_000
    assert numbers == sorted(numbers)


def test_a_wait_that_nothing_ends_is_reported() -> None:
    loop = VirtualLoop(Random(1))
    with pytest.raises(Idle):
        loop.run_until_complete(loop.create_future())
    loop.close()


def small_disk(seed: int = 1) -> FileSystem:
    files = FileSystem(Random(seed))
    files.create("/data", is_directory=True)
    files.flush(files.root)
    return files


def test_a_power_cut_leaves_what_was_flushed_and_any_of_the_rest() -> None:
    kept = set()
    for seed in range(40):
        files = small_disk(seed)
        inode = files.create("/data/one")
        files.write(inode, b"a" * SECTOR_BYTES, 0, 0)
        files.flush(inode)
        files.flush(files.find("/data"))
        files.write(inode, b"b" * 2 * SECTOR_BYTES, SECTOR_BYTES, 0)
        files.cut_power()
        data = bytes(files.find("/data/one").data)
        assert data[:SECTOR_BYTES] == b"a" * SECTOR_BYTES
        kept.add(len(data))
    assert kept == {SECTOR_BYTES, 2 * SECTOR_BYTES, 3 * SECTOR_BYTES}


def test_a_name_is_on_the_disk_once_its_directory_was_flushed() -> None:
    found = set()
    for seed in range(20):
        files = small_disk(seed)
        files.create("/data/flushed")
        files.flush(files.find("/data"))
        files.create("/data/new")
        files.rename("/data/flushed", "/data/renamed")
        files.cut_power()
        found.add(tuple(sorted(files.find("/data").entries)))
    assert found == {("flushed",), ("flushed", "new"), ("new", "renamed")}


def test_a_flush_that_fails_loses_what_it_was_to_bring_to_the_disk() -> None:
    files = small_disk()
    inode = files.create("/data/one")
    files.flush(files.find("/data"))
    files.write(inode, b"x" * SECTOR_BYTES, 0, 0)
    files.fails_flushes = True
    with pytest.raises(OSError, match="Input/output") as failure:
        files.flush(inode)
    assert failure.value.errno == errno.EIO
    files.fails_flushes = False
    files.flush(inode)  # it says nothing of what is lost
    files.cut_power()
    assert b"x" not in bytes(files.find("/data/one").data)


def test_a_full_disk_takes_what_was_there_and_no_more() -> None:
    files = small_disk()
    inode = files.create("/data/one")
    files.write(inode, b"1234", 0, 0)
    files.is_full = True
    assert files.write(inode, b"abcdef", 2, 0) == 2
    with pytest.raises(OSError, match="No space"):
        files.write(inode, b"g", 4, 0)
    with pytest.raises(OSError, match="No space"):
        files.create("/data/two")
    assert bytes(inode.data) == b"12ab"

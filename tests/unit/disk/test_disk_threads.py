"""Work of disk threads on a file: the file stays pinned exactly as long as a thread may use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratalog_node.disk.threads import COPY_THREADS, DiskThreads
from support.waiting import eventually


class CountedFile:
    def __init__(self) -> None:
        self.pins = 0

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1


@pytest.fixture
async def threads() -> AsyncIterator[DiskThreads]:
    threads = DiskThreads()
    yield threads
    threads.close()


@pytest.fixture
def file() -> Any:
    return CountedFile()


async def test_work_returns_its_result_and_unpins_the_file_first(threads: DiskThreads, file: Any) -> None:
    assert await threads.settle_copy(file, lambda: file.pins) == 1, "pinned while the thread works"
    assert file.pins == 0


async def test_an_error_of_the_work_reaches_the_caller(threads: DiskThreads, file: Any) -> None:
    def fail() -> None:
        raise OSError(5, "the disk failed")

    with pytest.raises(OSError, match="the disk failed"):
        await threads.settle_copy(file, fail)
    assert file.pins == 0


async def test_a_cancelled_caller_leaves_the_file_pinned_until_the_thread_is_done(
    threads: DiskThreads, file: Any
) -> None:
    is_at_work, may_end = threading.Event(), threading.Event()

    def work() -> None:
        is_at_work.set()
        assert may_end.wait(30)

    caller = asyncio.ensure_future(threads.settle_copy(file, work))
    await eventually(is_at_work.is_set)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert file.pins == 1, "the thread still uses its descriptor"
    may_end.set()
    await eventually(lambda: file.pins == 0)


async def test_work_of_a_cancelled_caller_that_no_thread_has_begun_is_not_done(threads: DiskThreads, file: Any) -> None:
    may_end, done = threading.Event(), threading.Event()
    busy = [asyncio.ensure_future(threads.settle_copy(file, lambda: may_end.wait(30))) for _ in range(COPY_THREADS)]
    await eventually(lambda: file.pins == COPY_THREADS)
    caller = asyncio.ensure_future(threads.settle_copy(file, done.set))
    await eventually(lambda: file.pins == COPY_THREADS + 1)
    caller.cancel()
    await eventually(lambda: file.pins == COPY_THREADS)
    may_end.set()
    await asyncio.gather(*busy)
    assert file.pins == 0 and not done.is_set()


async def test_a_stop_cancels_work_that_no_thread_has_begun(file: Any) -> None:
    threads = DiskThreads()
    may_end = threading.Event()
    busy = [asyncio.ensure_future(threads.settle_copy(file, lambda: may_end.wait(30))) for _ in range(COPY_THREADS)]
    waiting = asyncio.ensure_future(threads.settle_copy(file, lambda: None))
    await eventually(lambda: file.pins == COPY_THREADS + 1)
    closing = asyncio.ensure_future(asyncio.to_thread(threads.close))
    await eventually(waiting.done)
    assert waiting.cancelled()
    may_end.set()
    await closing
    await asyncio.gather(*busy)
    assert file.pins == 0

"""What is appended is on its way to the disk before any flush, and a flush still reports how that went."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stratalog_node.disk import write_behind
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.files import WRITE_BEHIND_BYTES, FlushLost, SegmentFile
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.disk.write_behind import MOST_WAITING, WriteBehind, start_write_back
from support.small_disk import NoSmallDisk
from support.thin_disk import thin_disk
from support.waiting import eventually

HEADER = bytes(100)
HALF = os.urandom(WRITE_BEHIND_BYTES // 2)
PAGE = os.sysconf("SC_PAGE_SIZE")
_CACHESTAT = 451

Make = Callable[[str], SegmentFile]


@pytest.fixture
async def threads() -> AsyncIterator[DiskThreads]:
    threads = DiskThreads()
    yield threads
    threads.close()


@pytest.fixture
def make(tmp_path: Path, threads: DiskThreads) -> Make:
    descriptors = Descriptors(10, write_behind=WriteBehind(threads).begin)

    def made(name: str) -> SegmentFile:
        file = SegmentFile(tmp_path / name, descriptors, 0)
        file.create(HEADER)
        return file

    return made


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Where write-back was begun, and of how much."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(write_behind, "start_write_back", lambda fd, position, size: calls.append((position, size)))
    return calls


async def test_it_begins_with_every_few_megabytes_and_never_twice_for_the_same_page(
    make: Make, begun: list[tuple[int, int]]
) -> None:
    file = make("f")
    expected: list[tuple[int, int]] = []
    for _ in range(3):
        file.append([HALF], len(HALF))
        assert begun == expected, "too little for a write of its own"
        file.append([HALF], len(HALF))
        begin = sum(expected[-1]) if expected else 0
        expected.append((begin, file.size_bytes // PAGE * PAGE - begin))
        await eventually(lambda: begun == expected and not file.is_written_behind)
    file.close()


async def test_while_the_disk_takes_one_range_of_a_file_no_other_waits_behind_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is slower than its producers: no line of work may grow."""
    calls: list[tuple[int, int]] = []
    go_on = threading.Event()

    def slow(fd: int, position: int, size: int) -> None:
        calls.append((position, size))
        go_on.wait(30)

    monkeypatch.setattr(write_behind, "start_write_back", slow)
    file = make("f")
    for _ in range(8):
        file.append([HALF], len(HALF))
    await eventually(lambda: len(calls) == 1)
    go_on.set()
    await eventually(lambda: not file.is_written_behind)
    assert len(calls) == 1
    file.append([b"x"], 1)
    await eventually(lambda: len(calls) == 2)
    assert sum(calls[1]) == file.size_bytes // PAGE * PAGE, "all that came meanwhile, in one go"
    file.close()


async def test_a_disk_that_hangs_keeps_few_files_open_for_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(write_behind, "start_write_back", lambda fd, position, size: go_on.wait(30))
    files = [make(str(number)) for number in range(MOST_WAITING + 3)]
    for file in files:
        file.append([HALF, HALF], 2 * len(HALF))
    assert [file.is_written_behind for file in files] == [True] * MOST_WAITING + [False] * 3
    go_on.set()
    await eventually(lambda: not any(file.is_written_behind for file in files))
    for file in files:
        file.append([b"x"], 1)
        await eventually(lambda file=file: file.written_behind_bytes > len(HALF) and not file.is_written_behind)  # type: ignore[misc]
        file.close()


async def test_a_file_that_is_gone_or_a_node_that_stops_fails_no_append(make: Make, threads: DiskThreads) -> None:
    gone = make("gone")
    os.unlink(gone.path)
    gone.append([HALF, HALF], 2 * len(HALF))
    await eventually(lambda: not gone.is_written_behind)
    late = make("late")
    threads.close()
    late.append([HALF, HALF], 2 * len(HALF))
    assert late.path.read_bytes()[: late.size_bytes] == HEADER + HALF + HALF
    gone.close()
    late.close()


async def test_the_pages_are_written_by_the_kernel_without_a_flush(make: Make) -> None:
    file = make("f")
    file.append([HALF], len(HALF))
    if dirty_pages(file) < len(HALF) // PAGE:
        pytest.skip("this file system has no pages that wait to be written, or its kernel does not tell")
    for _ in range(3):
        file.append([HALF], len(HALF))
        await eventually(lambda: not file.is_written_behind)  # what came meanwhile would wait for the next append
    # By itself the kernel would begin after half a minute.
    await eventually(lambda: dirty_pages(file) <= 1 + len(HALF) // PAGE + room_pages(), timeout=5)
    assert file.must_stay_open, "nobody may take that for a flush"
    file.close()


def room_pages() -> int:
    """The zeros behind the end."""
    return (256 << 10) // PAGE


def dirty_pages(file: SegmentFile) -> int:
    """Pages of a file that are dirty and not being written; 0 where the kernel does not tell (before Linux 6.5)."""
    counts = (ctypes.c_uint64 * 5)()
    whole = (ctypes.c_uint64 * 2)(0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_CACHESTAT, file.fd(), ctypes.byref(whole), ctypes.byref(counts), 0) != 0:
        assert ctypes.get_errno() in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
        return 0
    return counts[1]


def test_a_failed_background_write_is_reported_by_the_next_flush(tmp_path: Path) -> None:
    try:
        with thin_disk(tmp_path) as disk:
            file = SegmentFile(disk.root / "f", Descriptors(10), 0)
            file.create(HEADER)
            file.sync(with_names=True)
            disk.run_out()
            file.append([HALF], len(HALF))
            for _ in range(3):
                start_write_back(file.fd(), 0, file.size_bytes)
            with pytest.raises(FlushLost):
                file.sync()
            file.close()
    except NoSmallDisk as reason:
        pytest.skip(str(reason))


def test_an_append_where_no_loop_runs_leaves_the_next_one_to_begin(tmp_path: Path) -> None:
    threads = DiskThreads()
    descriptors = Descriptors(10, write_behind=WriteBehind(threads).begin)
    file = SegmentFile(tmp_path / "one", descriptors, 0)
    try:
        file.create(HEADER)
        file.append([HALF, HALF], 2 * len(HALF))
        assert not file.is_written_behind
        assert file.pins == 0
    finally:
        descriptors.close()
        threads.close()


async def test_what_is_appended_again_after_a_cut_is_begun_again(make: Make, begun: list[tuple[int, int]]) -> None:
    file = make("one")
    file.append([HALF, HALF], 2 * len(HALF))
    await eventually(lambda: not file.is_written_behind and file.pins == 0)
    file.truncate(len(HEADER))
    file.append([HALF, HALF], 2 * len(HALF))
    await eventually(lambda: len(begun) == 2)

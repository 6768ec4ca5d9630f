"""The kernel reports a lost writeback once per descriptor: every flush of the file still fails.

On a real file system that cannot write back (`support/thin_disk.py`); skipped where none can be mounted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.model.errors import Unavailable
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.files import FlushLost, SegmentFile
from stratalog_node.disk.lost_flushes import LostFlushes
from support.small_disk import NoSmallDisk
from support.thin_disk import ThinDisk, thin_disk

HEADER = bytes(4096)
DATA = os.urandom(1 << 20)
THREADS = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ThinDisk]:
    try:
        with thin_disk(tmp_path) as disk:
            yield disk
    except NoSmallDisk as reason:
        pytest.skip(str(reason))


def told_of(disk: ThinDisk) -> LostFlushes:
    return LostFlushes(disk.root / "flush-failed", disk.root)


def lose(disk: ThinDisk, file: SegmentFile) -> None:
    """Append what the disk never gets, and hear of it."""
    disk.run_out()
    file.append([DATA], len(DATA))
    with pytest.raises(FlushLost):
        file.sync()
    file.close()


def on_disk(path: Path) -> bytes:
    """What is there once the page cache is empty, as after a power cut."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    found = os.pread(fd, len(DATA), len(HEADER))
    os.close(fd)
    return found


def make(disk: ThinDisk, name: str = "f", descriptors: Descriptors | None = None) -> SegmentFile:
    file = SegmentFile(disk.root / name, descriptors or Descriptors(100), 0)
    file.create(HEADER)
    file.sync(with_names=True)
    return file


def flush_at_once(file: SegmentFile) -> list[str]:
    """What several threads get that flush the same file together."""
    heard: list[str] = []
    together = threading.Barrier(THREADS)

    def flush() -> None:
        together.wait()
        try:
            file.sync()
            heard.append("flushed")
        except FlushLost:
            heard.append("lost")

    threads = [threading.Thread(target=flush) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


@pytest.mark.fault("several-threads-flush-file")
def test_the_kernel_tells_one_flush_alone(disk: ThinDisk) -> None:
    """What all of this is for: the second flush of the same bytes succeeds."""
    file = make(disk)
    disk.run_out()
    file.append([DATA], len(DATA))
    with pytest.raises(OSError):
        os.fdatasync(file.fd())
    os.fdatasync(file.fd())
    file.close()


@pytest.mark.fault("several-threads-flush-file")
def test_no_concurrent_flush_succeeds_over_a_lost_page(disk: ThinDisk) -> None:
    files = [make(disk, str(number)) for number in range(10)]
    disk.run_out()
    for file in files:
        file.append([DATA], len(DATA))
        assert flush_at_once(file) == ["lost"] * THREADS
    for file in files:
        file.close()


@pytest.mark.fault("several-threads-flush-file")
def test_a_disk_that_works_again_does_not_make_a_lost_page_good(disk: ThinDisk) -> None:
    file = make(disk)
    lose(disk, file)
    disk.grow()
    with pytest.raises(FlushLost):
        file.sync()


@pytest.mark.fault("flush-fails-file-segment")
def test_an_earlier_opener_of_the_file_gets_its_failed_flush_too(disk: ThinDisk) -> None:
    """A copy that is followed on where this node led: the last flush of the leader's file may still be under way."""
    descriptors = Descriptors(100)
    led = make(disk, descriptors=descriptors)
    led.append([DATA], len(DATA))
    followed = SegmentFile(led.path, descriptors, led.size_bytes)
    disk.run_out()
    lose(disk, led)
    with pytest.raises(FlushLost):
        followed.sync()
    again = SegmentFile(led.path, descriptors, 0)
    disk.grow()
    again.create(HEADER)
    again.sync()
    again.close()


@pytest.mark.fault("flush-fails-file-segment")
def test_a_file_that_is_removed_while_its_flush_fails_leaves_nothing_to_hear(disk: ThinDisk) -> None:
    """Another one may have its name by then."""
    descriptors = Descriptors(100)
    gone = make(disk, descriptors=descriptors)
    disk.run_out()
    gone.append([DATA], len(DATA))
    gone.remove(is_read=True)
    with pytest.raises(FlushLost):
        gone.sync()
    gone.close()
    assert not descriptors.lost


@pytest.mark.fault("several-threads-flush-file")
def test_a_file_that_waits_for_its_flush_is_not_closed_and_one_that_does_not_is(disk: ThinDisk) -> None:
    asked: list[int] = []
    descriptors = Descriptors(4, on_crowded=lambda: asked.append(descriptors.open_count))
    waiting = [make(disk, f"waiting-{number}", descriptors) for number in range(8)]
    for file in waiting:
        file.append([b"x"], 1)
    for number in range(8):
        make(disk, f"idle-{number}", descriptors)
    assert all(file._fd >= 0 for file in waiting), "with the descriptor, news of a lost page would go"
    assert asked, "nobody was asked to flush"
    for file in waiting:
        file.sync()
    for number in range(8, 24):
        make(disk, f"idle-{number}", descriptors)
    assert descriptors.open_count <= 6 and not all(file._fd >= 0 for file in waiting)
    descriptors.close()


@pytest.mark.fault("flush-fails")
def test_the_next_process_gets_no_error_and_finds_the_page_cache(disk: ThinDisk) -> None:
    """Why a lost flush is remembered over restarts: all that the next process can see is well."""
    file = make(disk)
    lose(disk, file)
    disk.grow()
    later = SegmentFile(file.path, Descriptors(10), file.size_bytes)
    later.sync()
    assert later.read(len(HEADER), len(DATA)) == DATA
    assert on_disk(file.path) != DATA


@pytest.mark.fault("flush-fails")
def test_a_file_whose_flush_failed_is_copied_by_the_next_start(disk: ThinDisk) -> None:
    file = make(disk, descriptors=Descriptors(10, flush_lost=told_of(disk).note))
    lose(disk, file)
    disk.grow()
    assert told_of(disk).rewrite_files() == 1
    assert on_disk(file.path) == DATA
    assert {path.name for path in disk.root.iterdir()} == {"f", "lost+found"}, "neither a list nor half a copy stays"
    assert told_of(disk).rewrite_files() == 0


@pytest.mark.fault("flush-fails")
def test_a_disk_that_still_cannot_be_written_leaves_the_file_and_its_name_in_the_list(disk: ThinDisk) -> None:
    file = make(disk, descriptors=Descriptors(10, flush_lost=told_of(disk).note))
    lose(disk, file)
    for _ in range(2):
        with pytest.raises(Unavailable, match="see to the disk, then start"):
            told_of(disk).rewrite_files()
    assert SegmentFile(file.path, Descriptors(10), 0).read(len(HEADER), len(DATA)) == DATA
    disk.grow()
    assert told_of(disk).rewrite_files() == 1
    assert on_disk(file.path) == DATA


@pytest.mark.fault("flush-fails")
def test_a_file_that_is_gone_or_cannot_be_read_does_not_hold_up_the_others(tmp_path: Path) -> None:
    lost = LostFlushes(tmp_path / "flush-failed", tmp_path)
    (tmp_path / "whole").write_bytes(b"whole")
    (tmp_path / "a directory").mkdir()
    for name in ("gone", "gone/with its directory", "a directory", "whole", "whole"):
        lost.note(tmp_path / name)
    before = (tmp_path / "whole").stat().st_ino
    assert lost.rewrite_files() == 1
    assert (tmp_path / "whole").read_bytes() == b"whole" and (tmp_path / "whole").stat().st_ino != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a directory", "whole"]

"""The kernel tells of a lost writeback once per descriptor: whoever flushes a file hears of it all the same.

On a real file system that cannot write back (`support/thin_disk.py`); skipped where none can be mounted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.files import FlushLost, SegmentFile
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


def make(disk: ThinDisk, name: str = "f", descriptors: Descriptors | None = None) -> SegmentFile:
    file = SegmentFile(disk.root / name, descriptors or Descriptors(100), 0)
    file.create(HEADER)
    file.sync(with_names=True)
    return file


def flush_at_once(file: SegmentFile) -> list[str]:
    """What so many threads hear that flush the same file together."""
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


def test_the_kernel_tells_one_flush_alone(disk: ThinDisk) -> None:
    """What all of this is for: the second flush of the same bytes succeeds."""
    file = make(disk)
    disk.run_out()
    file.append([DATA], len(DATA))
    with pytest.raises(OSError):
        os.fdatasync(file.fd())
    os.fdatasync(file.fd())
    file.close()


def test_of_flushes_at_once_none_succeeds_over_a_lost_page(disk: ThinDisk) -> None:
    files = [make(disk, str(number)) for number in range(10)]
    disk.run_out()
    for file in files:
        file.append([DATA], len(DATA))
        assert flush_at_once(file) == ["lost"] * THREADS
    for file in files:
        file.close()


def test_a_disk_that_works_again_does_not_make_a_lost_page_good(disk: ThinDisk) -> None:
    file = make(disk)
    disk.run_out()
    file.append([DATA], len(DATA))
    with pytest.raises(FlushLost):
        file.sync()
    disk.grow()
    with pytest.raises(FlushLost):
        file.sync()
    file.close()


def test_a_file_that_waits_for_its_flush_is_not_closed_and_one_that_does_not_is(disk: ThinDisk) -> None:
    descriptors = Descriptors(4)
    asked: list[int] = []
    descriptors.on_crowded = lambda: asked.append(descriptors.open_count)
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

"""Files made ahead of a roll: ready when they are needed, named before anything counts on them, gone after a crash."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.errors import NotFound
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.spare_files import MOST, SpareFiles, clear_spare_files
from stratalog_node.disk.threads import DiskThreads
from support.waiting import eventually

HEADER = b"h" * 128


@pytest.fixture
async def spares(tmp_path: Path) -> AsyncIterator[SpareFiles]:
    threads = DiskThreads()
    made = SpareFiles(tmp_path / ".spare", threads)
    yield made
    await made.close()
    threads.close()
    assert list((tmp_path / ".spare").iterdir()) == [], "what nobody took is removed in the end"


async def spare_segment(spares: SpareFiles, path: Path, descriptors: Descriptors | None = None) -> SegmentFile:
    spares.pop()
    await eventually(lambda: spares.ready_count > 0)
    file = SegmentFile(path, descriptors or Descriptors(10), 0)
    file.create(HEADER, spares.pop)
    return file


async def test_nothing_is_made_before_the_first_roll(spares: SpareFiles, tmp_path: Path) -> None:
    assert not (tmp_path / ".spare").exists()
    assert spares.pop() is None
    await eventually(lambda: spares.ready_count == 1)


async def test_as_many_are_made_as_rolled_at_once_and_no_more_than_the_most(spares: SpareFiles) -> None:
    for _ in range(100):
        assert spares.pop() is None
    await eventually(lambda: spares.ready_count == MOST)
    taken = [spares.pop() for _ in range(MOST)]
    assert len({spare[1] for spare in taken if spare}) == MOST
    await eventually(lambda: spares.ready_count == MOST)
    for spare in taken:
        assert spare is not None
        os.close(spare[0])
        spare[1].unlink()


async def test_a_spare_takes_appends_at_once_and_is_found_under_its_name_later(
    spares: SpareFiles, tmp_path: Path
) -> None:
    file = await spare_segment(spares, tmp_path / "topic" / "0" / "a.seg")
    file.append([b"one"], 3)
    assert not file.is_named
    assert not file.path.exists()
    file.take_name()
    file.append([b"two"], 3)
    file.take_name()
    assert file.is_named
    assert file.path.read_bytes() == HEADER + b"onetwo"
    file.close()


async def test_without_a_spare_the_file_is_made_under_its_name(spares: SpareFiles, tmp_path: Path) -> None:
    file = SegmentFile(tmp_path / "a.seg", Descriptors(10), 0)
    file.create(HEADER, spares.pop)
    assert file.is_named
    assert file.path.read_bytes() == HEADER
    file.close()


async def test_a_flush_with_names_gives_the_name_first(spares: SpareFiles, tmp_path: Path) -> None:
    file = await spare_segment(spares, tmp_path / "a.seg")
    file.append([b"one"], 3)
    file.sync(with_names=True)
    assert file.path.read_bytes() == HEADER + b"one"
    file.close()


async def test_a_file_without_its_name_keeps_its_descriptor(spares: SpareFiles, tmp_path: Path) -> None:
    descriptors = Descriptors(1)
    unnamed = await spare_segment(spares, tmp_path / "a.seg", descriptors)
    for number in range(3):
        SegmentFile(tmp_path / f"{number}.seg", descriptors, 0).create(HEADER)
    unnamed.append([b"one"], 3)
    unnamed.take_name()
    assert unnamed.path.read_bytes() == HEADER + b"one"
    descriptors.close()


async def test_a_spare_replaces_what_an_earlier_attempt_left(spares: SpareFiles, tmp_path: Path) -> None:
    (tmp_path / "a.seg").write_bytes(b"half a head")
    file = await spare_segment(spares, tmp_path / "a.seg")
    file.take_name()
    assert file.path.read_bytes() == HEADER
    file.close()


async def test_a_file_removed_before_it_had_its_name_is_reported_and_never_flushed(
    spares: SpareFiles, tmp_path: Path
) -> None:
    file = await spare_segment(spares, tmp_path / "a.seg")
    (lies,) = (path for path in (tmp_path / ".spare").iterdir() if path.read_bytes() == HEADER)
    lies.unlink()
    with pytest.raises(NotFound, match="is gone"):
        file.take_name()
    with pytest.raises(NotFound, match="is gone"):
        file.sync(with_names=True)
    file.close()


async def test_a_file_that_is_removed_before_it_had_its_name_leaves_nothing(spares: SpareFiles, tmp_path: Path) -> None:
    file = await spare_segment(spares, tmp_path / "a.seg")
    file.close_when_unused()
    file.remove()
    assert not file.path.exists()


@pytest.mark.fault("process-power-fails-roll")
async def test_a_start_removes_what_a_crash_left_and_only_that(tmp_path: Path) -> None:
    folder = tmp_path / ".spare"
    clear_spare_files(folder)
    (folder / "000000000001.spare").write_bytes(HEADER + b"never acknowledged")
    (folder / "mine.txt").write_bytes(b"somebody's")
    clear_spare_files(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]

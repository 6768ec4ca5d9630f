"""The ends of segments in memory: what one life leaves, and what the next one finds."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.model.ids import SegmentKey
from stratalog_node.disk.ends_in_memory import EndsInMemory

TOPIC = UUID(int=7 << 100 | 5)


def key(number: int) -> SegmentKey:
    return SegmentKey(TOPIC, number, 1 + number % 3, 10 * number)


def begun(folder: Path, storage_id: str = "disk", wanted: set[SegmentKey] | None = None) -> EndsInMemory:
    ends = EndsInMemory(folder, storage_id)
    ends.begin(lambda found: wanted is None or found in wanted)
    return ends


@pytest.mark.fault("nodes-killed-last-batches")
def test_the_next_life_finds_the_last_end_of_each_segment(tmp_path: Path) -> None:
    first = begun(tmp_path)
    for end_offset in (12, 40, 35):
        first.mark(key(1)).move(end_offset)
    first.mark(key(2)).move(21)
    second = begun(tmp_path)  # the first was killed: it closed nothing
    assert second.found == {key(1): 35, key(2): 21}
    assert begun(tmp_path).found == {key(1): 35, key(2): 21}, "it dies before it looks at any file"


def test_a_segment_without_batches_has_no_end(tmp_path: Path) -> None:
    begun(tmp_path).mark(key(1))
    assert begun(tmp_path).found == {}


def test_what_is_sealed_or_not_wanted_any_more_is_gone_and_its_place_is_used_again(tmp_path: Path) -> None:
    ends = begun(tmp_path)
    size = (tmp_path / "stratalog-disk").stat().st_size
    for number in range(1, 2_000):
        mark = ends.mark(key(number))
        mark.move(key(number).base_offset + 5)
        mark.forget()
        mark.move(key(number).base_offset + 6)  # another owner may still have it
    assert (tmp_path / "stratalog-disk").stat().st_size == size
    ends.mark(key(3)).move(37)
    ends.mark(key(4)).move(48)
    assert begun(tmp_path, wanted={key(3)}).found == {key(3): 37}
    assert begun(tmp_path).found == {key(3): 37}


def test_there_is_room_for_many(tmp_path: Path) -> None:
    ends = begun(tmp_path)
    for number in range(1, 3_000):
        ends.mark(key(number)).move(10 * number + 1)
    assert begun(tmp_path).found == {key(number): 10 * number + 1 for number in range(1, 3_000)}


def test_each_storage_has_its_own(tmp_path: Path) -> None:
    begun(tmp_path, "one").mark(key(1)).move(12)
    assert begun(tmp_path, "two").found == {}
    assert begun(tmp_path, "one").found == {key(1): 12}


def test_a_process_that_still_has_the_file_of_the_life_before_changes_nothing_in_the_present_one(
    tmp_path: Path,
) -> None:
    old = begun(tmp_path)
    old.mark(key(1)).move(12)
    begun(tmp_path)
    old.mark(key(1)).move(90)
    assert begun(tmp_path).found == {key(1): 12}


def test_foreign_or_damaged_files_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stratalog-disk"
    for content in (b"", b"x" * 5_000, b"stratalog-ends-1" + os.urandom(29)):
        path.write_bytes(content)
        assert begun(tmp_path).found == {}
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert begun(tmp_path).found == {}
    assert not (tmp_path / "elsewhere").exists()


def test_without_such_memory_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    for ends in (EndsInMemory(), EndsInMemory(tmp_path / "missing", "disk")):
        ends.begin(lambda _: True)
        ends.mark(key(1)).move(12)
        ends.mark(key(1)).forget()
        assert ends.found == {}

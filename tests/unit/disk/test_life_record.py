"""What a directory shows of its past: the start that began its last life, and that it is not a copy."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from stratalog.model.ids import ShardKey
from stratalog_node.disk.life_record import PastLife, note_life, note_start, seat_of

BOOT = "boot"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a directory in which a life has begun."""
    path = tmp_path / "data" / "life.json"
    path.parent.mkdir()
    assert note_start(path, "first", BOOT) == PastLife()
    note_life(path, "first", BOOT)
    return path


def test_the_next_start_finds_the_one_that_began_the_last_life(path: Path) -> None:
    assert note_start(path, "second", "another boot") == PastLife(("first",), BOOT)
    note_life(path, "second", "another boot")
    assert note_start(path, "third", BOOT) == PastLife(("second",), "another boot")


def test_a_start_in_another_boot_has_examined_nothing_until_its_life_says_so(path: Path) -> None:
    note_start(path, "second", "another boot")
    assert note_start(path, "third", "another boot").boot_id == "", "nor in the boot that the files are of"
    note_life(path, "third", "")
    assert note_start(path, "fourth", BOOT).boot_id == ""
    note_life(path, "fourth", BOOT)
    assert note_start(path, "fifth", BOOT).boot_id == BOOT
    assert note_start(path, "sixth", BOOT).boot_id == BOOT, "the one before it was killed, and nothing else"


def test_shards_that_could_not_be_opened_stay_named_in_the_same_boot(path: Path) -> None:
    topic = uuid4()
    closed = {ShardKey(topic, 3), ShardKey(topic, 0), ShardKey(uuid4(), 1)}
    note_life(path, "first", BOOT, closed)
    assert note_start(path, "second", BOOT) == PastLife(("first",), BOOT, frozenset(closed))
    assert note_start(path, "third", BOOT).unexamined == closed, "the second one was killed"
    assert note_start(path, "fourth", "another boot").unexamined == closed, "what the boot before says"
    assert note_start(path, "fifth", "another boot").unexamined == frozenset(), "of this one nothing is examined"


def test_a_file_of_an_earlier_version_names_no_shards(path: Path) -> None:
    fields = json.loads(path.read_text())
    del fields["unexamined"]
    path.write_text(json.dumps(fields))
    assert note_start(path, "second", BOOT) == PastLife(("first",), BOOT)


def test_starts_that_were_not_answered_are_named_too_for_one_of_them_may_have_begun_a_life(path: Path) -> None:
    note_start(path, "second", BOOT)
    note_start(path, "third", BOOT)
    assert note_start(path, "fourth", BOOT).starts == ("first", "second", "third")


def test_of_starts_without_end_the_answered_one_and_the_last_ones_are_named(path: Path) -> None:
    names = [f"start {number}" for number in range(100)]
    for name in names:
        note_start(path, name, BOOT)
    starts = note_start(path, "last", BOOT).starts
    assert (starts[0], starts[-1], len(starts)) == ("first", names[-1], 32)


@pytest.mark.fault("older-copy-node-directory")
@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2], ids=["copied", "with its times"])
def test_a_copy_shows_no_past_and_neither_does_what_is_put_back_from_one(path: Path, copy: object) -> None:
    backup = path.parent.with_name("backup")
    shutil.copytree(path.parent, backup, copy_function=copy)  # type: ignore[arg-type]
    shutil.rmtree(path.parent)
    shutil.copytree(backup, path.parent, copy_function=copy)  # type: ignore[arg-type]
    assert note_start(path, "second", BOOT) == PastLife()
    assert note_start(path, "third", BOOT).starts == ("second",), "nor does it when it is started again"
    assert note_start(backup / "life.json", "second", BOOT) == PastLife()


def test_a_directory_that_is_moved_is_the_same_one(path: Path) -> None:
    moved = path.parent.rename(path.parent.with_name("moved")) / "life.json"
    assert note_start(moved, "second", BOOT) == PastLife(("first",), BOOT)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", "[]", '{"starts": [], "file": 3, "boot_id": ""}', '{"starts": 3}'),
        *('{"starts": [], "unexamined": 3}', '{"starts": [], "unexamined": {"x": [0]}}'),
        '{"starts": [], "unexamined": {"6adb991c-0ac9-4e09-bedb-b70564528bf6": 1}}',
    ],
)
def test_a_file_that_says_nothing_shows_nothing(path: Path, content: str) -> None:
    path.write_text(content)
    assert note_start(path, "second", BOOT) == PastLife()


def test_another_file_under_a_number_that_was_used_before_is_another_one(path: Path) -> None:
    fields = json.loads(path.read_text())
    if fields["file"]["generation"] is None:
        pytest.skip("this file system does not tell such files apart")
    fields["file"]["generation"] += 1
    path.write_text(json.dumps(fields))
    assert note_start(path, "second", BOOT) == PastLife()


def test_a_seat_is_of_one_directory_and_one_boot(tmp_path: Path) -> None:
    seats = set()
    for name in ("one", "other"):
        descriptor = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)
        seats |= {seat_of(descriptor, "boot-a"), seat_of(descriptor, "boot-b")}
        assert seat_of(descriptor, "") == "", "nobody knows the boot: it shows nothing"
        os.close(descriptor)
    assert len(seats) == 4

"""Files of the audit log: bounded in size and number, whole lines, one writer."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from stratalog.telemetry.audit_file import AuditFile, AuditStream


def opened(path: Path, most_bytes: int = 1_000, most_files: int = 3) -> AuditFile:
    return AuditFile(path, most_bytes=most_bytes, most_files=most_files)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_are_appended_also_after_a_restart(tmp_path: Path) -> None:
    for life in range(3):
        file = opened(tmp_path / "audit" / "node.log")
        file.write(f"{life}\n")
        file.close()
    assert lines_of(tmp_path / "audit" / "node.log") == ["0", "1", "2"]


def test_files_are_bounded_in_size_and_number_and_the_newest_lines_are_kept(tmp_path: Path) -> None:
    file = opened(tmp_path / "log", most_bytes=1_000, most_files=3)
    for number in range(1_000):
        file.write(f"{number:09}\n")
    file.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log", "log.1", "log.2"]
    assert all(0 < path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    kept = [int(line) for name in ("log.2", "log.1", "log") for line in lines_of(tmp_path / name)]
    assert kept == list(range(1_000 - len(kept), 1_000)) and len(kept) > 200


def test_a_smaller_number_of_files_deletes_those_beyond_it(tmp_path: Path) -> None:
    for name in ("log", "log.1", "log.2", "log.3", "log.4"):
        (tmp_path / name).write_text("x" * 990 + "\n")
    file = opened(tmp_path / "log", most_files=2)
    file.write("a line that has no room\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]


@pytest.mark.fault("audit-log-cannot-written")
def test_a_rotation_that_fails_again_and_again_loses_no_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest file may not be renamed: an administrator made it append-only, for instance."""
    names = ["log", *(f"log.{number}" for number in range(1, 5))]
    for name in names:
        (tmp_path / name).write_text(name.ljust(999, "x") + "\n")
    replace = os.replace

    def protected(source: Path, target: Path) -> None:
        if source == tmp_path / "log":
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    monkeypatch.setattr(os, "replace", protected)
    file = opened(tmp_path / "log", most_files=5)
    for _ in range(10):
        with pytest.raises(PermissionError):
            file.write("a line that has no room\n")
    monkeypatch.undo()
    kept = {path.read_text()[:5].strip("x") for path in tmp_path.iterdir()}
    assert {"log.1", "log.2", "log.3"} <= kept, "at most the oldest is gone"
    file.write("a line that has room again\n")
    assert lines_of(tmp_path / "log") == ["a line that has room again"]


def test_a_file_that_was_taken_away_makes_room_for_one_more(tmp_path: Path) -> None:
    for name in ("log", "log.1", "log.3"):
        (tmp_path / name).write_text(name.ljust(999, "x") + "\n")
    opened(tmp_path / "log", most_files=4).write("a line that has no room\n")
    kept = {path.name: path.read_text()[:5].strip("x") for path in tmp_path.iterdir()}
    assert (kept["log.1"], kept["log.2"], kept["log.3"]) == ("log", "log.1", "log.3")


def test_a_single_file_begins_again(tmp_path: Path) -> None:
    file = opened(tmp_path / "log", most_bytes=20, most_files=1)
    for number in range(10):
        file.write(f"{number:09}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert lines_of(tmp_path / "log") == ["000000008", "000000009"]


def test_a_line_larger_than_a_file_has_one_alone(tmp_path: Path) -> None:
    file = opened(tmp_path / "log", most_bytes=10, most_files=3)
    file.write("x" * 50 + "\n")
    file.write("y" * 50 + "\n")
    assert [lines_of(tmp_path / name)[0][0] for name in ("log.1", "log")] == ["x", "y"]


def test_what_a_failed_write_left_of_a_line_is_ended_before_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('whole\n{"half":')
    file = opened(tmp_path / "log")
    file.write("next\n")
    file.write("after it\n")
    assert lines_of(tmp_path / "log") == ["whole", '{"half":', "next", "after it"]


@pytest.mark.fault("audit-log-cannot-written")
def test_a_full_disk_is_an_error_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    file = opened(path)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            file.write("lost\n")
    path.unlink()
    file.write("kept\n")
    assert lines_of(path) == ["kept"]


def test_a_file_that_is_moved_away_is_made_again(tmp_path: Path) -> None:
    file = opened(tmp_path / "log")
    file.write("before\n")
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    file.write("after\n")
    assert (lines_of(tmp_path / "elsewhere"), lines_of(tmp_path / "log")) == (["before"], ["after"])


@pytest.mark.fault("audit-log-cannot-written")
def test_a_second_process_is_told_to_take_another_directory(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "log"), opened(tmp_path / "log")
    first.write("first\n")
    with pytest.raises(OSError, match=r"another process writes to .*log: give each process its own audit.log.dir"):
        second.write("second\n")
    first.close()
    second.write("second\n")
    assert lines_of(tmp_path / "log") == ["first", "second"]


def test_others_cannot_read_the_file(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        opened(tmp_path / "log").write("line\n")
    finally:
        os.umask(mask)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640


def test_standard_error_that_takes_nothing_is_an_error() -> None:
    out = io.StringIO()
    stream = AuditStream(out)
    stream.write("line\n")
    assert out.getvalue() == "line\n"
    out.close()
    with pytest.raises((OSError, ValueError)):
        stream.write("line\n")

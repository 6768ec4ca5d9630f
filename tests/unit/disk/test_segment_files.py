"""One segment's file: appends whole or not at all, reads exactly, keeps descriptors bounded and never uses another
file's."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.model.errors import Corrupt, DiskFull, NotFound, Unavailable
from stratalog_node.disk.calls import DiskCalls
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import read_front, write_durably
from stratalog_node.disk.files import WRITE_STEP_BYTES, FlushLost, SegmentFile
from stratalog_node.disk.preallocation import LARGEST_ROOM_BYTES, LEAST_APPEND_BYTES

HEADER = b"header"


def make(path: Path, limit: int = 100) -> SegmentFile:
    file = SegmentFile(path, Descriptors(limit), 0)
    file.create(HEADER)
    return file


@settings(max_examples=30, deadline=None)
@given(
    groups=st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=8), max_size=6),
    steps=st.lists(st.integers(1, 150), min_size=1),
)
def test_an_append_is_whole_however_short_the_writes_are(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]], steps: list[int]
) -> None:
    real, number = os.pwritev, 0

    def short(fd: int, buffers: Sequence[bytes], position: int) -> int:
        nonlocal number
        number += 1
        return real(fd, [b"".join(bytes(b) for b in buffers)[: steps[number % len(steps)]]], position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", short)
        file = make(tmp_path_factory.mktemp("files") / "f")
        expected = HEADER
        for group in groups:
            data = b"".join(group)
            if data:
                file.append(group, len(data))
            expected += data
            assert file.size_bytes == len(expected)
        assert file.path.read_bytes() == expected
        file.close()


def test_an_append_of_more_pieces_than_one_call_takes_is_whole(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    pieces = [b"%d," % number for number in range(5000)]
    file.append(pieces, sum(map(len, pieces)))
    assert file.path.read_bytes().rstrip(b"\0") == HEADER + b"".join(pieces)


def test_a_large_append_goes_in_writes_that_end_at_multiples_of_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger one takes memory in blocks that are rare, and perhaps not backed by any."""
    real, writes = os.pwritev, []

    def seen(fd: int, buffers: Sequence[bytes], position: int) -> int:
        writes.append((position, position + sum(map(len, buffers))))
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", seen)
    file = make(tmp_path / "f")
    pieces = [bytes([number]) * size for number, size in enumerate((70_000, 5, 1 << 20, 300_000))]
    file.append(pieces, sum(map(len, pieces)))
    stored = file.path.read_bytes()
    assert stored[: file.size_bytes] == HEADER + b"".join(pieces)
    assert not any(stored[file.size_bytes :])
    assert all(end % WRITE_STEP_BYTES == 0 for _, end in writes[:-1])
    assert [start for start, _ in writes[1:]] == [end for _, end in writes[:-1]]
    assert max(end - start for start, end in writes) == WRITE_STEP_BYTES


def test_a_large_append_that_fails_between_two_writes_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make(tmp_path / "f")
    file.append([b"kept"], 4)
    real, full = os.pwritev, 3 * WRITE_STEP_BYTES

    def failing(fd: int, buffers: Sequence[bytes], position: int) -> int:
        if position >= full:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, [b"".join(buffers)[: full - position]], position)

    monkeypatch.setattr(os, "pwritev", failing)
    with pytest.raises(DiskFull):
        file.append([b"x" * (1 << 20)], 1 << 20)
    assert file.path.read_bytes() == HEADER + b"kept"
    monkeypatch.undo()
    file.append([b"y" * (1 << 20)], 1 << 20)
    assert file.path.read_bytes().rstrip(b"\0") == HEADER + b"kept" + b"y" * (1 << 20)


@pytest.mark.fault("append-fails-node-cannot")
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, Unavailable)]
)
def test_a_failed_append_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    file = make(tmp_path / "f")
    file.append([b"kept"], 4)
    real, calls = os.pwritev, 0

    def failing(fd: int, buffers: Sequence[bytes], position: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(fd, [bytes(buffers[0])[:2]], position)
        raise OSError(code, "no")

    monkeypatch.setattr(os, "pwritev", failing)
    with pytest.raises(kind):
        file.append([b"lost", b"too"], 7)
    monkeypatch.undo()
    assert file.size_bytes == len(HEADER) + 4
    assert file.path.read_bytes() == HEADER + b"kept"
    file.append([b" and more"], 9)
    assert file.path.read_bytes() == HEADER + b"kept and more"


def test_a_file_whose_header_could_not_be_written_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a" / "b" / "f"
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    file = SegmentFile(path, Descriptors(10), 0)
    with pytest.raises(DiskFull):
        file.create(HEADER)
    assert not path.exists()
    monkeypatch.undo()
    file.create(HEADER)
    assert path.read_bytes() == HEADER


@pytest.mark.fault("torn-write-directory-store")
def test_a_read_past_the_end_is_damage_and_a_missing_file_is_not_found(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    with pytest.raises(Corrupt, match="ends 3 bytes early"):
        file.read(3, 6)
    file.close()
    assert file.read(0, 6) == HEADER
    file.path.unlink()
    with pytest.raises(NotFound):
        file.read(0, 1)
    with pytest.raises(NotFound):
        file.sync()
    with pytest.raises(NotFound):
        file.fd()


def test_a_thread_that_uses_a_closed_file_opens_nothing_that_the_loop_would_see(tmp_path: Path) -> None:
    descriptors = Descriptors(2)
    files = [SegmentFile(tmp_path / str(number), descriptors, 0) for number in range(6)]
    for file in files:
        file.create(HEADER)
    kept = {file for file in files if file._fd >= 0}
    thread = threading.Thread(target=lambda: [(file.read(0, 6), file.sync()) for file in files])
    thread.start()
    thread.join()
    assert {file for file in files if file._fd >= 0} == kept
    assert descriptors.open_count == len(kept)


def test_a_sweep_closes_what_was_not_used_and_nothing_pinned(tmp_path: Path) -> None:
    descriptors = Descriptors(8)
    pinned = SegmentFile(tmp_path / "pinned", descriptors, 0)
    pinned.create(HEADER)
    pinned.pin()
    number = pinned._fd
    for index in range(40):
        SegmentFile(tmp_path / str(index), descriptors, 0).create(HEADER)
        assert descriptors.open_count <= 10
    assert pinned._fd == number and os.pread(number, 6, 0) == HEADER


def test_an_append_to_a_swept_file_opens_it_again(tmp_path: Path) -> None:
    descriptors = Descriptors(2)
    files = [SegmentFile(tmp_path / str(number), descriptors, 0) for number in range(10)]
    for file in files:
        file.create(HEADER)
    for _ in range(3):
        for number, file in enumerate(files):
            file.append([b"%d" % number], 1)
    assert [file.path.read_bytes() for file in files] == [HEADER + b"%d" % n * 3 for n in range(10)]


def test_a_retired_file_closes_with_its_last_pin(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    file.pin()
    file.pin()
    file.close_when_unused()
    file.unpin()
    assert file._fd >= 0
    file.unpin()
    assert file._fd < 0


@pytest.mark.parametrize("size", [0, 100, 4 << 20, (9 << 20) + 5])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_removed_file_is_gone_and_present_readers_are_not_disturbed(tmp_path: Path, size: int, is_read: bool) -> None:
    file = make(tmp_path / "f")
    if size:
        file.append([bytes(size)], size)
    fd = os.open(file.path, os.O_RDONLY)
    file.remove(is_read=is_read)
    assert not file.path.exists()
    left = os.fstat(fd).st_size
    assert left >= len(HEADER) + size if is_read else left <= 4 << 20
    os.close(fd)
    file.remove()


def test_a_file_that_two_remove_at_once_is_gone_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that frees what metadata let go of, and the retention that had them let go of it."""
    file, real = make(tmp_path / "f"), os.fstat

    def other_was_faster(fd: int) -> os.stat_result:
        monkeypatch.undo()
        SegmentFile(file.path, Descriptors(1), 0).remove()
        return real(fd)

    monkeypatch.setattr(os, "fstat", other_was_faster)
    file.remove()
    assert os.fstat is real and not file.path.exists()


def test_a_flush_that_failed_once_is_never_believed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make(tmp_path / "f")
    file.sync()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(FlushLost):
        file.sync()
    monkeypatch.undo()
    with pytest.raises(FlushLost, match="check the disk"):
        file.sync()


@pytest.mark.fault("restart-index-written-file")
def test_a_small_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.json"
    write_durably(path, [b"old ", b"text"])

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFull):
        write_durably(path, [b"new"])
    assert path.read_bytes() == b"old text"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    write_durably(path, [b"new"])
    assert path.read_bytes() == b"new"


def test_the_front_of_a_file(tmp_path: Path) -> None:
    assert read_front(tmp_path / "none", 4) is None
    (tmp_path / "f").write_bytes(b"abcdef")
    assert read_front(tmp_path / "f", 4) == b"abcd"
    assert read_front(tmp_path / "f", 100) == b"abcdef"
    with pytest.raises(Unavailable):
        read_front(tmp_path, 4)


def test_room_is_made_ahead_of_large_appends_and_overwritten_by_the_next(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    expected = HEADER
    for number in range(1, 80):
        data = bytes([number]) * 9_000
        file.append([data], len(data))
        expected += data
        stored = file.path.read_bytes()
        assert file.size_bytes == len(expected)
        assert stored[: len(expected)] == expected
        assert not any(stored[len(expected) :])
        assert len(stored) - len(expected) <= min(LARGEST_ROOM_BYTES, len(expected) + LEAST_APPEND_BYTES * 4)
    file.cut_room()
    assert file.path.read_bytes() == expected


def test_small_appends_make_no_room(tmp_path: Path) -> None:
    file = make(tmp_path / "f")
    for _ in range(50):
        file.append([b"x" * 1000], 1000)
        assert file.path.stat().st_size == file.size_bytes


def test_an_append_that_fits_is_whole_where_its_room_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make(tmp_path / "f")
    real = os.pwritev
    limit = 30_000

    def full_disk(fd: int, buffers: Sequence[bytes], position: int) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)[: max(0, limit - position)]
        if not data:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, [data], position)

    monkeypatch.setattr(os, "pwritev", full_disk)
    for _ in range(2):
        file.append([b"x" * 14_000], 14_000)
    with pytest.raises(DiskFull):
        file.append([b"x" * 14_000], 14_000)
    assert file.path.read_bytes() == HEADER + b"x" * 28_000
    limit = 1 << 30
    file.append([b"y" * 14_000], 14_000)
    assert file.path.read_bytes().rstrip(b"\0") == HEADER + b"x" * 28_000 + b"y" * 14_000


@pytest.mark.fault("disk-written-read-files")
def test_a_file_that_cannot_be_opened_or_made_is_one_that_cannot_be_appended_to(tmp_path: Path) -> None:
    """Else its shard stays with a leader that writes nothing of it."""
    now_ms = 1_000
    calls = DiskCalls(lambda: now_ms)
    descriptors = Descriptors(10, calls=calls)
    in_the_way = tmp_path / "in-the-way"
    in_the_way.write_bytes(b"")
    unmade = SegmentFile(in_the_way / "one.seg", descriptors, 0)
    with pytest.raises(Unavailable):
        unmade.create(b"header")
    gone = SegmentFile(tmp_path / "two.seg", descriptors, 0)
    gone.create(b"header")
    gone.close()
    gone.path.unlink()
    with pytest.raises(NotFound):
        gone.append([b"batch"], 5)
    now_ms += 1_000
    assert calls.unwritable(1_000) == [unmade.path, gone.path]
    in_the_way.unlink()
    unmade.create(b"header")
    assert calls.unwritable(1_000) == [gone.path]

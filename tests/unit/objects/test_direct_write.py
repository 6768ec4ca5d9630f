"""Large objects past the page cache: the same bytes, from where they lie; through it where a disk refuses."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.objects import direct_write
from stratalog.objects.direct_write import BLOCK_BYTES, DirectRefused, in_blocks, write_direct
from stratalog.objects.directory_files import DirectoryFiles
from support.small_disk import NoSmallDisk, small_disk

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "object", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def pages(size_bytes: int, shift: int = 0) -> memoryview:
    """Bytes of any content that begin `shift` behind a page's boundary."""
    mapped = memoryview(mmap.mmap(-1, size_bytes + shift, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[shift:]
    mapped[:] = (os.urandom(997) * (size_bytes // 997 + 1))[:size_bytes]
    return mapped


def address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def part(size_bytes: int) -> list[memoryview]:
    """Header, batches, index."""
    return [memoryview(os.urandom(BLOCK_BYTES)), pages(size_bytes), memoryview(os.urandom(1_234))]


@given(
    st.lists(
        st.tuples(st.sampled_from((0, 1, 511, 512, 513, 1_024, 64 * KIB, 64 * KIB + 1, 300_000)), st.integers(0, 513)),
        max_size=6,
    )
)
def test_blocks_hold_the_same_bytes_and_lie_at_boundaries(shapes: list[tuple[int, int]]) -> None:
    buffers = [pages(size_bytes, shift) if size_bytes else memoryview(b"") for size_bytes, shift in shapes]
    body = b"".join(buffers)
    blocks = in_blocks(buffers)
    if blocks is None:
        return
    written = b"".join(blocks)
    assert written[: len(body)] == body
    assert written[len(body) :] == bytes(-len(body) % BLOCK_BYTES)
    for block in blocks:
        assert block.nbytes
        assert not block.nbytes % BLOCK_BYTES
        assert not address(block) % BLOCK_BYTES


def test_the_batches_of_a_part_are_written_from_where_they_lie() -> None:
    buffers = part(4 * MIB + 777)
    blocks = in_blocks(buffers)
    assert blocks is not None
    assert [block.nbytes for block in blocks] == [BLOCK_BYTES, 4 * MIB + BLOCK_BYTES, 3 * BLOCK_BYTES]
    assert address(blocks[1]) == address(buffers[1])


@pytest.mark.parametrize(
    "buffers",
    [
        [memoryview(b"odd"), pages(MIB)],
        [pages(MIB, shift=8)],
        [memoryview(bytes(MIB))],
        [pages(4 * KIB) for _ in range(100)],
    ],
    ids=["behind an odd header", "at no boundary", "read-only", "many small ones"],
)
def test_what_would_have_to_be_copied_is_left_to_the_page_cache(buffers: list[memoryview]) -> None:
    assert in_blocks(buffers) is None


@pytest.mark.parametrize("size_bytes", [MIB, MIB + 1, 3 * MIB - 1])
def test_a_file_holds_the_bytes_and_nothing_behind_them(descriptor: int, size_bytes: int) -> None:
    buffers = part(size_bytes)
    body = b"".join(buffers)
    blocks = in_blocks(buffers)
    assert blocks is not None
    try:
        write_direct(descriptor, blocks, len(body))
    except DirectRefused:
        pytest.skip("this disk takes no such writes")
    assert os.pread(descriptor, len(body) + 1, 0) == body


def test_a_refused_file_is_empty_and_takes_plain_writes_again(descriptor: int) -> None:
    """Half a block: the kernel refuses it, after it has taken the first one."""
    try:
        write_direct(descriptor, [pages(BLOCK_BYTES), pages(100)], BLOCK_BYTES + 100)
    except DirectRefused:
        assert os.fstat(descriptor).st_size == 0
        assert os.pwrite(descriptor, b"plain", 0) == 5
    else:
        pytest.skip("this file system takes writes of any length past the page cache")


def test_an_object_is_whole_where_the_disk_has_larger_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks smaller than the disk's are to it what ours are to a disk with larger ones."""
    monkeypatch.setattr(direct_write.in_blocks, "__defaults__", (1,))
    files = DirectoryFiles(tmp_path)
    for name in ("first", "second"):
        body = [memoryview(b"odd"), pages(2 * MIB + 5, shift=1)]
        files.write(tmp_path / name, body)
        assert (tmp_path / name).read_bytes() == b"".join(body)
    assert not list((tmp_path / ".incoming").iterdir())


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", 4 * MIB) as disk:
            files = DirectoryFiles(disk)
            with pytest.raises(OSError, match="No space left"):
                files.write(disk / "large", part(5 * MIB))
            assert [path.name for path in disk.iterdir()] == [".incoming"]
            assert not list((disk / ".incoming").iterdir())
            files.write(disk / "small", part(2 * MIB))
            assert (disk / "small").stat().st_size == BLOCK_BYTES + 2 * MIB + 1_234
    except NoSmallDisk as error:
        pytest.skip(str(error))

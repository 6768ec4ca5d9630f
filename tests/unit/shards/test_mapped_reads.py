"""Large ranges in the page cache are mapped and sent from there: not copied, and safe from those who free files."""

from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path

import pytest

from stratalog_node.disk import mapped as mapped_module
from stratalog_node.shards import copy_files as copy_files_module
from stratalog_node.shards.reading import Read
from support.sealed_shards import sealed_shard
from support.shard_rig import ShardRig


def sent(read: Read) -> bytes:
    """What a socket makes of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        taken = b""
        for piece in read.in_memory():
            while len(piece):
                count = ours.send(piece[: 64 << 10])
                piece = piece[count:]
                taken += theirs.recv(count, socket.MSG_WAITALL)
    return taken


def mapped_ranges(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


async def test_a_large_range_is_mapped_and_a_small_one_copied(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        for max_bytes, kind in ((1 << 20, mmap.mmap), (200_000, bytearray)):
            read = rig.reader.read_hot(shard, 0, max_bytes, for_socket=True)
            (piece,) = read.buffers
            assert isinstance(piece, memoryview)
            assert type(piece.obj) is kind
            assert read.release is not None
            read.release()
        assert rig.reader.outstanding_bytes == 0


async def test_what_is_mapped_is_what_a_copy_would_be(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        for offset in (0, 3):  # neither begins with a page
            copied = rig.reader.read_hot(shard, offset, 1 << 20)
            mapped = rig.reader.read_hot(shard, offset, 1 << 20, for_socket=True)
            assert sent(mapped) == b"".join(copied.in_memory())
            assert (mapped.size_bytes, mapped.next_offset) == (copied.size_bytes, copied.next_offset)


async def test_a_mapping_goes_with_its_answer(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        path = rig.file_of(shard, 0)
        read: Read | None = rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
        assert mapped_ranges(path) == 1
        assert read is not None
        assert read.release is not None
        read.release()
        read = None
        assert mapped_ranges(path) == 0


async def test_a_file_freed_under_a_mapping_keeps_its_bytes_until_they_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_files_module, "_PIN_POLLS", 2)
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=80, size=100_000)
        wanted = b"".join(rig.reader.read_hot(shard, 50, 1 << 20).in_memory())
        read = rig.reader.read_hot(shard, 50, 1 << 20, for_socket=True)
        path, opened = rig.file_of(shard, 0), rig.context.descriptors.open_count
        await rig.copies.free_local(shard, shard.segments[0].key)
        assert not path.exists()
        assert sent(read) == wanted
        assert read.release is not None
        read.release()
        assert rig.context.descriptors.open_count == opened - 1


async def test_where_nothing_can_be_mapped_the_range_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        monkeypatch.setattr(mapped_module, "_WHOLE_PAGES", ~0)  # the kernel refuses what does not begin with a page
        read = rig.reader.read_hot(shard, 3, 1 << 20, for_socket=True)
        (piece,) = read.buffers
        assert isinstance(piece, memoryview)
        assert isinstance(piece.obj, bytearray)
        assert read.release is not None
        read.release()
        assert rig.reader.outstanding_bytes == 0


async def test_a_page_that_is_gone_fails_the_call_and_not_the_process(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        read = rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
        os.truncate(rig.file_of(shard, 0), 4096)  # by somebody from outside
        (piece,) = read.in_memory()
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(OSError, match="Bad address"):
            ours.send(piece[8192:16384])

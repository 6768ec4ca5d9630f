"""Large ranges in the page cache go to a socket as slices of the file, not copied, safe from those who free files."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from stratalog.model.errors import Corrupt
from stratalog_node.disk.file_slice import FileSlice
from stratalog_node.shards.copies import file_removal
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import Read
from support.sealed_shards import sealed_shard
from support.shard_rig import ShardRig


def sliced(rig: ShardRig, shard: ShardLog, offset: int, max_bytes: int = 1 << 20) -> tuple[Read, FileSlice]:
    read = rig.reader.read_hot(shard, offset, max_bytes, for_socket=True)
    (piece,) = read.buffers
    assert isinstance(piece, FileSlice)
    return read, piece


def sent(piece: FileSlice) -> bytes:
    """What a socket makes of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        taken = b""
        while len(piece):
            count = piece.send(ours.fileno(), 64 << 10)
            taken += theirs.recv(count, socket.MSG_WAITALL)
    return taken


def unsupported(*_: int) -> int:
    raise OSError(errno.EINVAL, "Invalid argument")


async def test_a_large_range_is_a_slice_of_the_file_and_a_small_one_is_copied(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        large, _ = sliced(rig, shard, 0)
        whole, _ = sliced(rig, shard, 0, 8 << 20)
        assert rig.reader.outstanding_bytes == 0, "they take no memory of this process"
        small = rig.reader.read_hot(shard, 0, 110_000, for_socket=True)
        assert all(isinstance(piece, memoryview) for piece in small.buffers)
        for one in (large, whole, small):
            assert one.release is not None
            one.release()
        assert rig.reader.outstanding_bytes == 0


@pytest.mark.fault("clients-ask-large-ranges")
async def test_slow_clients_of_many_files_keep_no_append_out(tmp_path: Path) -> None:
    """A slice keeps its file open until it is sent: for as long as a client may idle."""
    async with ShardRig(tmp_path, descriptor_limit=8) as rig:
        reads: list[Read] = []
        for number in range(rig.context.descriptors.most + 1):
            shard = await rig.shard_of(f"t{number}")
            await rig.acknowledged(shard, b"x" * 200_000)
            reads.append(rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True))
        assert sum(isinstance(read.buffers[0], FileSlice) for read in reads) == 2
        for read in reads:
            assert read.release is not None
            read.release()
        assert (rig.reader.outstanding_slices, rig.reader.outstanding_bytes) == (0, 0)
        _, piece = sliced(rig, shard, 0)
        assert len(piece) > 200_000


@pytest.mark.parametrize("is_supported", [True, False])
async def test_what_is_sent_is_what_a_copy_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_supported: bool
) -> None:
    """Also of a file system that knows no `sendfile`."""
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        if not is_supported:
            monkeypatch.setattr(os, "sendfile", unsupported)
        for offset in (0, 3):  # neither begins with a page
            copied = rig.reader.read_hot(shard, offset, 1 << 20)
            read, piece = sliced(rig, shard, offset)
            assert sent(piece) == b"".join(copied.in_memory())
            assert (read.size_bytes, read.next_offset) == (copied.size_bytes, copied.next_offset)


async def test_a_file_freed_under_a_slice_keeps_its_bytes_until_they_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_removal, "_PIN_POLLS", 2)
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=80, size=100_000)
        wanted = b"".join(rig.reader.read_hot(shard, 50, 1 << 20).in_memory())
        read, piece = sliced(rig, shard, 50)
        path, opened = rig.file_of(shard, 0), rig.context.descriptors.open_count
        await rig.copies.free_local(shard, shard.segments[0].key)
        assert not path.exists()
        assert sent(piece) == wanted
        assert read.release is not None
        read.release()
        assert rig.context.descriptors.open_count == opened - 1


@pytest.mark.parametrize("is_supported", [True, False])
async def test_a_file_that_ends_early_is_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_supported: bool
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=20, size=100_000)
        _, piece = sliced(rig, shard, 3)
        os.truncate(rig.file_of(shard, 0), 4096)  # by another process
        if not is_supported:
            monkeypatch.setattr(os, "sendfile", unsupported)
        with pytest.raises(Corrupt, match="ends early"):
            sent(piece)

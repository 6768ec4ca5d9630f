"""A move, and what it undoes, leaves each file that it has not made itself; a proven file is never the one to go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog_node.disk.layout import segment_path
from stratalog_node.shards.copies.missing_files import copy_gone, look_for
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.moves.copy_move import CopyMove
from stratalog_node.shards.moves.copy_mover import MovePolicy
from support.sealed_shards import sealed_shard
from support.shard_rig import ShardRig

_AT_ONCE = MovePolicy(after_ms=lambda topic_id: 0, least_free_bytes=0, bytes_per_s=1 << 30)
_BY_HAND = MovePolicy(after_ms=lambda topic_id: -1, least_free_bytes=0, bytes_per_s=1 << 30)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ShardRig]:
    (tmp_path / "hdd").mkdir()
    async with ShardRig(tmp_path, further=[tmp_path / "hdd"], moves=_BY_HAND) as made:
        yield made


def _sealed(shard: ShardLog) -> SealedCopy:
    copy = shard.copies[0]
    assert isinstance(copy, SealedCopy)
    return copy


async def _read(rig: ShardRig, shard: ShardLog) -> bytes:
    read = await rig.reader.read(shard, 0, 1 << 20)
    data = b"".join(map(bytes, read.in_memory()))
    if read.release is not None:
        read.release()
    return data


async def _move(rig: ShardRig, policy: MovePolicy = _AT_ONCE) -> None:
    rig.local.several.mover._policy = policy
    await rig.local.several.mover.move_due()


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.fault("copy-move-file-in-the-way")
async def test_a_move_leaves_a_file_that_lies_where_it_would_go(rig: ShardRig) -> None:
    copy = _sealed(await sealed_shard(rig))
    there = segment_path(rig.further[0], copy.key)
    there.parent.mkdir(parents=True)
    there.write_bytes(b"kept for a person")
    there.with_suffix(".idx").write_bytes(b"its index block")
    await _move(rig)
    assert rig.local.several.mover.stats.failures == 1
    assert there.read_bytes() == b"kept for a person" and there.with_suffix(".idx").read_bytes() == b"its index block"


@pytest.mark.fault("copy-move-file-in-the-way")
async def test_a_copy_that_is_fetched_again_during_its_move_to_the_first_directory_stays(
    rig: ShardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source fails while it is read; the copy that is made again lies where the move would put its own."""
    shard = await sealed_shard(rig)
    await _move(rig)
    copy = _sealed(shard)
    await rig.context.removal.settle(copy.key)
    rig.layout.further[0].is_draining = True
    first = segment_path(rig.layout.root, copy.key)
    write = CopyMove._write

    def write_and_fail(self: CopyMove) -> object:
        yield from write(self)
        rig.context.layout.moved.pop(copy.key)
        shard.take_out(copy.key)
        first.write_bytes(b"fetched from another node")
        yield 0

    monkeypatch.setattr(CopyMove, "_write", write_and_fail)
    await _move(rig)
    assert first.read_bytes() == b"fetched from another node"


@pytest.mark.fault("copy-move-file-in-the-way")
async def test_a_file_that_is_in_use_is_not_undone(rig: ShardRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file vanished as the new one got its name, and a reader found the new one first."""
    shard = await sealed_shard(rig)
    copy, before = _sealed(shard), await _read(rig, shard)
    do = rig.local.several.mover._do_steps

    async def do_and_find(*args: object) -> bool:
        done = await do(*args)  # type: ignore[arg-type]
        copy.file.path.unlink()
        copy_gone(shard, copy)
        assert await look_for(shard, copy.key)
        return done

    monkeypatch.setattr(rig.local.several.mover, "_do_steps", do_and_find)
    await _move(rig)
    assert _sealed(shard).file.path == segment_path(rig.further[0], copy.key)
    assert await _read(rig, shard) == before


@pytest.mark.fault("copy-move-damaged")
async def test_a_copy_that_is_found_damaged_after_it_was_copied_is_replaced_by_the_proven_one(
    rig: ShardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await sealed_shard(rig)
    copy, before = _sealed(shard), await _read(rig, shard)
    write = CopyMove._write

    def write_and_damage(self: CopyMove) -> object:
        yield from write(self)
        _damage(copy.file.path)
        copy.damage = "a reader found it"

    monkeypatch.setattr(CopyMove, "_write", write_and_damage)
    await _move(rig)
    assert _sealed(shard).damage is None
    assert _sealed(shard).file.path == segment_path(rig.further[0], copy.key)
    assert await _read(rig, shard) == before


@pytest.mark.fault("copy-move-damaged")
async def test_a_second_file_replaces_a_copy_in_which_a_reader_found_damage_first(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    copy, before = _sealed(shard), await _read(rig, shard)
    list(CopyMove(copy.key, copy.seal, copy.file.path, rig.further[0]).steps())
    _damage(copy.file.path)
    await rig.restart("crash")
    shard = rig.shard(shard)
    _sealed(shard).damage = "a reader found it"
    await _move(rig, _BY_HAND)
    assert _sealed(shard).file.path == segment_path(rig.further[0], copy.key)
    assert await _read(rig, shard) == before

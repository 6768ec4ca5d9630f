"""Sealed copies in several data directories: moved with proof, found again after a kill between any two steps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.ids import SegmentKey
from stratalog_node.disk.layout import segment_path
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.moves.copy_move import CopyMove
from stratalog_node.shards.moves.copy_mover import MovePolicy
from support.sealed_shards import sealed_shard
from support.shard_rig import ShardRig
from support.waiting import eventually

_AT_ONCE = MovePolicy(after_ms=lambda topic_id: 0, least_free_bytes=0, bytes_per_s=1 << 30)
_BY_HAND = MovePolicy(after_ms=lambda topic_id: -1, least_free_bytes=0, bytes_per_s=1 << 30)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ShardRig]:
    (tmp_path / "hdd").mkdir()
    async with ShardRig(tmp_path, further=[tmp_path / "hdd"], moves=_BY_HAND) as made:
        yield made


async def _read(rig: ShardRig, shard: ShardLog) -> bytes:
    read = await rig.reader.read(shard, 0, 1 << 20)
    data = b"".join(map(bytes, read.in_memory()))
    if read.release is not None:
        read.release()
    return data


def _sealed(shard: ShardLog) -> SealedCopy:
    copy = shard.copies[0]
    assert isinstance(copy, SealedCopy)
    return copy


def _files(rig: ShardRig, key: SegmentKey) -> list[Path]:
    return [path for root in (rig.layout.root, *rig.further) if (path := segment_path(root, key)).exists()]


async def _move(rig: ShardRig, policy: MovePolicy = _AT_ONCE) -> None:
    rig.local.several.mover._policy = policy
    await rig.local.several.mover.move_due()


async def test_a_moved_copy_is_read_as_before_and_the_old_file_goes(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    key, before = _sealed(shard).key, await _read(rig, shard)
    await _move(rig)
    there = segment_path(rig.further[0], key)
    assert _sealed(shard).file.path == there and there.with_suffix(".idx").exists()
    await rig.context.removal.settle(key)
    assert _files(rig, key) == [there]
    assert await _read(rig, shard) == before
    assert (rig.local.several.mover.stats.copies, rig.local.several.mover.stats.failures) == (1, 0)


@pytest.mark.parametrize("how", ["stop", "crash", "power_cut"])
async def test_a_start_finds_moved_copies(rig: ShardRig, how: str) -> None:
    shard = await sealed_shard(rig)
    key, before = _sealed(shard).key, await _read(rig, shard)
    await _move(rig)
    await rig.context.removal.settle(key)
    await rig.restart(how)
    shard = rig.shard(shard)
    assert shard.stop is None and not shard.missing
    assert _sealed(shard).file.path == segment_path(rig.further[0], key)
    assert await _read(rig, shard) == before


@pytest.mark.fault("copy-move-cut-short")
async def test_a_kill_between_any_two_steps_of_a_move_leaves_one_copy_that_counts(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    key, before = _sealed(shard).key, await _read(rig, shard)
    for done in itertools.count():
        copy = _sealed(rig.shard(shard))
        steps = CopyMove(key, copy.seal, copy.file.path, rig.further[0]).steps()
        taken = len(list(itertools.islice(steps, done)))
        await rig.restart("power_cut")
        shard = rig.shard(shard)
        assert shard.stop is None and not shard.missing, f"after {done} steps"
        assert await _read(rig, shard) == before
        await _move(rig, _BY_HAND)  # settles what was found twice
        assert _files(rig, key) == [segment_path(rig.layout.root, key)], f"after {done} steps"
        assert list((rig.further[0] / "moving").iterdir()) == []
        if taken < done:
            break
    assert done > 4


@pytest.mark.fault("copy-move-cut-short")
async def test_a_kill_before_the_old_file_went_leaves_one_file_after_the_next_start(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    key, before = _sealed(shard).key, await _read(rig, shard)
    old = _sealed(shard).file
    old.pin()  # a reader, for as long as this process lives
    await _move(rig)
    await rig.crash()
    old.unpin()
    assert len(_files(rig, key)) == 2
    await rig.start()
    shard = rig.shard(shard)
    assert await _read(rig, shard) == before
    await _move(rig, _BY_HAND)
    assert len(_files(rig, key)) == 1 and rig.local.several.mover.stats.second_files == 1
    assert await _read(rig, rig.shard(shard)) == before


@pytest.mark.fault("copy-move-damaged")
async def test_of_two_files_the_damaged_one_goes(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    copy, before = _sealed(shard), await _read(rig, shard)
    list(CopyMove(copy.key, copy.seal, copy.file.path, rig.further[0]).steps())
    await rig.crash()
    first = segment_path(rig.layout.root, copy.key)
    data = bytearray(first.read_bytes())
    data[-3] ^= 1
    first.write_bytes(data)
    await rig.start()
    await _move(rig, _BY_HAND)
    shard = rig.shard(shard)
    await rig.context.removal.settle(copy.key)
    assert _files(rig, copy.key) == [segment_path(rig.further[0], copy.key)]
    assert await _read(rig, shard) == before


@pytest.mark.fault("copy-move-damaged")
async def test_a_damaged_copy_is_not_moved(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    copy = _sealed(shard)
    data = bytearray(copy.file.path.read_bytes())
    data[-3] ^= 1
    copy.file.path.write_bytes(data)
    await _move(rig)
    assert _sealed(shard) is copy and rig.local.several.mover.stats.failures == 1
    assert _files(rig, copy.key) == [copy.file.path]
    assert not copy.file.path.with_name("moving").exists() and list((rig.further[0] / "moving").iterdir()) == []


async def test_a_copy_that_is_freed_during_its_move_is_gone_everywhere(
    rig: ShardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await sealed_shard(rig)
    key, take = _sealed(shard).key, rig.local.several.mover._do_steps

    async def take_and_free(*args: object) -> bool:
        done = await take(*args)  # type: ignore[arg-type]
        await rig.copies.free_local(shard, key)
        return done

    monkeypatch.setattr(rig.local.several.mover, "_do_steps", take_and_free)
    await _move(rig)
    assert _files(rig, key) == [] and rig.local.several.mover.stats.copies == 0


async def test_freeing_a_moved_copy_removes_its_file(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    key = _sealed(shard).key
    await _move(rig)
    await rig.context.removal.settle(key)
    await rig.copies.free_local(shard, key)
    assert _files(rig, key) == [] and key not in rig.layout.moved


async def test_a_full_directory_gets_nothing(rig: ShardRig, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratalog_node.shards.flush.shard_lookup import DiskUsage

    shard = await sealed_shard(rig)
    where = "stratalog_node.shards.moves.copy_mover.usage_of"
    monkeypatch.setattr(where, lambda root: DiskUsage(str(root), 1 << 40, 0))
    await _move(rig)
    assert _sealed(shard).file.path == segment_path(rig.layout.root, _sealed(shard).key)


@pytest.mark.fault("data-directory-failed")
async def test_a_directory_that_fails_takes_only_its_own_copies(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    other = await rig.shard_of("trains")
    rig.append(other, b"kept")
    other.ask_roll(rig.clock())
    await rig.all_sealed()
    key = _sealed(shard).key
    copy_of_other = _sealed(other)
    copy_of_other.damage = "so that it is not moved"
    await _move(rig)
    copy_of_other.damage = None
    (rig.further[0] / "directory.json").unlink()
    (directory,) = rig.layout.further
    why = await rig.local.several.watch.check(directory)
    assert why is not None and "cannot be read" in why
    await rig.local.several.watch.fail(directory, why)
    assert shard.missing == {key} and not other.missing
    assert rig.layout.moved == {} and rig.local.several.watch.stats.unusable == 1
    assert rig.local.watch.trouble is None, "the first disk is well"
    assert list(rig.local.several.watch.troubles) == [str(rig.further[0])]


@pytest.mark.fault("data-directory-absent")
async def test_copies_of_an_absent_directory_are_away_and_come_back(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    key, before = _sealed(shard).key, await _read(rig, shard)
    await _move(rig)
    await rig.context.removal.settle(key)
    await rig.crash()
    unplugged = rig.further[0].with_name("unplugged")
    rig.further[0].rename(unplugged)
    await rig.start()
    shard = rig.shard(shard)
    assert shard.missing == {key} and shard.stop is None
    assert (rig.stats.away_copies, rig.stats.missing_copies) == (1, 0)
    await rig.acknowledged(shard, b"written meanwhile")
    await rig.crash()
    unplugged.rename(rig.further[0])
    await rig.start()
    shard = rig.shard(shard)
    assert not shard.missing and await _read(rig, shard) == before


async def test_the_budget_bounds_what_a_pass_writes(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    mover = rig.local.several.mover
    mover._budget = type(mover._budget)(1, 1, rig.steady())
    rig.local.several.mover._policy = _AT_ONCE
    moving = asyncio.create_task(mover.move_due())
    await eventually(lambda: any((rig.further[0] / "moving").iterdir()))
    assert not moving.done() and _sealed(shard).file.path == segment_path(rig.layout.root, _sealed(shard).key)
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)


async def test_a_drained_directory_gives_its_copies_back(rig: ShardRig) -> None:
    shard = await sealed_shard(rig)
    key, before = _sealed(shard).key, await _read(rig, shard)
    await _move(rig)
    await rig.context.removal.settle(key)
    rig.layout.further[0].is_draining = True
    await _move(rig)
    await rig.context.removal.settle(key)
    assert _files(rig, key) == [segment_path(rig.layout.root, key)] and rig.layout.moved == {}
    assert rig.local.several.mover.stats.draining == 1, "when this pass began"
    await _move(rig)
    assert rig.local.several.mover.stats.draining == 0
    assert await _read(rig, shard) == before
    await rig.restart("power_cut")
    assert await _read(rig, rig.shard(shard)) == before


async def test_topics_say_when_their_copies_move(rig: ShardRig) -> None:
    early, late = await sealed_shard(rig), await rig.shard_of("trains")
    rig.append(late, b"kept")
    late.ask_roll(rig.clock())
    await rig.all_sealed()
    topics = {early.key.topic_id: 0, late.key.topic_id: -1}
    await _move(rig, MovePolicy(topics.__getitem__, 0, 1 << 30))
    assert list(rig.layout.moved) == [_sealed(early).key]


@pytest.mark.fault("data-directory-failed")
async def test_a_directory_that_fails_during_a_move_to_it_gets_nothing(
    rig: ShardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await sealed_shard(rig)
    key, do = _sealed(shard).key, rig.local.several.mover._do_steps

    async def do_and_fail(*args: object) -> bool:
        done = await do(*args)  # type: ignore[arg-type]
        await rig.local.several.watch.fail(rig.layout.further[0], "its disk is gone")
        return done

    monkeypatch.setattr(rig.local.several.mover, "_do_steps", do_and_fail)
    await _move(rig)
    first = segment_path(rig.layout.root, key)
    assert _files(rig, key)[0] == first and _sealed(shard).file.path == first and not shard.missing


@pytest.mark.fault("data-directory-failed")
async def test_a_second_file_stays_if_the_directory_of_the_first_fails_meanwhile(
    rig: ShardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await sealed_shard(rig)
    copy = _sealed(shard)
    list(CopyMove(copy.key, copy.seal, copy.file.path, rig.further[0]).steps())
    await rig.restart("crash")
    do, shard = rig.local.several.mover._do_steps, rig.shard(shard)

    async def do_and_lose(*args: object) -> bool:
        done = await do(*args)  # type: ignore[arg-type]
        shard.take_out(copy.key)
        return done

    monkeypatch.setattr(rig.local.several.mover, "_do_steps", do_and_lose)
    await _move(rig, _BY_HAND)
    assert segment_path(rig.further[0], copy.key).exists()


@pytest.mark.fault("data-directory-failed")
async def test_a_copy_that_was_proven_counts_if_its_source_fails_then(
    rig: ShardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await sealed_shard(rig)
    key, before = _sealed(shard).key, await _read(rig, shard)
    await _move(rig)
    await rig.context.removal.settle(key)
    (directory,) = rig.layout.further
    directory.is_draining = True
    do = rig.local.several.mover._do_steps

    async def do_and_fail(*args: object) -> bool:
        await do(*args)  # type: ignore[arg-type]
        await rig.local.several.watch.fail(directory, "its disk is gone")
        return False

    monkeypatch.setattr(rig.local.several.mover, "_do_steps", do_and_fail)
    await _move(rig)
    assert _sealed(shard).file.path == segment_path(rig.layout.root, key) and not shard.missing
    assert await _read(rig, shard) == before

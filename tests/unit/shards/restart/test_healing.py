"""The disk lost what the meta service knows of: it comes back from the bucket, or the shard says what is missing."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.restart.restart_events import FileStep, OpenFile, RestartEvent
from stratalog.model.commands.table_commands import AdvanceLogStart, DeleteTopic, SealSegment
from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import SegmentState
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog_node.backoff import Backoff
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.restart import healing
from stratalog_node.shards.restart.healed_file import CommittedRange
from stratalog_node.shards.restart.opening import OpenedFiles
from stratalog_node.tier.uploads.committed_ranges import CommittedRanges
from support.faulty_store import FaultyStore
from support.shard_rig import ShardRig
from support.tier_rig import RIG_LIMITS
from support.tiered_shards import TieredShardRig
from support.waiting import eventually


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the attempts at healing, which these tests let fail."""
    monkeypatch.setattr(healing, "Backoff", partial(Backoff, 0.001))


async def acknowledged(rig: ShardRig, shard: ShardLog, *values: bytes) -> None:
    for value in values:
        await rig.acknowledged(shard, value)


@pytest.mark.fault("power-fails-upload-flush")
async def test_a_tail_that_was_uploaded_but_never_flushed_comes_back_after_a_power_cut(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        await rig.restart("power_cut")
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]
        await acknowledged(rig, shard, b"d")
        await rig.restart("power_cut")
        assert (await rig.read_values(await rig.healed(shard)))[:3] == [b"a", b"b", b"c"], "healed means flushed"


async def test_only_the_part_that_is_missing_is_written_again(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, shard, b"c", b"d")
        await rig.uploaded()
        await rig.crash()
        path = rig.file_of(shard)
        whole = path.read_bytes()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69 * 3 + 5)
        await rig.start()
        shard = await rig.healed(shard)
        assert rig.stats.healed_bytes == 69 and rig.stats.healed_shards == 1
        assert path.read_bytes() == whole


@pytest.mark.fault("power-fails-upload-flush")
async def test_what_lies_behind_a_damaged_batch_is_kept(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, shard, b"c")
        await rig.crash()
        path = rig.file_of(shard)
        data = bytearray(path.read_bytes())
        data[SEGMENT_HEADER_BYTES + 69 + 65] ^= 1
        path.write_bytes(data)
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b", b"c"], "c was never uploaded"


@pytest.mark.fault("power-fails-upload-flush")
async def test_a_rolled_segment_whose_tail_is_gone_comes_back_and_the_next_one_is_loaded(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"c", b"d")
        await eventually(lambda: (segment := rig.catalog.segment(shard.segments[0].key)) and segment.end_offset == 2)
        await eventually(lambda: _is_committed(rig, shard))
        path = rig.file_of(shard, 0)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69)
        rig.meta.open_all()
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c", b"d"]
        await rig.all_sealed()
        await acknowledged(rig, shard, b"e")
        assert shard.high_watermark == 5


def _is_committed(rig: TieredShardRig, shard: ShardLog, index: int = 0, end_offset: int = 2) -> bool:
    rig.uploader.poke()
    segment = rig.catalog.segment(shard.segments[index].key)
    return segment is not None and segment.remote.commit_offset == end_offset


async def test_a_file_that_is_gone_altogether_is_made_again(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await rig.crash()
        rig.file_of(shard).unlink()
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b"]


@pytest.mark.fault("power-fails-upload-flush")
async def test_an_unreachable_store_at_start_blocks_no_other_shard_and_the_shard_heals_later(
    tmp_path: Path,
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        hurt, fine = rig.shard(topic, 0), rig.shard(topic, 1)
        await acknowledged(rig, hurt, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, fine, b"x")
        await rig.flusher._flush_dirty(checkpoint_all=False)
        path = rig.file_of(hurt)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES)
        rig.store.is_away = True
        await rig.start()
        hurt, fine = rig.shard(hurt), rig.shard(fine)
        await acknowledged(rig, fine, b"y")
        asked = rig.append(hurt, b"c")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        await eventually(lambda: hurt.stop is not None and "connection refused" in hurt.stop.reason)
        assert hurt.stop is not None and hurt.stop.cause is StopCause.HEALING
        rig.store.is_away = False
        await acknowledged(rig, await rig.healed(hurt), b"c")
        assert await rig.read_values(hurt) == [b"a", b"b", b"c"]


@pytest.mark.fault("power-fails-upload-flush")
async def test_appends_during_a_second_read_of_a_shard_do_not_restart_its_file(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for _ in range(20):
            await acknowledged(rig, shard, b"x" * 20_000)
        await rig.uploaded()
        await rig.restart("power_cut")
        shard = rig.shard(shard)
        asked = []
        while shard.active is None:
            asked.append(rig.append(shard, b"y"))
            await asyncio.sleep(0)
        assert asked and all(a.is_answered and a.error is ErrorCode.KAFKA_STORAGE_ERROR for a in asked)
        assert await rig.read_values(shard) == [b"x" * 20_000] * 20


@pytest.mark.fault("offsets-neither-disk-object")
async def test_offsets_that_are_nowhere_are_named_and_the_shard_stops(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        (chunk,) = [key for key in await rig.store.keys() if key.endswith(("chunk", "bundle"))]
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        await rig.store.inner.delete([chunk])
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
        assert shard.stop is not None
        assert "offsets 1 to 3 were written and are lost" in shard.stop.reason


@pytest.mark.fault("offsets-neither-disk-object")
async def test_a_disk_that_the_bucket_does_not_continue_stops_the_shard(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        shard, other = rig.shard(topic, 0), rig.shard(topic, 1)
        await acknowledged(rig, shard, b"a", b"b")
        await acknowledged(rig, other, b"z")
        await rig.uploaded()
        foreign = rig.file_of(other).read_bytes()[SEGMENT_HEADER_BYTES:]
        path = rig.file_of(shard)
        await rig.crash()
        path.write_bytes(path.read_bytes()[:SEGMENT_HEADER_BYTES] + foreign)
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.UNREADABLE)
        assert path.read_bytes().endswith(foreign), "nothing of it was overwritten"


@pytest.mark.fault("offsets-neither-disk-object")
async def test_with_unclean_seal_lost_offsets_are_given_up_and_the_log_continues_without_a_gap(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"d")
        path = rig.file_of(shard, 0)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69 + 20)
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is None)
        assert await rig.read_values(shard) == [b"a", b"d"]
        assert rig.stats.given_up_offsets == 2
        assert path.with_suffix(".1.given-up").read_bytes(), "what was there is kept for a human"
        await rig.all_sealed()
        assert shard.segments[0].state is SegmentState.SEALED and shard.segments[0].end_offset == 3
        await acknowledged(rig, shard, b"e")
        await rig.restart("stop")
        assert await rig.read_values(rig.shard(shard)) == [b"a", b"d", b"e"]


@pytest.mark.fault("offsets-neither-disk-object")
async def test_what_is_kept_when_offsets_are_given_up_a_second_time_is_kept_beside_the_first(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"d")
        path = rig.file_of(shard, 0)
        whole = path.read_bytes()
        batch_of_b = whole[SEGMENT_HEADER_BYTES + 69 :][:69]
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 2 * 69 + 20)
        await rig.start()
        await eventually(lambda: rig.shard(shard).stop is None)
        await rig.crash()
        with path.open("r+b") as file:
            file.seek(SEGMENT_HEADER_BYTES + 68)
            file.write(b"~")
        await rig.start()
        await eventually(lambda: rig.shard(shard).stop is None)
        assert await rig.read_values(rig.shard(shard)) == [b"d"]
        kept = {each.name.split(".", 1)[1]: each.read_bytes() for each in path.parent.glob("*.given-up")}
        assert kept["2.given-up"] == whole[SEGMENT_HEADER_BYTES + 2 * 69 :][:20]
        assert batch_of_b in kept["0.given-up"], "b was whole, and nowhere else"


async def test_with_unclean_seal_a_shard_continues_though_objects_of_its_bucket_are_gone(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        (chunk,) = [key for key in await rig.store.keys() if key.endswith(("chunk", "bundle"))]
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        await rig.store.inner.delete([chunk])
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a"] and shard.high_watermark == 3
        assert (await rig.acknowledged(shard, b"d")).offset == 3


LEFT = [b"a", b"b", b"e", b"f", b"i", b"j"]


async def _parts_with_holes(
    rig: TieredShardRig,
    shard: ShardLog,
    *,
    holes: tuple[int, ...] = (1, 3),
    tail: tuple[bytes, ...] = (),
    size_bytes: int = 1,
) -> list[str]:
    """Five parts of two records each. The disk has half of the first one, and a tail that was flushed is gone. Returns:
    the objects of the parts."""
    for values in (b"ab", b"cd", b"ef", b"gh", b"ij"):
        await acknowledged(rig, shard, values[:1], values[1:] * (1 if values == b"ij" else size_bytes))
        await rig.uploaded()
    segment = rig.catalog.segment(shard.segments[0].key)
    assert segment is not None and len(segment.remote.parts) == 5
    await acknowledged(rig, shard, *tail)
    await rig.flusher._flush_dirty(checkpoint_all=True)
    await rig.crash()
    os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
    objects = [part.object_key for part in segment.remote.parts]
    await rig.store.inner.delete([objects[index] for index in holes])
    return objects


@pytest.mark.fault("offsets-neither-disk-object")
async def test_with_unclean_seal_just_what_is_nowhere_is_given_up(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await _parts_with_holes(rig, shard)
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == LEFT
        assert rig.stats.given_up_offsets == 4 and rig.stats.healed_bytes == 69 * 5
        assert (await rig.acknowledged(shard, b"k")).offset == 10
        await rig.restart("power_cut")
        assert (await rig.read_values(await rig.healed(shard)))[:6] == LEFT


@pytest.mark.fault("offsets-neither-disk-object")
async def test_with_unclean_seal_a_hole_at_the_end_is_given_up_as_well(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await _parts_with_holes(rig, shard, holes=(1, 3, 4))
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == LEFT[:4] and shard.high_watermark == 10
        assert rig.stats.given_up_offsets == 6
        assert (await rig.acknowledged(shard, b"k")).offset == 10


@pytest.mark.fault("offsets-neither-disk-object")
async def test_objects_that_hold_something_else_are_holes(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        objects = await _parts_with_holes(rig, shard)
        await rig.store.inner.put(objects[1], [await rig.store.inner.get(objects[2])])
        await rig.store.inner.put(objects[3], [b"x"])
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == LEFT
        assert rig.stats.given_up_offsets == 4


@pytest.mark.fault("offsets-neither-disk-object")
async def test_parts_that_are_not_contiguous_behind_a_hole_stop_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await _parts_with_holes(rig, shard, holes=(1,))
        real = CommittedRanges.read

        async def of_another_life(*arguments: Any) -> AsyncIterator[CommittedRange]:
            async for found in real(*arguments):
                yield replace(found, digest_after=bytes(16)) if found.base_offset == 6 else found

        monkeypatch.setattr(CommittedRanges, "read", of_another_life)
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.UNREADABLE)
        assert shard.stop is not None and "part from 6 on does not continue" in shard.stop.reason
        assert rig.stats.given_up_offsets == 0


@pytest.mark.fault("offsets-neither-disk-object")
async def test_a_store_that_goes_away_while_lost_offsets_are_looked_for_makes_no_more_of_them(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        last = (await _parts_with_holes(rig, shard))[-1]
        real, answers = rig.store.get_range, 0

        async def at_times(key: str, start: int, end: int) -> bytes:
            nonlocal answers
            answers += key == last
            if key == last and answers in (1, 3):
                raise (Unavailable if answers == 1 else NotFound)("away")
            return await real(key, start, end)

        rig.store.get_range = at_times  # type: ignore[method-assign]
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == LEFT
        assert rig.stats.given_up_offsets == 4 and answers > 3


class _Killed:
    """From the write of this number on nothing reaches the disk. What the last flush covered is kept beside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
        self.writes_left = number - 1
        self.is_dead = False
        self.path = path
        self.flushed = path.read_bytes()
        for of, name in (
            (SegmentFile, "put_back"),
            (SegmentFile, "truncate"),
            (SegmentFile, "sync"),
            (Checkpoints, "revoke"),
        ):
            monkeypatch.setattr(of, name, self._counted(getattr(of, name)))

    def _counted(self, real: Callable[..., None]) -> Callable[..., None]:
        def write(*arguments: Any, **options: Any) -> None:
            self.is_dead = self.is_dead or self.writes_left == 0
            if self.is_dead:
                raise Unavailable("killed")
            self.writes_left -= 1
            real(*arguments, **options)
            if real.__name__ == "sync":
                self.flushed = self.path.read_bytes()

        return write


@pytest.mark.fault("offsets-neither-disk-object")
@pytest.mark.parametrize("how", ["crash", "power_cut"])
async def test_a_crash_between_any_two_writes_of_giving_up_leaves_what_the_next_life_begins_with(
    tmp_path: Path, how: str
) -> None:
    """Offsets 10 to 12 are known to a checkpoint alone."""
    number = 1
    while await _is_killed_at(tmp_path / str(number), number, how):
        number += 1
    assert number > 9


async def _is_killed_at(root: Path, number: int, how: str) -> bool:
    """Whether there was a write of that number."""
    async with TieredShardRig(root) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await _parts_with_holes(rig, shard, tail=(b"k", b"l"))
        with pytest.MonkeyPatch.context() as patched:
            killed = _Killed(patched, rig.file_of(shard), number)
            await rig.start()
            await eventually(lambda: killed.is_dead or rig.shard(shard).stop is None)
            await rig.crash()
            if how == "power_cut":
                killed.path.write_bytes(killed.flushed)
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == LEFT, f"killed at write {number}"
        assert (await rig.acknowledged(shard, b"m")).offset == 12, f"killed at write {number}"
        return killed.is_dead


@pytest.mark.fault("node-stopped-file-shard")
async def test_a_node_stops_though_the_file_that_it_is_healing_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_write = threading.Event(), threading.Event()

    def put_back(*_: object) -> None:
        is_writing.set()
        may_write.wait(30)

    def sync(*_: object, **__: object) -> None:
        raise Unavailable("no flush now")

    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        with monkeypatch.context() as patched:
            patched.setattr(SegmentFile, "put_back", put_back)
            patched.setattr(SegmentFile, "sync", sync)
            await rig.start()
            await eventually(is_writing.is_set)
            (healing_task,) = rig.healing._tasks
            stop = asyncio.ensure_future(rig.crash())
            await eventually(lambda: healing_task.cancelling() > 0)
            may_write.set()
            await asyncio.wait_for(stop, 20)
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b"]


@pytest.mark.fault("offsets-neither-disk-object")
async def test_without_unclean_seal_just_what_is_nowhere_is_named(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await _parts_with_holes(rig, shard)
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
        assert shard.stop is not None
        assert "offsets 2 to 4, 6 to 8 were written and are lost" in shard.stop.reason
        assert "uncleanSeal=allow" in shard.stop.next_step and "behind" in shard.stop.next_step


@pytest.mark.fault("offsets-neither-disk-object")
async def test_a_segment_with_offsets_given_up_is_held_and_holds_up_no_uploads(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        objects = await _parts_with_holes(rig, shard, size_bytes=RIG_LIMITS.chunk_bytes)
        assert {key.rpartition(".")[2] for key in objects} == {"chunk", "bundle"}
        await rig.start()
        shard = await rig.healed(shard)
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"k")
        await rig.all_sealed()
        await eventually(lambda: rig.uploader.status().uploader.held)
        ((key, _reason),) = rig.uploader.status().uploader.held
        assert key == shard.segments[0].key
        rig.uploader.poke()
        await eventually(lambda: _is_committed(rig, shard, -1, 11))
        assert rig.uploader.stats.attempts_refused == 0, "the store is not taken for away"


@pytest.mark.fault("node-started-bucket-hold")
async def test_with_unclean_seal_nothing_is_given_up_because_the_wrong_bucket_was_named(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        right, rig.store = rig.store, FaultyStore(open_memory(StoreSettings(backoff_ms=1, backoff_cap_ms=2)), rig.clock)
        await rig.start()
        refused = rig.shard(shard)
        await eventually(lambda: refused.stop is not None and "holds nothing of cluster" in refused.stop.reason)
        assert refused.stop is not None and refused.stop.cause is StopCause.HEALING
        assert rig.stats.given_up_offsets == 0
        await eventually(lambda: rig.uploader.claim.fork)
        assert not await rig.store.keys(), "nothing goes where the data is not"
        await rig.crash()
        rig.store = right
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b", b"c"]


async def test_a_directory_that_cannot_be_listed_once_does_not_end_the_healing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await rig.power_cut()
        real, failed = NodeLayout.list_shard, []

        def fails_once(layout: NodeLayout, key: ShardKey) -> list[SegmentKey]:
            if not failed:
                failed.append(key)
                raise OSError(errno.EIO, "input/output error")
            return real(layout, key)

        monkeypatch.setattr(NodeLayout, "list_shard", fails_once)
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b"]
        assert failed == [shard.key]


async def test_a_topic_deleted_while_its_healed_shard_is_read_again_accepts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await rig.power_cut()
        real = OpenedFiles.perform

        async def while_it_is_deleted(files: OpenedFiles, step: FileStep) -> RestartEvent | None:
            if isinstance(step, OpenFile) and rig.stats.healed_bytes:
                await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
                await eventually(lambda: rig.shards.get(shard.key) is None)
            return await real(files, step)

        monkeypatch.setattr(OpenedFiles, "perform", while_it_is_deleted)
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.DELETED)
        await eventually(lambda: not rig.healing._tasks)
        assert shard.stop is not None and shard.stop.cause is StopCause.DELETED
        assert shard.active is None and not rig.context.descriptors._open


# The log start ----------------------------------------------------------------------------------------------------
@pytest.mark.fault("records-deleted-power-cut")
async def test_a_log_whose_tail_is_lost_continues_behind_the_deleted_records(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a")
        await rig.flusher._flush_dirty(checkpoint_all=False)
        await acknowledged(rig, shard, b"b", b"c", b"d")
        await shard.delete_records_before(3)
        await rig.restart("power_cut")
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is None)
        assert shard.log_start_offset == 3 == shard.high_watermark
        asked = await rig.acknowledged(shard, b"e")
        assert asked.offset == 3
        assert await rig.read_values(shard) == [b"e"], "what is acknowledged after the loss is visible"
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"f")
        await rig.all_sealed()
        await rig.restart("crash")
        assert await rig.read_values(rig.shard(shard)) == [b"e", b"f"]


@pytest.mark.fault("records-deleted-power-cut")
async def test_producers_are_remembered_though_the_log_continues_behind_a_lost_tail(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        producer = {"producer_id": 7, "producer_epoch": 0}
        first = await rig.acknowledged(shard, b"a", base_sequence=0, **producer)
        await rig.flusher._flush_dirty(checkpoint_all=False)
        await acknowledged(rig, shard, b"b", b"c")
        await shard.delete_records_before(3)
        await rig.restart("power_cut")
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is None)
        again = await rig.acknowledged(shard, b"a", base_sequence=0, **producer)
        assert again.offset == first.offset == 0


@pytest.mark.fault("records-deleted-power-cut")
async def test_a_rolled_segment_that_was_deleted_whole_is_not_missed(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"c", b"d")
        path = rig.file_of(shard, 0)
        await rig.crash()
        path.unlink()
        await rig.meta.service.perform(AdvanceLogStart(shard.key, 3))
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is None)
        assert await rig.read_values(shard) == [b"d"]
        await acknowledged(rig, shard, b"e")


@pytest.mark.fault("metadata-restored-copy-older")
async def test_metadata_older_than_the_bucket_heal_nothing(tmp_path: Path) -> None:
    """The segment was finished, and its local copy freed, after the copy of the metadata was made."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        key = shard.segments[0].key
        await rig.crash()
        rig.file_of(shard).unlink()
        manifest = rig.names.manifest(key, 0, 2, node_id=1, lock_epoch=9, attempt=1)
        await rig.store.inner.put(manifest, [b"of a later time"])
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.UNREADABLE)
        assert shard.stop is not None and "older than the object store" in shard.stop.reason


# What may happen meanwhile ------------------------------------------------------------------------------------------
@pytest.mark.fault("offsets-neither-disk-object")
@pytest.mark.parametrize("is_given_up", [False, True], ids=["no", "allow"])
async def test_one_damaged_answer_of_the_store_gives_nothing_up(tmp_path: Path, *, is_given_up: bool) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(**({"uncleanSeal": "allow"} if is_given_up else {}))
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        real, answers = rig.store.get_range, 0

        async def damaged_twice(key: str, start: int, end: int) -> bytes:
            nonlocal answers
            answers += 1
            body = await real(key, start, end)
            return body if answers > 2 else body[:-1] + bytes([body[-1] ^ 1])

        rig.store.get_range = damaged_twice  # type: ignore[method-assign]
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]
        assert rig.stats.given_up_offsets == 0 and answers > 2


@pytest.mark.fault("flush-fails")
async def test_a_flush_that_fails_while_a_shard_is_healed_is_final(tmp_path: Path) -> None:
    """A second one would succeed, and prove nothing (`disk/lost_flushes.py` says why)."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        path = rig.file_of(shard)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69)
        failed: list[Path] = []

        def fails_once(file: Path) -> OSError | None:
            if file != path or failed:
                return None
            failed.append(file)
            return OSError(errno.EIO, "the disk")

        rig.power.fail_next = fails_once
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is not None and shard.stop.cause is not StopCause.HEALING)
        assert shard.stop is not None and shard.stop.cause is StopCause.UNREADABLE and not shard.is_end_known
        assert failed and rig.layout.lost_flushes.exists(), "the next start copies the file"
        await rig.restart("crash")
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]


async def test_a_stop_closes_no_file_under_the_thread_that_writes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another file's by then."""
    begun, gate, real = threading.Event(), threading.Event(), SegmentFile.put_back
    are_same: list[bool] = []

    def slow(file: SegmentFile, position: int, data: bytes | memoryview) -> None:
        with file.descriptor() as opened:
            begun.set()
            assert gate.wait(30)
            are_same.append(os.path.samestat(os.fstat(opened), file.path.stat()))
        real(file, position, data)

    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        monkeypatch.setattr(SegmentFile, "put_back", slow)
        await rig.restart("power_cut")
        await eventually(begun.is_set)
        await rig.healing.close()
        gate.set()
        await eventually(lambda: bool(are_same))
        monkeypatch.setattr(SegmentFile, "put_back", real)
        await rig.restart()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b", b"c"]
        assert are_same == [True]

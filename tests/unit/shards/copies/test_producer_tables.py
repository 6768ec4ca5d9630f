"""Who wrote before a sealed segment's end is found in index blocks, made again, or waited for; and a seal is a small
command whoever wrote."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.producers import encode_table, tally_of
from stratalog.machines.leading.sealed_producers import Producers, sealed_table
from stratalog.machines.leading.shard_life import StopCause
from stratalog.meta_api.wire import wire_of
from stratalog.model.commands.table_commands import AdvanceLogStart, CompleteRemote, RollSegment, SealSegment
from stratalog.model.errors import Corrupt, Unavailable
from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import RemoteCopy, RemoteState, Segment, SegmentState
from stratalog_node.shards.copies import producer_tables
from stratalog_node.shards.copies.producer_tables import ProducerTables
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.cold.remote_index import RemoteIndex
from support.shard_rig import ShardRig, cut_file
from support.tiered_shards import TieredShardRig
from support.waiting import eventually

pytestmark = pytest.mark.fault("index-block-table-producers")

MANY = 20_000
SMALL_BYTES = 1_024
BLOCK_BYTES = 50 * MANY


def producer(number: int = 7, sequence: int = 0) -> dict[str, Any]:
    return {"producer_id": number, "producer_epoch": 0, "base_sequence": sequence}


async def rolled(rig: ShardRig, producers: int = 1) -> ShardLog:
    """Each producer wrote a batch, whose offset is its number, and the segment is sealed."""
    shard = await rig.shard_of()
    for number in range(producers):
        rig.offer(shard, b"x", **producer(number))
    rig.tick()
    await eventually(lambda: shard.high_watermark == producers)
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    return shard


async def repeated(rig: ShardRig, shard: ShardLog, number: int = 0) -> int:
    """The offset that a repetition of a producer's batch is answered with."""
    return (await rig.acknowledged(rig.shard(shard), b"x", **producer(number))).offset


async def test_twenty_thousand_producers_are_sealed_by_a_small_command_and_outlive_a_restart(tmp_path: Path) -> None:
    async with ShardRig(tmp_path, producer_id_max_per_shard=MANY) as rig:
        shard = await rolled(rig, MANY)
        (segment, _) = shard.segments
        assert segment.seal is not None and segment.seal.producers.count == MANY
        command = SealSegment(segment.key, segment.seal)
        assert len(wire_of(command).body.write(command)) < SMALL_BYTES
        assert rig.layout.index(segment.key).stat().st_size < BLOCK_BYTES
        await rig.restart("crash")  # no checkpoint says it either
        for number in (0, MANY // 2, MANY - 1):
            assert await repeated(rig, shard, number) == number


async def test_segments_that_follow_have_what_was_before_in_their_tables_too(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig)
        for at in range(1, 3):
            await rig.acknowledged(shard, b"y", **producer(at))
            shard.ask_roll(rig.clock())
            await rig.all_sealed()
        assert [s.seal.producers.count for s in shard.segments if s.seal is not None] == [1, 2, 3]
        await rig.restart("crash")
        assert [await repeated(rig, shard, number) for number in range(2)] == [0, 1]


@pytest.mark.parametrize(
    "late_from", ["its own opening", "the seal before", "the seal before, and others have its room"]
)
async def test_a_seal_follows_from_the_log_though_the_watch_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_from: str
) -> None:
    """Otherwise the table could not be rebuilt from the batches: what a leader remembers does not follow from the
    log."""
    late: list[Any] = []
    async with ShardRig(tmp_path) as rig:
        rig.meta.hold(SealSegment)
        shard = await rig.shard_of()

        async def write_and_roll(number: int) -> None:
            await rig.acknowledged(shard, b"x", **producer(number))
            rig.clock.now_ms += 1_000
            shard.ask_roll(rig.clock())
            await eventually(
                lambda: rig.meta.calls[RollSegment] > number and (late or len(shard.segments) > number + 1)
            )

        if late_from == "its own opening":
            monkeypatch.setattr(rig.catalog, "apply", late.append)
        await write_and_roll(0)
        await write_and_roll(1)
        monkeypatch.setattr(rig.catalog, "apply", late.append)
        if "others" in late_from:
            monkeypatch.setattr(rig.context.tables, "keep", lambda key, table: None)
        rig.meta.release(SealSegment)
        left = 1 if late_from == "its own opening" else 0
        await eventually(lambda: rig.meta.calls[SealSegment] == 2 - left and rig.sealing.unsealed_count == left)
        assert all(one.seal is None for one in shard.segments)
        monkeypatch.undo()
        for change_set in late:
            rig.catalog.apply(change_set)
        await rig.all_sealed()
        path = rig.layout.index(shard.segments[1].key)
        await rig.crash()
        path.unlink()
        await rig.start()
        assert [await repeated(rig, shard, number) for number in range(2)] == [0, 1]


@pytest.mark.parametrize("how", ["damaged", "gone"])
async def test_a_table_with_a_damaged_index_block_is_rebuilt_from_the_segment(tmp_path: Path, how: str) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig, 3)
        path = rig.layout.index(shard.segments[0].key)
        await rig.crash()
        if how == "gone":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)
        await rig.start()
        assert await repeated(rig, shard, 2) == 2


async def test_an_index_block_that_the_disk_cannot_read_keeps_no_node_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig, 3)
        path, read_bytes = rig.layout.index(shard.segments[0].key), Path.read_bytes

        def failing(self: Path) -> bytes:
            if self == path:
                raise OSError(errno.EIO, "Input/output error", str(path))
            return read_bytes(self)

        monkeypatch.setattr(Path, "read_bytes", failing)
        await rig.restart("crash")
        assert await repeated(rig, shard, 2) == 2


async def test_a_lost_index_block_behind_deleted_segments_stops_no_shard_for_good(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig)
        await rig.acknowledged(shard, b"y", **producer(1))
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        sealed = shard.segments[1]
        assert sealed.seal is not None and sealed.seal.producers.count == 2
        await rig.meta.service.perform(AdvanceLogStart(shard.key, 1))
        await eventually(lambda: len(shard.segments) == 2)
        await rig.crash()
        rig.layout.index(sealed.key).unlink()
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is None
        assert await repeated(rig, shard, 1) == 1
        # The other one's batches cannot be read: it continues as it likes, and the next seal has both again.
        await rig.acknowledged(shard, b"x", **producer(0, 1))
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        newest = shard.segments[-2].seal
        assert newest is not None and newest.producers.count == 2
        await rig.crash()
        rig.layout.index(shard.segments[-2].key).unlink()
        await rig.start()
        assert await repeated(rig, shard, 1) == 1


async def test_without_any_table_the_shard_waits_and_takes_no_producer_for_a_new_one(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig)
        key = shard.segments[0].key
        index, data = rig.layout.index(key), rig.layout.segment(key)
        kept = index.read_bytes()
        await rig.crash()
        index.unlink()
        data.unlink()
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is not None and "what producers wrote" in shard.stop.reason
        assert not rig.append(shard, b"x", **producer(0)).is_acknowledged
        assert not rig.append(shard, b"x").is_acknowledged, "its log is not opened at all"
        index.write_bytes(kept)
        await eventually(lambda: shard.stop is None)
        assert await repeated(rig, shard) == 0


def without_a_batch(before: Segment, producers: Producers) -> tuple[Segment, Producers]:
    """A segment without copies, sealed behind one with these producers; and the producers at its end."""
    assert before.seal is not None and before.end_offset is not None
    at, rule = before.end_offset, before.seal.producers.rule
    key = before.key._replace(epoch=before.epoch + 1, base_offset=at)
    table = sealed_table(producers, (), base_offset=at, opened_ms=before.opened_ms, rule=rule)
    tally = tally_of(table, encode_table(table), rule)
    seal = replace(
        before.seal, epoch=key.epoch, base_offset=at, end_offset=at, size_bytes=0, producers=tally, replicas=(9,)
    )
    return replace(before, key=key, seal=seal, local_nodes=(), replicas=(9,)), table


@pytest.mark.parametrize("count", [1, 2, 1_200])
async def test_tables_of_segments_without_batches_or_copies_follow_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig, 3)
        row, known = [shard.segments[0]], await rig.context.tables.producers(shard.segments[0], is_far=False)
        for _ in range(count):
            segment, known = without_a_batch(row[-1], known)
            row.append(segment)
        monkeypatch.setattr(rig.context.catalog, "segments", lambda key: tuple(row))
        assert len(known) == 3
        assert await rig.context.tables.producers(row[-1], is_far=True) == known


async def test_a_table_that_followed_from_what_was_deleted_is_given_up_where_no_batch_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig, 3)
        known = await rig.context.tables.producers(shard.segments[0], is_far=False)
        segment, _ = without_a_batch(shard.segments[0], known)
        monkeypatch.setattr(rig.context.catalog, "segments", lambda key: (segment,))
        assert await rig.context.tables.producers(segment, is_far=True) == ()


async def test_an_unavailable_table_before_a_lost_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All before it was deleted, so it does not follow from anything; another node has it. It kept a node from its
    start."""
    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig, 3)
        known = await rig.context.tables.producers(shard.segments[0], is_far=False)
        first, table = without_a_batch(shard.segments[0], known)
        second, _ = without_a_batch(first, table)
        first = replace(first, local_nodes=(9,))
        monkeypatch.setattr(rig.context.catalog, "segments", lambda key: (first, second))
        with pytest.raises(Unavailable):
            await rig.context.tables.producers(second, is_far=False)


async def freed(rig: TieredShardRig, shard: ShardLog) -> None:
    """The local copy of its first segment goes, for the object store has it."""
    await rig.uploaded()
    await eventually(lambda: shard.segments[0].remote.state is RemoteState.COMPLETE)
    await rig.crash()
    rig.layout.index(shard.segments[0].key).unlink()
    rig.layout.segment(shard.segments[0].key).unlink()


async def test_a_table_of_a_freed_segment_comes_from_the_object_store(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rolled(rig, 3)
        await freed(rig, shard)
        await rig.start()
        await rig.healed(shard)
        assert await repeated(rig, shard, 1) == 1


@pytest.mark.fault("records-last-segment-object")
async def test_an_unwritten_table_is_rebuilt_from_the_parts_in_the_object_store(tmp_path: Path) -> None:
    """Its nodes are gone before the segment was finished there: no record is lost, so no producer may be forgotten."""
    async with TieredShardRig(tmp_path) as rig:
        rig.meta.hold(CompleteRemote)
        shard = await rolled(rig, 3)
        await eventually(lambda: rig.meta.calls[CompleteRemote] > 0)
        segment = rig.context.catalog.segments(shard.key)[0]
        assert segment.remote.state is RemoteState.PARTIAL and segment.remote.commit_offset == 3
        known = await rig.context.tables.find(segment)
        rig.layout.index(segment.key).unlink()
        rig.layout.segment(segment.key).unlink()
        place = (1, rig.layout, rig.threads, rig.context.descriptors, rig.context.catalog)
        other_sources = ProducerTables(*place, rig.cold, None)
        try:
            with pytest.raises(Unavailable):
                await other_sources.here(segment)
            assert await other_sources.find(segment) == known
        finally:
            await other_sources.close()
            rig.meta.open_all()


async def with_parts_alone(rig: TieredShardRig, segments: int = 1) -> list[tuple[Segment, Producers]]:
    """Sealed segments with all batches in the object store, none finished there, whose only node was given up by force;
    with the producers at their ends. The last one stays where it is."""
    rig.meta.hold(CompleteRemote)
    shard = await rolled(rig, 3)
    for number in range(3, 2 + segments):
        await rig.acknowledged(shard, b"y", **producer(number))
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
    catalog, found = rig.context.catalog, list[tuple[Segment, Producers]]()
    for epoch in range(segments):
        await eventually(lambda: catalog.segments(shard.key)[epoch].remote.commit_offset == 3 + epoch)  # noqa: B023
        segment = catalog.segments(shard.key)[epoch]
        assert segment.remote.state is RemoteState.PARTIAL
        known = await rig.context.tables.producers(segment, is_far=True)
        found.append((replace(segment, replicas=(9,), local_nodes=(9,)), known))
        rig.layout.index(segment.key).unlink()
        rig.layout.segment(segment.key).unlink()
    return found


@asynccontextmanager
async def other_sources(
    rig: TieredShardRig, monkeypatch: pytest.MonkeyPatch, segments: Sequence[Segment]
) -> AsyncIterator[ProducerTables]:
    """The tables of a node that has nothing of these segments."""
    catalog = rig.context.catalog
    record = Retirement("disk", RetireMode.OFFLOAD, RetireStep.DONE, 0, 0, is_forced=True)
    monkeypatch.setitem(catalog._nodes, 9, Node(9, "disk", "host", 9, is_alive=False, retirement=record))
    monkeypatch.setattr(catalog, "segments", lambda key: tuple(segments))
    tables = ProducerTables(1, rig.layout, rig.threads, rig.context.descriptors, catalog, rig.cold, None)
    try:
        yield tables
    finally:
        await tables.close()
        rig.meta.open_all()


async def test_after_a_forced_give_up_an_unreachable_store_is_asked_again_and_no_producer_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        ((segment, known),) = await with_parts_alone(rig)

        async def away(*_: Any) -> None:
            raise Unavailable("the store is away")

        async with other_sources(rig, monkeypatch, [segment]) as tables:
            with monkeypatch.context() as patch:
                patch.setattr(ColdReader, "read", away)
                with pytest.raises(Unavailable):
                    await tables.producers(segment, is_far=True)
            with pytest.raises(Unavailable):
                await tables.producers(segment, is_far=False)
            assert await tables.producers(segment, is_far=True) == known


async def test_of_several_that_the_store_alone_has_each_table_follows_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        found = await with_parts_alone(rig, 3)
        async with other_sources(rig, monkeypatch, [segment for segment, _ in found]) as tables:
            assert await tables.producers(found[-1][0], is_far=True) == found[-1][1]


async def test_producers_of_stored_batches_are_known_though_the_table_before_them_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        (first, _), (second, known) = await with_parts_alone(rig, 2)
        lost = replace(first, remote=RemoteCopy())
        async with other_sources(rig, monkeypatch, [lost, second]) as tables:
            found = await tables.producers(second, is_far=True)
            assert [one.producer_id for one in found] == [3]
            assert found[0] in known


@pytest.mark.fault("fault-program-ends-upload")
async def test_a_table_behind_a_segment_that_is_not_sealed_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assertion failed, which the node reported as an object store that does not answer."""
    async with TieredShardRig(tmp_path) as rig:
        (first, _), (second, _) = await with_parts_alone(rig, segments=2)
        unsealed = replace(first, state=SegmentState.SEALING, seal=None)
        async with other_sources(rig, monkeypatch, [unsealed, second]) as tables:
            with pytest.raises(Unavailable, match="not sealed yet"):
                await tables.find(second)


async def test_a_copy_that_is_damaged_is_in_the_way_of_no_batches_in_the_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        ((segment, known),) = await with_parts_alone(rig)
        rig.layout.segment(segment.key).write_bytes(bytes(SEGMENT_HEADER_BYTES + 200))
        async with other_sources(rig, monkeypatch, [segment]) as tables:
            assert await tables.producers(segment, is_far=True) == known


async def test_a_shard_waits_for_an_object_store_that_alone_has_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rolled(rig)
        await freed(rig, shard)
        asked = 0

        async def away(self: RemoteIndex, key: str, size_bytes: int) -> bytes:
            nonlocal asked
            asked += 1
            raise Unavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(RemoteIndex, "_whole", away)
            await rig.start()
            await eventually(lambda: asked > 0)
            assert rig.shard(shard).stop is not None
            assert not rig.append(rig.shard(shard), b"x", **producer(0)).is_acknowledged
        await rig.healed(shard)
        assert await repeated(rig, shard) == 0


async def test_a_shard_that_waited_through_a_stop_in_order_is_in_doubt_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the crash before took is not known better for that stop: no offset is given twice in an epoch."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rolled(rig)
        await rig.acknowledged(shard, b"y")
        epoch = shard.epoch
        await freed(rig, shard)

        async def away(self: RemoteIndex, key: str, size_bytes: int) -> bytes:
            raise Unavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(RemoteIndex, "_whole", away)
            await rig.start()
            assert rig.shard(shard).stop is not None
            await rig.stop()
        await rig.start()
        shard = await rig.healed(shard)
        await rig.acknowledged(shard, b"z")
        assert shard.epoch == epoch + 1


@pytest.mark.fault("file-cut-gone-offset")
async def test_what_shards_that_wait_lack_is_missed_though_another_was_opened_before(tmp_path: Path) -> None:
    """Each file is shorter than its checkpoint says, and is read behind a table that the object store has."""
    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3, flush_policy="fsync")
        shards = [rig.shard(topic, index) for index in range(3)]
        for shard in shards:
            await rig.acknowledged(shard, b"x", **producer())
            shard.ask_roll(rig.clock())
        await rig.all_sealed()
        await rig.uploaded()
        await eventually(lambda: all(one.segments[0].remote.state is RemoteState.COMPLETE for one in shards))
        for shard in shards:
            await rig.acknowledged(shard, b"y", **producer(7, 1))
        await rig.stop()
        for shard in shards:
            for path in (rig.layout.index(shard.segments[0].key), rig.layout.segment(shard.segments[0].key)):
                path.unlink()
            cut_file(rig.file_of(shard), SEGMENT_HEADER_BYTES)
        await rig.start()
        opened = [rig.shard(shard) for shard in shards]
        await eventually(lambda: all(one.stop is not None and one.stop.cause is StopCause.DATA_LOST for one in opened))


async def test_a_long_search_for_a_table_reads_the_own_copy_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches do not give the table that the seal speaks of, and others may have it; a segment has a gigabyte."""
    reads = asked = 0
    scan, derived = producer_tables._scan, ProducerTables._derived

    def counted(segment: Segment, file: Any, seal: Any) -> Any:
        nonlocal reads
        reads += 1
        return scan(segment, file, seal)

    def other(self: ProducerTables, segment: Segment, before: Any, found: Any) -> bytes:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise Corrupt("another table", source="the segment", position=0)
        return derived(self, segment, before, found)

    async def nothing(self: ProducerTables, segment: Segment, *, is_far: bool) -> None:
        return None

    async with ShardRig(tmp_path) as rig:
        shard = await rolled(rig)
        segment = shard.segments[0]
        rig.layout.index(segment.key).unlink()
        tables = rig.context.tables
        tables._held.clear()
        monkeypatch.setattr(producer_tables, "_scan", counted)
        monkeypatch.setattr(ProducerTables, "_derived", other)
        monkeypatch.setattr(ProducerTables, "_stand_in", nothing)
        await eventually(lambda: tables.known(segment) is not None)
        assert (reads, asked) == (1, 4)
        await eventually(lambda: not tables._read)

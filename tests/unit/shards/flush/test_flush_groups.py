"""Grouped flushes of topics with flush.policy=fsync: when acknowledgements are sent, and what a failing disk does."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.chain_events import ChainEvent, SegmentFlushFailed
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.commands.table_commands import RollSegment, SealSegment
from stratalog.model.errors import Unavailable
from stratalog_node.disk.files import FlushLost, SegmentFile
from stratalog_node.disk.journal_file import list_journals, read_journal
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.flush import flusher as flusher_module
from stratalog_node.shards.flush import shared_journal
from stratalog_node.shards.flush.flusher import FlushedShard
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig
from support.waiting import eventually

MANY = flusher_module.DIRECT_FILES + 3


class HeldFlushes:
    """Flushes of data files wait in their thread until they are let go."""

    def __init__(self, rig: ShardRig) -> None:
        self.gate = threading.Event()
        self.waiting = 0
        self.error: OSError | None = None
        rig.power.fail_next = self._wait

    def _wait(self, path: Path) -> OSError | None:
        if path.suffix not in (".seg", ".journal"):
            return None
        self.waiting += 1
        assert self.gate.wait(10)
        return self.error


async def fsync_shards(rig: ShardRig, count: int) -> list[ShardLog]:
    topic = await rig.create_topic(shards=count, flush_policy="fsync")
    return [rig.shard(topic, index) for index in range(count)]


async def test_nothing_is_acknowledged_before_its_flush(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        held = HeldFlushes(rig)
        first = rig.append(shard, b"first")
        await eventually(lambda: held.waiting == 1)
        second = rig.append(shard, b"second")
        unasked = rig.append(shard, b"no answer wanted", acks=0)
        assert unasked.is_acknowledged
        assert not first.is_answered and not second.is_answered
        assert shard.high_watermark == 0 and shard.end_offset == 3
        held.gate.set()
        await eventually(lambda: first.is_acknowledged and second.is_acknowledged)
        await eventually(lambda: shard.high_watermark == 3)
        assert (first.times_settled, second.times_settled) == (1, 1)


async def test_what_came_during_a_flush_shares_the_next_one(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        held = HeldFlushes(rig)
        asked = [rig.append(shard, b"first")]
        await eventually(lambda: held.waiting == 1)
        asked += [rig.append(shard, b"%d" % number) for number in range(50)]
        held.gate.set()
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        assert rig.flusher.stats.groups == 2


async def test_a_group_of_many_files_goes_through_the_journal(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig, MANY)
        asked = [rig.append(shard, b"x") for shard in shards]
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        await eventually(lambda: rig.flusher.stats.journal_groups >= 1)


async def test_the_journal_holds_what_the_files_hold_however_it_came_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small appends are kept in memory for it; what is large, or was not all kept, is read back."""
    read: list[Path] = []
    real = SegmentFile.read

    def counted(file: SegmentFile, position: int, size_bytes: int) -> bytes:
        read.append(file.path)
        return real(file, position, size_bytes)

    monkeypatch.setattr(SegmentFile, "read", counted)
    async with ShardRig(tmp_path) as rig:
        alone, *shards = await fsync_shards(rig, MANY + 1)
        unflushed = (await rig.shard_of("unflushed")).rules
        asked = [rig.append(shard, b"first") for shard in shards]
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        assert read == []
        held = HeldFlushes(rig)
        asked = [rig.append(alone, b"while this one is flushed")]
        await eventually(lambda: held.waiting == 1)
        large, mixed, *small = shards
        asked += [rig.append(large, b"x" * flusher_module.KEPT_APPEND_BYTES)]
        asked += [rig.append(shard, value) for shard in (mixed, *small) for value in (b"one", b"two")]
        rules, mixed.rules = mixed.rules, unflushed  # as a change of the topic's policy does, and another one
        rig.append(mixed, b"waits for no flush")
        mixed.rules = rules
        asked += [rig.append(mixed, b"three")]
        held.gate.set()
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        assert set(read) == {rig.file_of(large), rig.file_of(mixed)}
        entries = [e for path in list_journals(rig.context.layout.journal) for e in read_journal(path)]
        for shard in shards:
            data, at = rig.file_of(shard).read_bytes()[SEGMENT_HEADER_BYTES:], 0
            for entry in entries:
                if entry.segment.shard_key == shard.key:
                    assert data[entry.position :].startswith(entry.payload)
                    assert entry.position == at
                    at += len(entry.payload)
            assert shard.active is not None
            assert at == shard.active.size_bytes


async def test_a_file_that_was_flushed_beyond_its_group_meanwhile_does_not_cost_the_group_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        first, ahead, *others = await fsync_shards(rig, MANY)
        await asyncio.gather(*(rig.acknowledged(shard, b"before") for shard in (first, ahead, *others)))
        reading, go_on = threading.Event(), threading.Event()
        real = SegmentFile.read

        def held(file: SegmentFile, position: int, size_bytes: int) -> bytes:
            if file.path == rig.file_of(first) and not reading.is_set():
                reading.set()
                assert go_on.wait(10)
            return real(file, position, size_bytes)

        monkeypatch.setattr(SegmentFile, "read", held)
        large = b"x" * flusher_module.KEPT_APPEND_BYTES  # is read back
        groups = rig.flusher.stats.journal_groups
        asked = [rig.append(shard, large) for shard in (first, ahead, *others)]
        await eventually(reading.is_set)
        asked.append(rig.append(ahead, b"after"))
        await eventually(lambda: ahead.end_offset == 3)
        await ahead.make_durable()
        go_on.set()
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        assert rig.flusher.stats.journal_groups == groups + 1


@pytest.mark.fault("flush-fails")
async def test_a_flush_that_fails_stops_its_shard_and_no_other(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        good, bad = await fsync_shards(rig, 2)
        await rig.acknowledged(good, b"x")
        await rig.acknowledged(bad, b"x")
        path = rig.file_of(bad)
        rig.power.fail_next = lambda flushed: OSError(errno.EIO, "Input/output error") if flushed == path else None
        refused, taken = rig.append(bad, b"y"), rig.append(good, b"y")
        await eventually(lambda: refused.is_answered and taken.is_answered)
        assert taken.is_acknowledged
        assert refused.error is ErrorCode.REQUEST_TIMED_OUT
        rig.power.fail_next = lambda _: None
        assert not rig.append(bad, b"z").is_acknowledged
        assert bad.high_watermark == 1
        assert await rig.read_values(bad) == [b"x"]


@pytest.mark.fault("flush-fails")
async def test_a_flush_that_succeeds_after_one_that_failed_proves_nothing(tmp_path: Path) -> None:
    """The kernel reports an error once and forgets the pages: what the second flush says is not about them."""
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        await rig.acknowledged(shard, b"safe")
        held = HeldFlushes(rig)
        held.error = OSError(errno.EIO, "Input/output error")
        first = rig.append(shard, b"lost")
        await eventually(lambda: held.waiting == 1)
        second = rig.append(shard, b"asked while the first flush runs")
        rig.power.fail_next = lambda _: None
        held.gate.set()
        await eventually(lambda: first.is_answered and second.is_answered)
        await eventually(lambda: rig.flusher._group_task is None)
        assert not first.is_acknowledged and not second.is_acknowledged
        assert shard.high_watermark == 1
        rig.clock.now_ms += 10**12
        shard.check_age(rig.clock())
        assert not shard.ask_roll(rig.clock())
        assert shard.high_watermark == 1


@pytest.mark.fault("several-threads-flush-file")
async def test_a_flush_beside_one_that_fails_does_not_go_by_the_kernels_silence(tmp_path: Path) -> None:
    """Both flush one file through one descriptor; the kernel tells one of them of the lost page."""
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        await rig.acknowledged(shard, b"safe")
        held = HeldFlushes(rig)
        held.error = OSError(errno.EIO, "Input/output error")
        first = rig.append(shard, b"lost")
        await eventually(lambda: held.waiting == 1)
        rig.power.fail_next = lambda _: None
        beside = asyncio.ensure_future(rig.flusher._flush_dirty(checkpoint_all=True))
        await asyncio.sleep(0.05)
        assert not beside.done(), "it answers before the other one's verdict is known"
        held.gate.set()
        await beside
        await eventually(lambda: first.is_answered)
        assert not first.is_acknowledged and shard.high_watermark == 1
        assert rig.flusher.stats.checkpoints == 0 and rig.flusher.stats.background_flushes == 0


@pytest.mark.fault("flush-fails")
@pytest.mark.parametrize("policy", ["fsync", "replicated"])
async def test_a_start_after_a_failed_flush_writes_the_file_again(tmp_path: Path, policy: str) -> None:
    """What it finds in the page cache may be nowhere else, and a flush of it would succeed."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(flush_policy=policy)
        await rig.acknowledged(shard, b"safe")
        path = rig.file_of(shard)
        first = path.stat().st_ino
        rig.power.fail_next = lambda flushed: OSError(errno.EIO, "error") if flushed == path else None
        lost = rig.append(shard, b"lost")
        await rig.flusher._flush_dirty(checkpoint_all=False)
        await eventually(lambda: rig.shards.stopped())
        rig.power.fail_next = lambda _: None
        await rig.restart("crash")
        assert path.stat().st_ino != first, "written again, into blocks of its own"
        assert not rig.layout.lost_flushes.exists()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is None)
        assert await rig.read_values(shard) == [b"safe", b"lost"], "the page cache had it"
        assert lost.is_acknowledged is (policy == "replicated")
        await rig.restart("power_cut")
        assert await rig.read_values(rig.shard(shard)) == [b"safe", b"lost"]
        second = path.stat().st_ino
        await rig.restart("crash")
        assert path.stat().st_ino == second, "once is enough"


@pytest.mark.fault("several-threads-flush-file")
async def test_ended_segments_that_cannot_be_confirmed_do_not_keep_their_descriptors(tmp_path: Path) -> None:
    """While the meta service is away they are not sealed, and a file that waits for a flush is not closed."""
    async with ShardRig(tmp_path, descriptor_limit=4) as rig:
        shard = await rig.shard_of()
        rig.meta.hold(RollSegment)
        for number in range(60):
            rig.append(shard, b"%d" % number)
            assert shard.ask_roll(rig.clock())
        assert len(shard.ended) == 60
        descriptors = rig.context.descriptors

        def is_swept() -> bool:
            descriptors.check_room()
            descriptors._sweep()
            return descriptors.open_count <= descriptors.limit

        await eventually(is_swept)
        rig.meta.release(RollSegment)
        await rig.all_sealed()
        assert len(await rig.read_values(shard)) == 60


@pytest.mark.fault("flush-fails")
async def test_a_background_flush_that_fails_counts_as_well(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        rig.power.fail_next = lambda path: OSError(errno.EIO, "error") if path.suffix == ".seg" else None
        await rig.flusher._flush_dirty(checkpoint_all=False)
        assert rig.flusher.stats.failures == 1
        assert rig.append(shard, b"y").is_answered
        assert rig.append(shard, b"y").error is ErrorCode.KAFKA_STORAGE_ERROR
        assert await rig.read_values(shard) == [b"x"]


@pytest.mark.fault("flush-fails")
async def test_a_segment_whose_flush_failed_is_never_sealed(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        failed = []

        def fail_once(path: Path) -> OSError | None:
            if path.suffix != ".seg" or failed:
                return None
            failed.append(path)
            return OSError(errno.EIO, "error")

        rig.power.fail_next = fail_once
        shard.ask_roll(rig.clock())
        await eventually(lambda: shard.stop is not None)
        assert shard.stop is not None and shard.stop.cause is StopCause.FLUSH_FAILED
        assert (rig.meta.calls[RollSegment], rig.meta.calls[SealSegment]) == (0, 0)


async def test_a_journal_without_room_is_done_without(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig, MANY)
        rig.power.fail_next = lambda path: OSError(errno.ENOSPC, "full") if path.suffix == ".journal" else None
        for _ in range(2):
            asked = [rig.append(shard, b"x") for shard in shards]
            await eventually(lambda: all(a.is_answered for a in asked))  # noqa: B023
            assert all(a.is_acknowledged for a in asked)
        rig.power.fail_next = lambda _: None
        asked = [rig.append(shard, b"y") for shard in shards]
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        await rig.restart("power_cut")
        for shard in shards:
            assert await rig.read_values(rig.shard(shard)) == [b"x", b"x", b"y"]


async def test_a_journal_whose_flush_failed_takes_no_more_entries(tmp_path: Path) -> None:
    """What the kernel dropped then it will not say again, so a later flush of that file proves nothing."""
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig, MANY)
        await asyncio.gather(*(rig.acknowledged(shard, b"x") for shard in shards))
        (doubtful,) = list_journals(rig.layout.journal)
        rig.power.fail_next = lambda path: OSError(errno.EIO, "x") if path == doubtful else None
        groups = rig.flusher.stats.journal_groups
        for _ in range(2):
            asked = [rig.append(shard, b"y") for shard in shards]
            await eventually(lambda: all(a.is_acknowledged for a in asked))  # noqa: B023
        assert rig.flusher.stats.journal_groups == groups + 1, "the second one"
        await eventually(lambda: doubtful not in list_journals(rig.layout.journal))


async def test_a_descriptor_shortage_delays_a_flush_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        calls = []
        real = shared_journal.sync_segment

        def short(active: object, size_bytes: int) -> None:
            calls.append(size_bytes)
            if len(calls) == 1:
                raise Unavailable("too many open files")
            real(active, size_bytes)  # type: ignore[arg-type]

        monkeypatch.setattr(flusher_module, "sync_segment", short)
        asked = rig.append(shard, b"x")
        await eventually(lambda: asked.is_acknowledged)


@pytest.mark.fault("node-stopped-file-shard")
async def test_a_stop_does_not_wait_for_a_flush_that_is_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def refuse(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        raise Unavailable("too many open files")

    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        with monkeypatch.context() as patched:
            patched.setattr(flusher_module, "sync_segment", refuse)
            asked = rig.append(shard, b"never flushed")
            await eventually(lambda: tries)
            await asyncio.wait_for(rig.stop(), 20)
        assert not rig.layout.clean_file.exists(), "the stop was not in order"
        await rig.start()
        assert not asked.is_answered
        shard = rig.shard(shard)
        assert (await rig.acknowledged(shard, b"next")).offset == 1


async def test_a_fault_in_a_shard_that_learns_of_its_failed_flush_is_not_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig, 2)
        real = flusher_module.sync_segment

        def lose_one(active: ActiveSegment, size_bytes: int) -> None:
            if active.key.shard == 0:
                raise FlushLost("lost")
            real(active, size_bytes)

        def tell(self: ShardLog, event: ChainEvent) -> None:
            if isinstance(event, SegmentFlushFailed) and self.key.shard == 0:
                raise ValueError("a bug")
            real_tell(self, event)

        real_tell = ShardLog.handle
        monkeypatch.setattr(flusher_module, "sync_segment", lose_one)
        monkeypatch.setattr(ShardLog, "handle", tell)
        lost, kept = (rig.offer(shard, b"value") for shard in shards)
        rig.tick()
        await eventually(lambda: lost.is_answered and kept.is_answered)
        assert kept.is_acknowledged and not lost.is_acknowledged
        assert shards[1].stop is None and shards[0].stop is not None


async def test_the_journal_is_retired_beside_the_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_journal, "JOURNAL_BYTES", 2000)
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig, MANY)
        for number in range(30):
            asked = [rig.append(shard, b"%d" % number) for shard in shards]
            await eventually(lambda: all(a.is_acknowledged for a in asked))  # noqa: B023
        await eventually(lambda: len(list(rig.layout.journal.iterdir())) <= 2)
        await rig.restart("power_cut")
        for shard in shards:
            assert await rig.read_values(rig.shard(shard)) == [b"%d" % number for number in range(30)]


@pytest.mark.fault("flush-fails")
async def test_a_journal_whose_files_could_not_be_flushed_stays_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_journal, "JOURNAL_BYTES", 1500)
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig, MANY)
        asked = [rig.append(shard, b"acknowledged through the journal") for shard in shards]
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        bad = rig.file_of(shards[0])
        failed = []

        def fail(path: Path) -> OSError | None:
            if path == bad:
                failed.append(path)
                return OSError(errno.EIO, "error")
            return None

        rig.power.fail_next = fail
        asked = [rig.append(shard, b"y") for shard in shards]
        await eventually(lambda: all(a.is_acknowledged for a in asked) and failed)
        rig.power.fail_next = lambda _: None
        asked = [rig.append(shard, b"z") for shard in shards[1:]]
        await eventually(lambda: all(a.is_acknowledged for a in asked))
        await rig.restart("power_cut")
        for shard in shards:
            values = await rig.read_values(rig.shard(shard))
            assert values[:2] == [b"acknowledged through the journal", b"y"]


async def test_an_ended_segment_with_a_flush_under_way_is_acknowledged_before_the_next_one(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        held = HeldFlushes(rig)
        old = rig.append(shard, b"old")
        await eventually(lambda: held.waiting == 1)
        shard.ask_roll(rig.clock())
        new = rig.append(shard, b"new")
        await asyncio.sleep(0.05)
        assert rig.meta.calls[RollSegment] == 0, "meta must not learn an end that a power cut may take back"
        assert not old.is_answered and not new.is_answered and shard.high_watermark == 0
        held.gate.set()
        await eventually(lambda: old.is_acknowledged and new.is_acknowledged)
        assert await rig.read_values(shard) == [b"old", b"new"]
        await rig.all_sealed()


@pytest.mark.fault("idempotent-producer-repeats-batch")
async def test_a_repeated_batch_is_not_acknowledged_before_its_first_copy_is_flushed(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        held = HeldFlushes(rig)
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
        first = rig.append(shard, b"x", **producer)
        again = rig.append(shard, b"x", **producer)
        assert not first.is_answered and not again.is_answered
        held.gate.set()
        await eventually(lambda: first.is_acknowledged and again.is_acknowledged)
        assert first.offset == again.offset == 0 and shard.end_offset == 1


async def test_a_checkpoint_store_in_trouble_does_not_end_background_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path, flush_interval_ms=1) as rig:
        shard = await rig.shard_of()

        class FullDisk:
            def write(self, _: object) -> None:
                raise Exception("IO error: No space left on device")

        database = rig.checkpoints._db
        monkeypatch.setattr(rig.checkpoints, "_db", FullDisk())
        monkeypatch.setattr(flusher_module, "CHECKPOINT_MS", 0)
        rig.append(shard, b"x")
        rig.clock.now_ms += 1
        rig.append(shard, b"y")
        await eventually(lambda: rig.flusher.stats.failures >= 1)
        flushed = rig.flusher.stats.background_flushes
        rig.append(shard, b"z")
        await eventually(lambda: rig.flusher.stats.background_flushes > flushed)
        monkeypatch.setattr(rig.checkpoints, "_db", database)


async def test_many_files_are_flushed_before_their_time_when_together_they_hold_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single one holds much: the largest go first, and only until what is left is little enough."""
    monkeypatch.setattr("stratalog_node.shards.flush.flusher.NODE_AHEAD_BYTES", 60_000)
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=8)
        shards = [rig.shard(topic, index) for index in range(8)]
        for number, shard in enumerate(shards):
            await rig.acknowledged(shard, bytes(1_000 if number % 2 else 20_000))

        def unflushed() -> list[int]:
            actives = [shard.active for shard in shards if shard.active is not None]
            return [active.file.size_bytes - active.flushed_bytes for active in actives]

        await rig.until(lambda: sum(unflushed()) <= 60_000)
        assert all(small > 0 for small in unflushed()[1::2])


@pytest.mark.fault("node-thousands-idle-shards")
async def test_files_with_little_unflushed_cost_no_calculation_of_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check comes four times per second, and thousands of shards may have been written to."""
    asked: list[object] = []
    limit_of = flusher_module._most_ahead_bytes

    def noted(active: ActiveSegment, shard: FlushedShard) -> int:
        asked.append(active)
        return limit_of(active, shard)

    monkeypatch.setattr(flusher_module, "_most_ahead_bytes", noted)
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=8)
        for index in range(8):
            await rig.acknowledged(rig.shard(topic, index), bytes(1_000))
        large = rig.shard(topic, 7)
        await rig.acknowledged(large, bytes(700_000))
        await rig.acknowledged(large, bytes(700_000))
        asked.clear()
        await rig.flusher._flush_ahead()
        assert asked == [large.active]

"""What goes wrong on the way up, each fault by its number in the field's list. Afterwards all is in the store, once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from stratalog.formats.bucket.object_names import SegmentObjectName
from stratalog.model.commands.table_commands import AcquireLock, AdvanceLogStart, Command, CommitParts, DeleteTopic
from stratalog.model.errors import Conflict, Fenced, OutcomeUnknown, Unavailable
from stratalog.model.metadata import Lock
from stratalog.model.segment import RemoteState
from support.faulty_store import Fault
from support.gated_meta import perform_instead
from support.tier_rig import RIG_LIMITS, RigShard, TierRig
from support.waiting import eventually


async def _rig_with_shard(rig: TierRig, **settings: str) -> RigShard:
    topic = await rig.create_topic(**settings)
    return rig.shard(topic)


def _chunk_ranges(rig: TierRig) -> list[tuple[int, int]]:
    names = [rig.names.parse(key) for key in rig.store.puts]
    return [(n.from_offset, n.to_offset) for n in names if isinstance(n, SegmentObjectName) and n.kind == "chunk"]


@pytest.mark.fault("put-succeeded-answer-lost")
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.CUT, Fault.TAKEN, Fault.HANG, Fault.HANG_LANDED])
async def test_a_doubtful_put_is_followed_at_once_by_one_with_what_came_meanwhile(fault: Fault) -> None:
    """F42, F46, F49, F50: lost answer, cut body, 412, black hole. The outcome is not queried."""
    async with TierRig(replace(RIG_LIMITS, put_timeout_ms=50)) as rig:
        shard = await _rig_with_shard(rig)
        rig.store.gate.clear()
        rig.store.script.append(fault)
        await rig.start_uploader()
        for _ in range(70):
            rig.append(shard, 1_000)
        await eventually(lambda: len(rig.store.puts) == 1)
        for _ in range(20):
            rig.append(shard, 1_000)
        rig.store.gate.set()
        await eventually(lambda: len(rig.store.puts) >= 2)
        first, second = _chunk_ranges(rig)[:2]
        assert (first, second) == ((0, 70), (0, 90)), "the same range under a new name, and longer"
        assert len(set(rig.store.puts)) == len(rig.store.puts), "no name is used twice"
        await rig.settle()
        assert rig.is_committed(shard)
        assert rig.store.requests["head"] == 0
        assert rig.stats.attempts_doubtful == 1
        await rig.check()


@pytest.mark.fault("connection-silent-half-data")
async def test_f42_a_black_hole_after_half_the_data_moves_the_age_gauge_and_heals() -> None:
    """F42: deadline, new attempt, the age of the oldest unsent data shows."""
    async with TierRig(replace(RIG_LIMITS, put_timeout_ms=30)) as rig:
        shard = await _rig_with_shard(rig)
        await rig.start_uploader()
        for _ in range(200):
            rig.append(shard, 1_000)
        await rig.settle()
        rig.store.decide = lambda _: Fault.HANG
        for _ in range(200):
            rig.append(shard, 1_000)
        await rig.until(lambda: rig.uploader.status().uploader.oldest_unsent_ms > 3_000)
        assert rig.uploader.status().uploader.store_away_ms > 0
        rig.store.decide = None
        await rig.settle()
        assert rig.uploader.status().uploader.oldest_unsent_ms == 0
        assert rig.uploader.status().uploader.store_away_ms == 0
        await rig.check()


@pytest.mark.fault("503-slowdown-1-000")
async def test_f45_a_store_full_of_503s_is_asked_ever_less_and_recovers() -> None:
    """F45: back off with jitter, for the whole node, not per shard."""
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=50)
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.lock.current is not None)
        rig.store.decide = lambda _: Fault.SLOW_DOWN
        for shard in rig.shards.all():
            for _ in range(70):
                rig.append(shard, 1_000)
        await rig.until(lambda: rig.store.requests["put"] >= 1)
        since, before = rig.clock.now_ms, rig.store.requests["put"]
        await rig.until(lambda: rig.clock.now_ms - since > 10_000)
        rate = (rig.store.requests["put"] - before) / ((rig.clock.now_ms - since) / 1_000)
        assert rate < 5, f"{rate} requests per second to a store that says no, with 50 shards waiting"
        rig.store.decide = None
        await rig.settle()
        assert rig.is_committed(*rig.shards.all())
        assert topic.shard_count == 50
        await rig.check()


class HastyClock:
    """Every reading of it takes a while, as between the end of a turn and the check that sets the alarm."""

    def __init__(self, rig: TierRig, step_ms: int) -> None:
        self._rig = rig
        self._step_ms = step_ms

    def __call__(self) -> int:
        self._rig.clock.now_ms += self._step_ms
        return self._rig.clock.now_ms


@pytest.mark.parametrize("step_ms", [100, 300, 700, 1_500])
async def test_f45_a_pause_that_ends_while_the_turn_ends_is_not_slept_through(step_ms: int) -> None:
    """F45: the store says no, traffic stops, and the pause is over before the alarm is set: it goes up by itself."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        await rig.start_uploader(clock_ms=HastyClock(rig, step_ms), lock_ttl_ms=3_600_000)
        await eventually(lambda: rig.uploader.lock.current is not None)
        answers = iter([Fault.SLOW_DOWN, Fault.SLOW_DOWN])
        rig.store.decide = lambda _: next(answers, None)
        for _ in range(70):
            rig.append(shard, 1_000)
        await eventually(lambda: rig.is_committed(shard))


@pytest.mark.fault("store-unavailable-start")
async def test_f51_an_unreachable_store_at_start_stops_nothing_and_heals() -> None:
    """F51: start returns, appends continue, memory holds no data; then all goes up by itself."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        rig.store.is_away = True
        await rig.start_uploader()
        for _ in range(300):
            rig.append(shard, 1_000)
        sealed = await rig.seal(shard)
        await rig.until(lambda: rig.uploader.status().uploader.store_away_ms > 1_000)
        assert rig.commit_offset(shard) == 0
        rig.store.is_away = False
        await rig.until(lambda: rig.is_complete(sealed))
        await rig.check()


@pytest.mark.fault("store-ignores-conditional-puts")
async def test_f46_a_store_that_overwrites_is_refused_and_told() -> None:
    """F46: the boot trial stops uploads before the first one; producers and reads of local data continue."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        rig.store.overwrites = True
        await rig.start_uploader()
        rig.append(shard)
        await rig.until(lambda: rig.uploader.status().uploader.store_away_ms > 1_000)
        assert rig.uploader.status().uploader.oldest_unsent_ms > 0
        assert rig.store.requests["put"] == 0
        rig.store.overwrites = False  # the operator changed the server
        await rig.until(lambda: rig.is_committed(shard))
        await rig.check()


async def test_f51_a_meta_service_that_is_away_at_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """F51, for the other half of the outside."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        perform = rig.meta.perform
        answers = iter([Unavailable("starting")] * 3)

        async def away(command: Command[Any]) -> Any:
            if (error := next(answers, None)) is not None:
                raise error
            return await perform(command)

        perform_instead(monkeypatch, rig.meta, AcquireLock, away)
        await rig.start_uploader()
        rig.append(shard)
        await rig.until(lambda: rig.is_committed(shard))
        await rig.check()


@pytest.mark.fault("uploads-slow-producers-fast")
async def test_f80_slow_uploads_and_fast_producers_keep_memory_bounded() -> None:
    """F80: bytes in flight never pass the budget, however much waits."""
    async with TierRig() as rig:
        await rig.create_topic(shards=20)
        await rig.start_uploader()
        rig.store.gate.clear()
        for _ in range(200):
            for shard in rig.shards.all():
                rig.append(shard, 1_000)
        await rig.until(lambda: rig.store.requests["put"] == rig.limits.max_requests)
        assert rig.uploader.status().uploader.unsent_bytes > 5 * rig.limits.in_flight_bytes
        rig.store.gate.set()
        await rig.settle()
        assert rig.store.largest_waiting <= rig.limits.in_flight_bytes * 1.1
        await rig.check()


@pytest.mark.fault("upload-tail-fails-exactly")
async def test_f77_a_tail_upload_that_fails_exactly_at_roll_resumes_in_order() -> None:
    """F77: the old segment's tail is sent again; the new segment does not overtake within itself."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        await rig.start_uploader()
        for _ in range(100):
            rig.append(shard, 1_000)
        await rig.settle()
        rig.store.script.extend([Fault.CUT, Fault.SLOW_DOWN, Fault.LOST_ANSWER])
        for _ in range(10):
            rig.append(shard, 1_000)
        ended = await rig.roll(shard)
        for _ in range(100):
            rig.append(shard, 1_000)
        sealed = await rig.seal(shard, ended)
        await rig.until(lambda: rig.is_complete(sealed))
        await rig.settle()
        await rig.check()


@pytest.mark.fault("node-dies-put-commit")
async def test_f27_a_kill_between_put_and_commit_leaves_an_orphan_that_is_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F27: only what metadata names counts; the next life continues from the commit offset."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        blocked = asyncio.Event()

        async def never(*_: Any) -> Any:
            blocked.set()
            await asyncio.Event().wait()

        await rig.start_uploader()
        perform_instead(monkeypatch, rig.meta, CommitParts, never)
        for _ in range(100):
            rig.append(shard, 1_000)
        await eventually(blocked.is_set)
        await rig.crash_uploader()
        monkeypatch.undo()
        (orphan,) = await rig.store.keys()
        assert rig.commit_offset(shard) == 0
        await rig.start_uploader()
        await rig.settle()
        janitor = rig.janitor()
        assert (await janitor.sweep_now()).orphans == 0, "younger than the grace"
        rig.advance(600_001)
        assert (await janitor.sweep_now()).orphans == 1
        assert orphan not in await rig.store.keys()
        assert set(await rig.store.keys()) == await rig.check()


@pytest.mark.fault("data-uploaded-manifest-node")
@pytest.mark.parametrize("kind", ["index", "manifest"])
async def test_f31_data_up_but_no_manifest_then_a_crash_and_silence_is_completed_by_itself(kind: str) -> None:
    """F31: a restarted node repairs what is sealed and not complete, even without any request."""
    async with TierRig(replace(RIG_LIMITS, put_timeout_ms=60_000)) as rig:
        shard = await _rig_with_shard(rig)
        rig.store.decide = lambda key: Fault.HANG_LANDED if key.endswith(f".{kind}") else Fault.NONE
        await rig.start_uploader()
        for _ in range(100):
            rig.append(shard, 1_000)
        sealed = await rig.seal(shard)
        await eventually(lambda: any(key.endswith(f".{kind}") for key in rig.store.puts))
        await rig.crash_uploader()
        rig.store.decide = None
        await rig.start_uploader()
        await rig.until(lambda: rig.is_complete(sealed))
        rig.advance(600_001)
        await rig.janitor().sweep_now()
        assert set(await rig.store.keys()) == await rig.check()


async def test_f31_completion_reads_parts_back_that_an_earlier_life_wrote() -> None:
    """F31: the digest chain is checked over the store's own headers after a restart."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        await rig.start_uploader()
        for _ in range(200):
            rig.append(shard, 1_000)
            if rig.stats.chunks_put < 2:
                await rig.settle() if rig.rng.random() < 0.1 else None
        await rig.settle()
        await rig.crash_uploader()
        sealed = await rig.seal(shard)
        await rig.start_uploader()
        await rig.until(lambda: rig.is_complete(sealed))
        assert rig.store.requests["get"] > 1
        await rig.check()


async def test_a_lost_commit_answer_is_asked_again_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """F49, on the side of the meta service: the same commit twice is one commit."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        perform = rig.meta.perform
        answers = iter([OutcomeUnknown("lost"), Unavailable("busy")])

        async def lossy(command: Command[Any]) -> Any:
            error = next(answers, None)
            if isinstance(error, Unavailable):
                raise error
            found = await perform(command)
            if error is not None:
                raise error
            return found

        perform_instead(monkeypatch, rig.meta, CommitParts, lossy)
        await rig.start_uploader()
        rig.append(shard)
        await rig.settle()
        assert rig.store.requests["put"] == 1
        assert rig.stats.commits_repeated == 2
        await rig.check()


@pytest.mark.fault("store-ignores-conditional-puts", "node-crashes-data-uploaded")
async def test_a_compare_and_set_lost_to_an_earlier_life_is_resolved_by_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F46: one's own commit, seen as a loss."""
    async with TierRig(replace(RIG_LIMITS, hold_ms=500)) as rig:
        shard = await _rig_with_shard(rig)
        perform = rig.meta.perform
        swallowed = False

        async def landed_then_forgotten(command: Command[Any]) -> Any:
            nonlocal swallowed
            found = await perform(command)
            if not swallowed:
                swallowed = True
                raise RuntimeError("the process believes that it failed")
            return found

        perform_instead(monkeypatch, rig.meta, CommitParts, landed_then_forgotten)
        await rig.start_uploader()
        rig.append(shard)
        await rig.until(lambda: rig.is_committed(shard))
        rig.append(shard)
        await rig.until(lambda: rig.is_committed(shard))
        assert rig.stats.commits_lost >= 1
        assert rig.stats.tasks_crashed == 1
        await rig.check()


@pytest.mark.fault("two-uploaders-node-deposed")
async def test_f86_of_two_writers_of_one_node_one_wins_and_the_other_stops() -> None:
    """F86, F6: the deposed one resumes in the middle of an upload; its object stays unnamed, nothing is overwritten."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        old = await rig.start_uploader()
        await rig.until(lambda: old.lock.current is not None)
        rig.store.gate.clear()
        for _ in range(70):
            rig.append(shard, 1_000)
        await eventually(lambda: len(rig.store.puts) == 1)
        # The old one sleeps (SIGSTOP): its lease ends, another takes over.
        for task in old._tasks:
            task.cancel()
        rig.clock.now_ms += 1_000
        new = await rig.start_uploader()
        await rig.until(lambda: new.lock.current is not None)
        assert old.lock.current is not None
        assert new.lock.current is not None and new.lock.current.epoch > old.lock.current.epoch
        await eventually(lambda: len(rig.store.puts) == 2)
        rig.store.gate.set()  # both puts land; the old one wakes and asks for its commit
        await eventually(lambda: old.lock.current is None)
        await rig.settle()
        assert rig.stats.locks_lost == 1
        names = [rig.names.parse(part.object_key) for part in rig.remote(shard.segments[0]).remote.parts]
        assert {name.lock_epoch for name in names if isinstance(name, SegmentObjectName)} == {2}
        assert len(set(rig.store.puts)) == len(rig.store.puts), "two owners never share a key"
        await rig.check()
        await old.close()


async def _lock_of_somebody_else(rig: TierRig) -> Lock:
    """Taken between two renewals of its holder, which keeps renewing."""
    for _ in range(1_000):
        rig.clock.now_ms += 1_000
        with suppress(Conflict):
            return await rig.meta.perform(AcquireLock("tier/1", "somebody else", 50))
    raise AssertionError("the holder renewed it each time")


@pytest.mark.fault("two-uploaders-node-deposed")
async def test_f8_a_lock_lost_in_the_middle_of_an_upload_stops_it_and_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F8, F7: a clean stop; the range goes up under the next epoch, key and commit of the same one."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        writer = await rig.start_uploader()
        await rig.until(lambda: writer.lock.current is not None)
        rig.store.gate.clear()
        for _ in range(70):
            rig.append(shard, 1_000)
        await eventually(lambda: len(rig.store.puts) == 1)
        other = await _lock_of_somebody_else(rig)
        rig.store.gate.set()
        await eventually(lambda: writer.lock.current is None)
        assert rig.commit_offset(shard) == 0
        rig.clock.now_ms += 1_000
        await rig.until(lambda: rig.is_committed(shard))
        (part,) = rig.remote(shard.segments[0]).remote.parts
        name = rig.names.parse(part.object_key)
        assert isinstance(name, SegmentObjectName)
        assert name.lock_epoch == other.epoch + 1
        with pytest.raises(Fenced):
            await rig.meta.perform(CommitParts(other, ()))
        await rig.check()


@pytest.mark.fault("retention-hits-segment-uploaded")
async def test_f38_retention_that_hits_a_segment_being_uploaded_cancels_the_upload_cleanly() -> None:
    """F38: the put is given up, the budget is free again, what landed goes with the folder."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        await rig.start_uploader()
        rig.store.gate.clear()
        for _ in range(70):
            rig.append(shard, 1_000)
        await eventually(lambda: len(rig.store.puts) == 1)
        sealed = await rig.seal(shard)
        await rig.meta.perform(AdvanceLogStart(shard.key, 70))
        await eventually(lambda: rig.uploader.status().uploader.tasks == 0)
        assert rig.uploader.status().uploader.bytes_in_flight == 0
        rig.store.gate.set()
        rig.append(shard)
        await rig.settle()
        rig.advance(60_001)
        assert await rig.janitor().delete_once() == 1
        assert [key for key in await rig.store.keys() if key.startswith(rig.names.segment_prefix(sealed.key))] == []
        await rig.check()


async def test_a_deleted_segment_does_not_spoil_its_neighbours_in_a_bundle() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic("gone", shards=1)
        other = await rig.create_topic("stays", shards=3)
        doomed = rig.shard(topic)
        await rig.start_uploader()
        rig.store.gate.clear()
        for shard in rig.shards.all():
            rig.append(shard)
        await rig.until(lambda: len(rig.store.puts) == 1)
        await rig.meta.perform(DeleteTopic(topic.topic_id))
        await eventually(lambda: rig.shards.get(doomed.key) is None)
        rig.store.gate.set()
        await rig.settle()
        assert rig.is_committed(*(rig.shard(other, index) for index in range(3)))
        assert rig.store.requests["put"] == 1
        await rig.check()


async def test_a_digest_that_differs_from_the_seal_record_stops_the_segment_and_is_named() -> None:
    """Rule 10: never completed, never freed; the others continue."""
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=2)
        bad, good = rig.shard(topic, 0), rig.shard(topic, 1)
        await rig.start_uploader()
        for shard in (bad, good):
            for _ in range(80):
                rig.append(shard, 1_000)
        wrong = await rig.seal(bad, digest=bytes(15) + b"\x01")
        right = await rig.seal(good)
        await rig.until(lambda: rig.is_complete(right))
        await rig.until(lambda: rig.uploader.status().uploader.held)
        ((key, reason),) = rig.uploader.status().uploader.held
        assert key == wrong.key
        assert "digest" in reason and "stratalog verify" in reason
        since = rig.clock.now_ms
        await rig.until(lambda: rig.clock.now_ms - since > 10_000)
        assert rig.remote(wrong).remote.state is RemoteState.PARTIAL
        folder = rig.names.segment_prefix(wrong.key)
        assert not [key for key in rig.store.puts if key.startswith(folder) and key.endswith(".manifest")]


@pytest.mark.fault("metric-moves-gauge-fails")
async def test_a_local_copy_that_does_not_read_is_held_told_once_and_tried_again() -> None:
    """F73: an error of one segment is not an error of the uploader."""
    async with TierRig(replace(RIG_LIMITS, hold_ms=5_000)) as rig:
        topic = await rig.create_topic(shards=2)
        bad, good = rig.shard(topic, 0), rig.shard(topic, 1)
        await rig.start_uploader()
        rig.append(bad)
        rig.append(good)
        bad.copies[bad.segments[0].key].is_damaged = True
        await rig.until(lambda: rig.is_committed(good))
        await rig.until(lambda: rig.uploader.status().uploader.held)
        since = rig.clock.now_ms
        await rig.until(lambda: rig.clock.now_ms - since > 11_000)
        assert rig.stats.segments_held == 1, "one line for the log"
        bad.copies[bad.segments[0].key].is_damaged = False
        await rig.until(lambda: rig.is_committed(bad))
        await rig.check()


@pytest.mark.fault("cancellation-instant-completion")
async def test_f47_a_cancellation_at_the_instant_of_completion_loses_nothing() -> None:
    """F47: close at every step of an upload; the next life finds the truth in metadata."""
    for steps in range(0, 60, 3):
        async with TierRig(seed=steps) as rig:
            shard = await _rig_with_shard(rig)
            await rig.start_uploader()
            await rig.until(lambda rig=rig: rig.uploader.lock.current is not None)
            for _ in range(70):
                rig.append(shard, 1_000)
            for _ in range(steps):
                await asyncio.sleep(0)
            await rig.uploader.close()
            rig.shards.detach_listeners()
            await rig.start_uploader()
            await rig.settle()
            assert rig.is_committed(shard)
            await rig.check()


@pytest.mark.fault("uploading-task-unexpected-error")
async def test_f79_an_unexpected_error_ends_one_upload_not_the_uploader(monkeypatch: pytest.MonkeyPatch) -> None:
    """F79, F48: counted, logged, tried again."""
    async with TierRig(replace(RIG_LIMITS, hold_ms=500)) as rig:
        shard = await _rig_with_shard(rig)
        await rig.start_uploader()
        read = RigShard.read_committed_range
        fails = iter([True, True])

        async def broken(self: RigShard, *args: Any, **options: Any) -> Any:
            if next(fails, False):
                raise ZeroDivisionError("a bug")
            return await read(self, *args, **options)

        monkeypatch.setattr(RigShard, "read_committed_range", broken)
        rig.append(shard)
        await rig.until(lambda: rig.is_committed(shard))
        assert rig.stats.tasks_crashed == 2
        await rig.check()


@pytest.mark.fault("sealed-segment-file-gone")
async def test_a_sealed_segment_whose_file_is_lost_is_held_and_named_until_it_is_back() -> None:
    """It was invisible: not uploaded, not held, not counted."""
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        for _ in range(70):
            rig.append(shard, 1_000)
        sealed = await rig.seal(shard)
        copy = shard.copies.pop(sealed.key)
        shard.missing.add(sealed.key)
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.status().uploader.held)
        ((key, reason),) = rig.uploader.status().uploader.held
        assert key == sealed.key
        assert "[0, 70) are lost here and not in the object store" in reason
        assert rig.stats.held_segments == 1
        rig.advance(3_600_000)
        await asyncio.sleep(0)
        assert rig.uploader.status().uploader.held, "it stays told"
        shard.missing.clear()
        shard.copies[sealed.key] = copy
        rig.shards.change(shard, shard.segments[0])
        await rig.until(lambda: rig.is_complete(sealed))
        assert not rig.uploader.status().uploader.held
        await rig.check()


async def test_a_sealed_segment_that_waits_for_its_publication_is_counted() -> None:
    async with TierRig() as rig:
        shard = await _rig_with_shard(rig)
        await rig.start_uploader()
        for _ in range(70):
            rig.append(shard, 1_000)
        await rig.settle()
        rig.store.decide = lambda _: Fault.SLOW_DOWN
        sealed = await rig.seal(shard)
        await rig.until(lambda: rig.uploader.status() and rig.stats.segments_to_publish == 1)
        rig.store.decide = None
        await rig.until(lambda: rig.is_complete(sealed))
        assert rig.uploader.status() and rig.stats.segments_to_publish == 0

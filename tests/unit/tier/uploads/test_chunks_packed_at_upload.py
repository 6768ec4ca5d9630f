"""Topics with `remote.compression=zstd`: chunks are packed before they are put, and all that follows from a chunk stays
as it was."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.object_names import is_packed
from stratalog.formats.bucket.part import decode_part_header
from stratalog.machines.tiering.chunk_packing import (
    LEAST_PACKED_BYTES,
    MOST_WAITING,
    is_mostly_compressed,
    is_to_pack,
)
from stratalog.model.commands.table_commands import AlterTopic
from stratalog.model.errors import NotFound
from stratalog.model.segment import RemoteState, Segment
from stratalog_node.check.remote_segment import check_remote_segment
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads import packer
from stratalog_node.tier.uploads.packer import Packer, pack_if_worth
from support.faulty_store import Fault
from support.packed_chunks import part_of, part_of_text, unpack_all
from support.tier_rig import RIG_LIMITS, RigShard, TierRig

LIMITS = replace(RIG_LIMITS, chunk_bytes=128 << 10, in_flight_bytes=1 << 20)


def index_of(part: bytes) -> int:
    return decode_part_header(part, source="made").index_position


async def packing_shard(rig: TierRig, name: str = "flights", compression: str = "zstd") -> RigShard:
    return rig.shard(await rig.create_topic(name, remote_compression=compression))


def append_text(rig: TierRig, shard: RigShard, count: int = 150) -> None:
    for _ in range(count):
        rig.append(shard, 1_000, is_text=True)


async def sealed(rig: TierRig, shard: RigShard) -> Segment:
    segment = await rig.seal(shard)
    await rig.until(lambda: rig.is_complete(segment))
    return rig.remote(segment)


async def stored_sizes(rig: TierRig) -> dict[str, int]:
    return {info.key: info.size_bytes async for info in rig.store.inner.list("") if "/claims/" not in info.key}


# What is decided ------------------------------------------------------------------------------------------------------
def test_only_chunks_of_some_size_that_nobody_waits_for_are_packed() -> None:
    asked = {"is_asked_for": True, "has_waiting_producers": False}
    assert is_to_pack(LEAST_PACKED_BYTES, **asked)
    assert not is_to_pack(LEAST_PACKED_BYTES - 1, **asked)
    assert not is_to_pack(1 << 20, is_asked_for=False, has_waiting_producers=False)
    assert not is_to_pack(1 << 20, is_asked_for=True, has_waiting_producers=True)


def test_half_of_the_bytes_from_compressing_clients_is_not_most() -> None:
    assert not is_mostly_compressed(50, 100)
    assert is_mostly_compressed(49, 100)


def test_the_packed_chunk_is_the_part_byte_for_byte() -> None:
    part = part_of_text(12)
    cut = len(part) // 3
    packed = pack_if_worth([part[:512], memoryview(part)[512:cut], part[cut:]], index_of(part), "made")
    assert packed is not None and len(packed) < len(part) / 2
    assert unpack_all(packed) == part


def test_batches_that_clients_compressed_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not packed although it would spare something, because it costs as much as on plain ones."""
    value = b"a word and the same word " * 200
    batches = [
        encode_batch([Record(number, 0, None, value)], base_offset=number, epoch=2, compression=3)
        for number in range(400)
    ]

    def no_trial(_: object) -> bool:
        raise AssertionError("nothing is tried")

    part = part_of(batches)
    monkeypatch.setattr(packer, "is_worth_packing", no_trial)
    assert pack_if_worth([part], index_of(part), "made") is None


def test_bytes_that_do_not_compress_are_given_up_after_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    batches = [
        encode_batch([Record(number, 0, None, rng.randbytes(10_000))], base_offset=number, epoch=2)
        for number in range(100)
    ]

    def no_packing(*_: object, **__: object) -> bytes:
        raise AssertionError("the trial says enough")

    part = part_of(batches)
    monkeypatch.setattr(packer, "pack_part", no_packing)
    assert pack_if_worth([part], index_of(part), "made") is None


# The packer -----------------------------------------------------------------------------------------------------------
async def test_one_chunk_is_packed_at_a_time_and_those_beyond_a_few_are_put_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go, running, most = threading.Event(), 0, 0

    def slow(part: object, index_position: int, source: str) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        may_go.wait(30)
        running -= 1
        return source.encode()

    monkeypatch.setattr(packer, "pack_if_worth", slow)
    stats = TierStats()
    one = Packer(stats)
    taken = [asyncio.create_task(one.pack([], 0, source=f"{number}")) for number in range(1 + MOST_WAITING)]
    await asyncio.sleep(0)
    assert await one.pack([], 0, source="late") is None
    assert stats.chunks_left_unpacked == 1
    may_go.set()
    assert await asyncio.gather(*taken) == [f"{number}".encode() for number in range(1 + MOST_WAITING)]
    assert most == 1
    assert await one.pack([], 0, source="again") == b"again", "there is room again"
    one.close()


# What becomes of the data ---------------------------------------------------------------------------------------------
async def test_chunks_are_put_packed_and_the_segment_is_the_sealed_one() -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        await rig.start_uploader()
        for _ in range(3):
            append_text(rig, shard)
            await rig.settle()
        parts = rig.remote(shard.segments[-1]).remote.parts
        assert any(is_packed(part.object_key) for part in parts), "while the segment is open"
        await rig.check()
        segment = await sealed(rig, shard)
        assert await rig.check()
        manifest = await rig.manifest(segment)
        stored = await stored_sizes(rig)
        for part, size in zip(manifest.parts, manifest.packed_sizes, strict=True):
            assert size == (stored[part.object_key] if is_packed(part.object_key) else 0)
        assert sum(map(bool, manifest.packed_sizes)) >= 3
        # Logical and stored bytes: the seal has the one, the remote copy the other.
        assert segment.seal is not None
        assert segment.seal.size_bytes == sum(map(len, shard.copies[segment.key].batches))
        assert segment.remote.size_bytes == sum(stored[key] for key in await rig.check())
        assert segment.remote.size_bytes < segment.seal.size_bytes / 2
        assert rig.stats.chunks_packed >= 3
        assert rig.stats.packed_bytes < rig.stats.unpacked_bytes / 2
        assert rig.stats.put_bytes < rig.stats.committed_bytes / 2
        assert (await check_remote_segment(rig.store.inner, rig.cluster_id, segment)).findings == []


async def test_a_topic_that_does_not_ask_for_it_is_uploaded_as_before() -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig, compression="none")
        await rig.start_uploader()
        append_text(rig, shard)
        segment = await sealed(rig, shard)
        assert (await rig.manifest(segment)).packed_sizes == ()
        assert rig.stats.chunks_packed == rig.stats.chunks_left_unpacked == 0


async def test_data_that_does_not_compress_is_uploaded_as_before() -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        await rig.start_uploader()
        for _ in range(150):
            rig.append(shard, 1_000)
        segment = await sealed(rig, shard)
        assert (await rig.manifest(segment)).packed_sizes == ()
        assert rig.stats.chunks_packed == 0
        await rig.check()


async def test_a_changed_setting_holds_for_what_is_uploaded_from_then_on() -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig, compression="none")
        await rig.start_uploader()
        append_text(rig, shard)
        await rig.settle()
        before = rig.remote(shard.segments[-1]).remote.parts
        assert before and not any(is_packed(part.object_key) for part in before)
        await rig.meta.perform(AlterTopic(shard.key.topic_id, {"remote.compression": "zstd"}))
        await rig.until(lambda: rig.catalog.topic_settings(shard.key.topic_id).remote_compression.value == "zstd")
        append_text(rig, shard)
        segment = await sealed(rig, shard)
        manifest = await rig.manifest(segment)
        assert manifest.packed_sizes[0] == 0 and manifest.parts[0] == before[0]
        assert any(manifest.packed_sizes)
        await rig.check()


async def test_small_ranges_in_bundles_are_packed_once_they_get_a_chunk() -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        await rig.start_uploader()
        for _ in range(6):
            append_text(rig, shard, 30)
            await rig.settle()
        assert rig.stats.bundles_put > 0 and rig.stats.chunks_packed == 0
        segment = await sealed(rig, shard)
        manifest = await rig.manifest(segment)
        assert all(map(is_packed, (part.object_key for part in manifest.parts)))
        await rig.check()


async def test_new_data_of_a_direct_segment_is_not_packed_because_producers_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        monkeypatch.setattr(Segment, "is_direct", True)
        await rig.start_uploader()
        append_text(rig, shard)
        await rig.until(lambda: rig.stats.chunks_put == 1)
        assert rig.stats.chunks_packed == 0


# Faults ---------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("upload-packed-unknown-outcome")
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.CUT, Fault.TAKEN, Fault.SLOW_DOWN])
async def test_a_packed_put_of_unknown_outcome_is_sent_again_under_a_new_name_and_the_other_is_swept(
    fault: Fault,
) -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        rig.store.script.append(fault)
        await rig.start_uploader()
        append_text(rig, shard)
        segment = await sealed(rig, shard)
        attempts = [key for key in rig.store.puts if is_packed(key)]
        assert len(attempts) == len(set(attempts)) >= 2
        rig.advance(600_001)
        await rig.janitor().sweep_now()
        assert {key for key in await rig.store.keys() if "/data/" in key} == await rig.check()
        assert any((await rig.manifest(segment)).packed_sizes)


@pytest.mark.fault("upload-packed-killed")
async def test_a_kill_between_the_put_of_a_packed_chunk_and_its_commit_loses_nothing_and_leaves_nothing() -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        rig.store.script.append(Fault.HANG_LANDED)
        await rig.start_uploader()
        append_text(rig, shard)
        await rig.until(lambda: rig.store.puts)
        (orphan,) = rig.store.puts
        assert is_packed(orphan)
        await rig.crash_uploader()
        await rig.start_uploader()
        await sealed(rig, shard)
        assert orphan in await rig.store.keys()
        rig.advance(600_001)
        await rig.janitor().sweep_now()
        assert orphan not in await rig.store.keys()
        assert {key for key in await rig.store.keys() if "/data/" in key} == await rig.check()


@pytest.mark.fault("upload-packed-killed")
async def test_a_node_that_was_killed_completes_a_segment_of_packed_chunks_from_what_the_store_has() -> None:
    """The next life remembers neither indexes nor digests nor sizes."""
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        await rig.start_uploader()
        append_text(rig, shard)
        await rig.until(lambda: rig.stats.chunks_packed == 1)
        await rig.crash_uploader()
        append_text(rig, shard)
        await rig.start_uploader()
        segment = await sealed(rig, shard)
        assert sum(map(bool, (await rig.manifest(segment)).packed_sizes)) >= 2
        await rig.check()


@pytest.mark.fault("upload-packed-killed")
async def test_a_segment_whose_packed_chunk_is_gone_is_held_and_not_completed() -> None:
    async with TierRig(LIMITS) as rig:
        shard = await packing_shard(rig)
        await rig.start_uploader()
        append_text(rig, shard)
        await rig.until(lambda: rig.stats.chunks_packed == 1)
        (key,) = [one for one in await rig.store.keys() if is_packed(one)]
        await rig.store.inner.delete([key])
        with pytest.raises(NotFound):
            await rig.store.inner.head(key)
        segment = await rig.seal(shard)
        await rig.until(lambda: rig.uploader.status().uploader.held)
        assert rig.remote(segment).remote.state is not RemoteState.COMPLETE
        assert key in rig.uploader.status().uploader.held[0][1]

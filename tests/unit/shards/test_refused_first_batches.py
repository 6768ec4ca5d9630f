"""A refused first batch of an idempotent producer: what it sent behind it waits, and nothing of it is lost in silence.

A producer that the shard does not know may begin with any sequence. Clients have five batches under way and take
"duplicate" for success.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading import rejected_batches, segment_leader
from stratalog.model.errors import DiskFull
from stratalog_node.disk.files import SegmentFile
from support.shard_rig import ShardRig


def batch(sequence: int, number: int = 7, epoch: int = 0) -> dict[str, Any]:
    return {"producer_id": number, "producer_epoch": epoch, "base_sequence": sequence}


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise DiskFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentFile, "append", refuse)
        yield


@pytest.mark.fault("node-temporarily-refuses-idempotent")
@pytest.mark.parametrize("cause", ["the disk", "the node", "its first file"])
async def test_what_was_sent_behind_a_refused_first_batch_waits_until_that_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        if cause == "the disk":
            await rig.acknowledged(shard, b"of another")
            with full_disk(monkeypatch):
                first = rig.append(shard, b"a", **batch(0))
        elif cause == "the node":
            rig.context.gate.no_room = "the disk is full"
            first = rig.append(shard, b"a", **batch(0))
            rig.context.gate.no_room = None
        else:
            with monkeypatch.context() as patch:
                patch.setattr(rig.context.descriptors, "most", 0)
                first = rig.append(shard, b"a", **batch(0))
        assert first.error is ErrorCode.KAFKA_STORAGE_ERROR
        behind = rig.append(shard, b"b", **batch(1))
        assert behind.error is ErrorCode.KAFKA_STORAGE_ERROR, "clients repeat it behind the first"
        for sequence, value in enumerate([b"a", b"b"]):
            await rig.acknowledged(shard, value, **batch(sequence))
        assert (await rig.read_values(shard))[-2:] == [b"a", b"b"]


@pytest.mark.fault("node-temporarily-refuses-idempotent")
async def test_a_batch_that_was_never_appended_is_not_a_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        with full_disk(monkeypatch):
            rig.append(shard, b"a", **batch(0))
        rig.clock.now_ms += rejected_batches._LASTS_MS
        assert rig.append(shard, b"b", **batch(1)).error is ErrorCode.KAFKA_STORAGE_ERROR, "the log held no record yet"
        rig.clock.now_ms += rejected_batches._LASTS_MS
        await rig.acknowledged(shard, b"b", **batch(1))
        assert shard.chain._refusals is not None and not shard.chain._refusals.owed, "its memory is given back"
        assert rig.append(shard, b"a", **batch(0)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await rig.acknowledged(shard, b"c", **batch(2))


@pytest.mark.fault("node-temporarily-refuses-idempotent")
async def test_what_is_refused_again_and_again_is_waited_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        with full_disk(monkeypatch):
            for _ in range(3):
                for sequence in (0, 1):
                    rig.append(shard, b"a", **batch(sequence))
                rig.clock.now_ms += rejected_batches._LASTS_MS - 1
        assert rig.append(shard, b"b", **batch(1)).error is ErrorCode.KAFKA_STORAGE_ERROR
        await rig.acknowledged(shard, b"a", **batch(0))


async def test_what_comes_again_under_an_earlier_sequence_and_is_refused_again_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        with full_disk(monkeypatch):
            for sequence in (1, 0):
                rig.append(shard, b"a", **batch(sequence))
        assert rig.append(shard, b"b", **batch(1)).error is ErrorCode.KAFKA_STORAGE_ERROR
        for sequence in (0, 1):
            await rig.acknowledged(shard, b"a", **batch(sequence))


async def test_a_producer_that_the_log_knows_is_held_up_by_nothing_but_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients number again what stood behind a batch that they gave up."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        with full_disk(monkeypatch):
            rig.append(shard, b"a", **batch(1))
        await rig.acknowledged(shard, b"a", b"b", b"c", **batch(0))
        await rig.acknowledged(shard, b"d", **batch(3))


async def test_a_producer_that_the_log_knows_is_not_told_that_what_came_too_early_is_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients would begin a new epoch, and send again under it what they have no answer for."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a", **batch(0))
        with full_disk(monkeypatch):
            rig.append(shard, b"b", **batch(1))
        assert rig.append(shard, b"c", **batch(2)).error is ErrorCode.KAFKA_STORAGE_ERROR
        for sequence, value in ((1, b"b"), (2, b"c")):
            await rig.acknowledged(shard, value, **batch(sequence))
        assert rig.append(shard, b"e", **batch(4)).error is ErrorCode.KAFKA_STORAGE_ERROR, "one may be on its way"
        rig.clock.now_ms += rejected_batches._LASTS_MS
        assert rig.append(shard, b"e", **batch(4)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]


@pytest.mark.fault("node-temporarily-refuses-idempotent")
async def test_of_five_under_way_those_come_in_order_that_were_refused_though_the_first_is_in_the_log(
    tmp_path: Path,
) -> None:
    """Its answer was lost with the node's last life, and all are sent again while the shard is not opened yet."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        first = await rig.acknowledged(shard, b"0", **batch(0))
        rig.context.gate.no_room = "not opened yet"
        for sequence in range(4):
            rig.append(shard, b"%d" % sequence, **batch(sequence))
        rig.context.gate.no_room = None
        assert rig.append(shard, b"4", **batch(4)).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await rig.acknowledged(shard, b"0", **batch(0))).offset == first.offset
        assert rig.append(shard, b"3", **batch(3)).error is ErrorCode.KAFKA_STORAGE_ERROR
        rest = [rig.offer(shard, b"%d" % sequence, **batch(sequence)) for sequence in range(1, 5)]
        rig.tick()
        await rig.until(lambda: all(one.is_acknowledged for one in rest))
        assert await rig.read_values(shard) == [b"%d" % number for number in range(5)]


async def test_a_newer_epoch_and_other_producers_are_not_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"of another")
        with full_disk(monkeypatch):
            rig.append(shard, b"a", **batch(5))
        await rig.acknowledged(shard, b"x", **batch(8, number=8))
        await rig.acknowledged(shard, b"y", **batch(6, epoch=1))
        await rig.acknowledged(shard, b"z", **batch(7, epoch=1))


async def test_of_very_many_refused_producers_the_last_ones_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        with full_disk(monkeypatch):
            for number in range(rejected_batches._MOST + 10):
                rig.append(shard, b"a", **batch(0, number=number))
        assert shard.chain._refusals is not None and len(shard.chain._refusals.owed) == rejected_batches._MOST
        assert rig.append(shard, b"b", **batch(1, number=rejected_batches._MOST + 9)).error is (
            ErrorCode.KAFKA_STORAGE_ERROR
        )


@pytest.mark.fault("idempotent-producer-sends-first")
async def test_a_log_that_never_held_a_record_begins_with_a_producers_first_batch(tmp_path: Path) -> None:
    """The first one may have been refused elsewhere. Kafka 4.3 takes the later one, and refuses the first with 45 for
    ever; Kafka 4.5 refuses the later one with 45 (KAFKA-15591)."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        early = rig.append(shard, b"b", **batch(1))
        assert early.error is ErrorCode.KAFKA_STORAGE_ERROR, "retriable, and fatal to no client"
        for sequence, value in enumerate([b"a", b"b"]):
            await rig.acknowledged(shard, value, **batch(sequence))
        assert await rig.read_values(shard) == [b"a", b"b"]


async def test_a_log_that_held_a_record_takes_a_producer_that_it_does_not_know_at_any_sequence(tmp_path: Path) -> None:
    """As every Kafka does: the producer may have been forgotten."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"of another")
        await rig.acknowledged(shard, b"b", **batch(5))
        await shard.delete_records_before(2)
        await rig.acknowledged(shard, b"c", **batch(5, number=8))


@pytest.mark.fault("idempotent-producer-sends-first")
async def test_a_producer_continues_in_a_topic_recreated_under_its_name(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for number in (7, 8):
            assert rig.append(shard, b"b", **batch(5, number)).error is ErrorCode.KAFKA_STORAGE_ERROR
        rig.clock.now_ms += segment_leader._FIRST_OWED_MS
        for number in (7, 8):
            await rig.acknowledged(shard, b"b", **batch(5, number))

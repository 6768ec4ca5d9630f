"""A shard that cannot be opened or read does not know where it ends: every question about it is answered with an error
that clients retry, never with an end that is too low, nor with "out of range" (F40): consumers would jump."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import SealSegment
from stratalog_node.shards.log.shard_log import ShardLog
from support import kafka_oracle
from support.serve_rig import ServeRig, WireClient
from support.shard_rig import START_MS
from support.waiting import eventually

RETRIED = ErrorCode.KAFKA_STORAGE_ERROR
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


async def asked(client: WireClient, key: int, version: int, **fields: Any) -> Any:
    await client.write(client.frame(key, version, **fields))
    return kafka_oracle.decode_response(key, version, await client.read_frame())


async def listed(client: WireClient, timestamp: int, topic: str = "flights") -> tuple[int, int]:
    request = kafka_oracle.request_class(2)
    partition = request.ListOffsetsTopic.ListOffsetsPartition(
        version=7, partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    topics = [request.ListOffsetsTopic(version=7, name=topic, partitions=[partition])]
    answer = await asked(client, 2, 7, replica_id=-1, isolation_level=0, topics=topics)
    one = answer.topics[0].partitions[0]
    return one.error_code, one.offset


async def fetched(client: WireClient, offset: int, topic: str = "flights") -> tuple[int, int]:
    await client.write(client.fetch_frame(topic, offset, max_wait_ms=0))
    (one,) = await client.fetched()
    return one.error_code, one.high_watermark


def becomes_garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 5000)


def becomes_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def is_cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


async def written(rig: ServeRig) -> ShardLog:
    """Offsets 0-2 in a sealed segment, 3-5 in one that is sealing, 6-8 in the active one."""
    shard = await rig.shard_of()
    for segment in range(3):
        if segment == 2:
            rig.meta.hold(SealSegment)
        for number in range(3):
            await rig.acknowledged(shard, b"%d" % (3 * segment + number))
        if segment < 2:
            shard.ask_roll(rig.clock())
        if segment == 0:
            await rig.all_sealed()
    await eventually(lambda: len(shard.segments) == 3 and shard.segments[1].end_offset == 6)
    return shard


@pytest.mark.fault("metadata-loaded-shard-file")
@pytest.mark.parametrize(
    ("spoil", "epoch", "readable_below"),
    [
        (becomes_garbage, 2, 6),
        (becomes_a_directory, 2, 6),
        (becomes_garbage, 1, 3),
        (becomes_a_directory, 1, 3),
        (is_cut, 1, 3),
        (Path.unlink, 1, 3),
    ],
)
async def test_a_shard_that_was_not_opened_answers_with_an_error_that_is_retried(
    tmp_path: Path, spoil: Callable[[Path], None], epoch: int, readable_below: int
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await written(rig)
        other = await rig.shard_of("other")
        await rig.acknowledged(other, b"x")
        path = rig.file_of(shard, epoch)
        whole = path.read_bytes()
        await rig.crash()
        spoil(path)
        await rig.start()

        client = rig.connect()
        for offset in range(10):
            code, high_watermark = await fetched(client, offset)
            if offset < readable_below:
                assert code == 0, offset
            else:
                assert (code, high_watermark) == (RETRIED, -1), offset
        for timestamp in (LATEST, MAX_TIMESTAMP, START_MS + 1_000_000):
            assert (await listed(client, timestamp))[0] == RETRIED, timestamp
        assert await listed(client, EARLIEST) == (0, 0)
        assert await listed(client, START_MS) == (0, 0), "what is found below is found"
        assert await fetched(client, 0, "other") == (0, 1)
        assert await listed(client, LATEST, "other") == (0, 1)

        await rig.crash()
        rig.meta.open_all()
        if path.is_dir():
            path.rmdir()
        path.write_bytes(whole)
        await rig.start()
        client = rig.connect()
        assert await listed(client, LATEST) == (0, 9)
        assert await rig.read_values(rig.shard(shard)) == [b"%d" % number for number in range(9)]


@pytest.mark.fault("metadata-loaded-shard-file")
async def test_epoch_ends_and_deletions_wait_for_a_shard_that_was_not_opened(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await written(rig)
        path = rig.file_of(shard)
        await rig.crash()
        becomes_garbage(path)
        await rig.start()
        client = rig.connect()
        request = kafka_oracle.request_class(23)
        topic_class = request.OffsetForLeaderTopic
        partition = topic_class.OffsetForLeaderPartition(
            version=3, partition=0, current_leader_epoch=-1, leader_epoch=2
        )
        topics = [topic_class(version=3, topic="flights", partitions=[partition])]
        answer = await asked(client, 23, 3, replica_id=-1, topics=topics)
        assert answer.topics[0].partitions[0].error_code == RETRIED
        request = kafka_oracle.request_class(21)
        topic_class = request.DeleteRecordsTopic
        for offset in (-1, 1, 9):
            partition = topic_class.DeleteRecordsPartition(version=1, partition_index=0, offset=offset)
            topics = [topic_class(version=1, name="flights", partitions=[partition])]
            answer = await asked(client, 21, 1, topics=topics, timeout_ms=1000)
            assert answer.topics[0].partitions[0].error_code == RETRIED, offset
        assert rig.shard(shard).log_start_offset == 0


@pytest.mark.fault("metadata-loaded-shard-file")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOENT, errno.ENODEV])
async def test_a_file_that_cannot_be_opened_while_the_node_runs_is_a_retried_error(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await written(rig)
        client = rig.connect()
        for file in list(rig.context.descriptors._open):
            file.close()
        really_open = os.open

        def broken(path: Any, *args: Any, **more: Any) -> int:
            if str(path).endswith((".seg", ".idx")):
                raise OSError(number, os.strerror(number))
            return really_open(path, *args, **more)

        monkeypatch.setattr(os, "open", broken)
        for offset in (0, 3, 6):
            code, _ = await fetched(client, offset)
            assert code in (RETRIED, ErrorCode.OFFSET_NOT_AVAILABLE), (offset, code)
        assert await listed(client, LATEST) == (0, 9), "the end of an open log is known"
        assert (await listed(client, START_MS))[0] in (RETRIED, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        monkeypatch.undo()
        assert (await fetched(client, 0))[0] == 0
        assert await rig.read_values(shard) == [b"%d" % number for number in range(9)]

"""Produce over a connection: which answers come, in which order, and what a lost connection leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from pathlib import Path

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import AdvanceLogStart, DeleteTopic, RollSegment
from stratalog.model.listeners import INTERNAL, Listener, SecurityProtocol
from stratalog_node.serve import server as server_module
from stratalog_node.serve.connections.listeners import bind
from stratalog_node.serve.server import _ListensAt
from support import kafka_oracle
from support.raw_client import batch_of
from support.serve_rig import ServeRig
from support.waiting import eventually


async def test_each_partition_of_a_request_gets_its_own_answer_in_the_order_asked(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.create_topic("flights", shards=3)
        await rig.create_topic("small", max_message_bytes=128)
        client = rig.connect()
        damaged = bytearray(batch_of(b"x"))
        damaged[-1] ^= 1
        good = batch_of(b"good")
        await client.write(
            client.produce_many(
                [
                    ("flights", 2, good),
                    ("flights", 0, bytes(damaged)),
                    ("flights", 7, good),
                    ("flights", 0, good),
                    ("flights", 0, good + good),
                    ("none", 0, good),
                    ("small", 0, batch_of(bytes(500))),
                    ("flights", 2, good),
                ]
            )
        )
        answers = await client.produced_all()
        assert [(a.error_code, a.base_offset) for a in answers] == [
            (0, 0),
            (ErrorCode.CORRUPT_MESSAGE, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (0, 0),
            (ErrorCode.INVALID_RECORD, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (ErrorCode.MESSAGE_TOO_LARGE, -1),
            (0, 1),
        ]


async def test_answers_come_in_the_order_of_requests_whatever_is_acknowledged_first(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        slow, fast = await rig.shard_of("slow"), await rig.shard_of("fast")
        rig.append(slow, b"old")
        rig.meta.hold(RollSegment)
        slow.ask_roll(rig.clock())
        client = rig.connect()
        await client.write(
            client.produce_frame("slow", batch_of(b"1"))
            + client.produce_frame("fast", batch_of(b"2"))
            + client.produce_frame("fast", batch_of(b"3"), acks=0)
            + client.produce_frame("fast", batch_of(b"4"), acks=1)
        )
        await eventually(lambda: fast.high_watermark == 3)
        assert len(client.connection._answers) == 3
        rig.meta.release(RollSegment)
        assert [(await client.produced()).base_offset for _ in range(3)] == [1, 0, 2]


async def test_acks_0_is_never_answered_and_a_refusal_closes_the_connection(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(b"taken"), acks=0))
        await client.write(client.produce_frame("flights", batch_of(b"answered"), acks=1))
        assert (await client.produced()).base_offset == 1
        await client.write(
            client.produce_frame("flights", batch_of(b"taken too"), acks=0)
            + client.produce_frame("flights", batch_of(b"not taken")[:-1] + b"!", acks=0)
            + client.produce_frame("flights", batch_of(b"never read"), acks=0)
        )
        assert await client.is_closed()
        assert await rig.read_values(shard) == [b"taken", b"answered", b"taken too"]
        await rig.nothing_is_held()


async def test_an_unknown_acks_is_refused(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(b"x"), acks=2))
        assert (await client.produced()).error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_a_request_not_acknowledged_in_time_times_out_and_a_late_acknowledgement_changes_nothing(
    tmp_path: Path,
) -> None:
    async with ServeRig(tmp_path) as rig:
        shard, other = await rig.shard_of("flights"), await rig.shard_of("other")
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        client = rig.connect()
        await client.write(
            client.produce_many([("flights", 0, batch_of(b"x")), ("other", 0, batch_of(b"y"))], timeout_ms=20)
        )
        answers = await client.produced_all()
        assert [a.error_code for a in answers] == [ErrorCode.REQUEST_TIMED_OUT, 0]
        rig.meta.release(RollSegment)
        await eventually(lambda: shard.high_watermark == 2)
        await client.write(client.produce_frame("other", batch_of(b"z")))
        assert (await client.produced()).base_offset == 1
        assert other.high_watermark == 2
        await rig.nothing_is_held()


async def test_a_connection_lost_before_its_acknowledgement_leaves_the_batch_and_nothing_else(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(b"x")))
        await eventually(lambda: shard.end_offset == 2)
        client.close()
        await eventually(lambda: client.connection.is_closed)
        rig.meta.release(RollSegment)
        await eventually(lambda: shard.high_watermark == 2)
        await rig.nothing_is_held()


async def test_requests_that_wait_for_a_deleted_topic_are_answered(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        client = rig.connect()
        await client.write(client.produce_frame("flights", batch_of(b"x")))
        await eventually(lambda: shard.end_offset == 2)
        await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
        assert (await client.produced()).error_code == ErrorCode.REQUEST_TIMED_OUT
        await client.write(client.produce_frame("flights", batch_of(b"x")))
        assert (await client.produced()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await rig.nothing_is_held()


async def test_a_batch_refused_for_a_full_disk_is_taken_once_there_is_room(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        rig.context.gate.no_room = "no room, free some"
        await client.write(client.produce_frame("flights", batch_of(b"x")))
        answer = await client.produced()
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR and answer.error_message == "no room, free some"
        rig.context.gate.no_room = None
        await client.write(client.produce_frame("flights", batch_of(b"x")))
        assert (await client.produced()).base_offset == 0


async def test_control_requests_and_produce_share_one_line(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        versions = client.frame(18, 0)
        await client.write(versions + client.produce_frame("flights", batch_of(b"x")) + versions)
        first = await client.read_frame()
        assert (await client.produced()).base_offset == 0
        assert len(await client.read_frame()) == len(first)


async def test_a_connection_closed_under_a_control_request_ends_it(tmp_path: Path) -> None:
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        client = rig.connect()
        rig.meta.hold(AdvanceLogStart)
        shard = rig.shards.by_name("flights", 0)
        assert shard is not None
        rig.append(shard, b"x")
        await client.write(
            client.frame(
                21,
                1,
                timeout_ms=1000,
                topics=[_delete_records_topic()],
            )
        )
        await eventually(lambda: rig.meta.calls[AdvanceLogStart] == 1)
        control = client.connection._control
        assert control is not None
        client.close()
        await eventually(lambda: client.connection.is_closed)
        await eventually(lambda: control._task is None)
        rig.meta.release(AdvanceLogStart)
        await rig.nothing_is_held()


def _delete_records_topic() -> object:
    request = kafka_oracle.request_class(21)
    topic = request.DeleteRecordsTopic
    return topic(
        version=1,
        name="flights",
        partitions=[topic.DeleteRecordsPartition(version=1, partition_index=0, offset=1)],
    )


async def test_a_shortage_of_descriptors_does_not_spin_the_loop_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_ACCEPT_RETRY_S", 0.02)
    async with ServeRig(tmp_path) as rig:
        await rig.shard_of()
        listener = bind("127.0.0.1", 0)
        rig.server.open(listener, Listener(INTERNAL, "localhost", 1))
        port = listener.getsockname()[1]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        accepts = 0
        real = rig.server._accept

        def counted(*args: object) -> None:
            nonlocal accepts
            accepts += 1
            real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(rig.server, "_accept", counted)
        at = _ListensAt(Listener(INTERNAL, "localhost", 1), SecurityProtocol.PLAINTEXT, None)
        rig.server._accept_again(listener, at)
        waiting = socket.socket()
        waiting.setblocking(False)
        # With every number below the limit taken, accept fails with EMFILE.
        taken = []
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            while True:
                taken.append(os.dup(waiting.fileno()))
        try:
            await asyncio.get_running_loop().sock_connect(waiting, ("127.0.0.1", port))
            await eventually(lambda: accepts > 0)
            before = accepts
            for _ in range(200):
                await asyncio.sleep(0)
            assert accepts - before <= 3
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await eventually(lambda: rig.server.stats.accepted == 1)
        waiting.close()

"""Change sets as lines of JSON: bounded, and encoded once however many watch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest

from stratalog.meta_api.watch_lines import RECORDS_PER_LINE, EncodedLines, WatchReader, WatchWriter
from stratalog.model.errors import OutcomeUnknown
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet, SegmentChanged, ShardChanged
from stratalog.model.parts import PartList
from stratalog.model.segment import RemoteCopy, RemoteState, Segment, SegmentState
from stratalog.model.topic import Shard
from stratalog.telemetry.http_limits import HttpLimits
from stratalog_meta.api.server import MetaServer
from support.meta_worlds import part, running
from support.waiting import eventually

TOPIC = UUID(int=1)


def segment(shard: int, parts: PartList | None = None) -> Segment:
    remote = RemoteCopy() if parts is None else RemoteCopy(RemoteState.PARTIAL, len(parts), parts, size_bytes=1)
    return Segment(SegmentKey(TOPIC, shard, 0, 0), SegmentState.ACTIVE, 1, (1,), (1,), 0, 0, remote=remote)


def new_shards(version: int, count: int) -> ChangeSet:
    changes = [ShardChanged(Shard(ShardKey(TOPIC, number), 0, (segment(number),))) for number in range(count)]
    return ChangeSet(version, tuple(changes))


def parts_of(count: int) -> PartList:
    return PartList(part(offset, offset + 1) for offset in range(count))


def test_a_change_set_is_encoded_once_for_all_watches() -> None:
    encoded = EncodedLines()
    told = new_shards(1, 1_000)
    lines = [list(WatchWriter(encoded).lines(told)) for _ in range(20)]
    assert encoded.records_encoded == 1_000
    assert all(other == lines[0] for other in lines)


@pytest.mark.fault("twenty-watchers-http-topic")
def test_a_large_change_set_comes_in_lines_of_bounded_size_and_is_put_together() -> None:
    told = new_shards(1, 3_000)
    lines = list(WatchWriter(EncodedLines()).lines(told))
    assert max(len(json.loads(line)["changes"]) for line in lines) <= RECORDS_PER_LINE
    assert max(map(len, lines)) < 200_000
    reader = WatchReader()
    read = [reader.read(line) for line in lines]
    assert read[:-1] == [None] * (len(lines) - 1) and read[-1] == told


def test_parts_count_as_what_makes_a_line_large() -> None:
    """A change that alone has many is a line of its own."""
    changes = tuple(SegmentChanged(segment(number, parts_of(100))) for number in range(10))
    lines = list(WatchWriter(EncodedLines()).lines(ChangeSet(1, changes)))
    assert [len(json.loads(line)["changes"]) for line in lines] == [2] * 5


@pytest.mark.fault("snapshot-inside-a-turn")
def test_a_set_of_fewer_versions_gets_lines_of_its_own() -> None:
    """Its version is that of the whole set, and it begins at a later one."""
    encoded = EncodedLines()
    changes = tuple(SegmentChanged(segment(number, parts_of(200))) for number in range(6))
    for first in range(6):
        reader, told = WatchReader(), ChangeSet(6, changes[first:])
        assert [reader.read(line) for line in WatchWriter(encoded).lines(told)][-1] == told


@pytest.mark.fault("twenty-watchers-http-topic")
def test_what_is_encoded_stays_within_its_bound() -> None:
    encoded = EncodedLines(max_bytes=100_000)
    for version in range(1, 50):
        for _ in WatchWriter(encoded).lines(new_shards(version, 100)):
            assert encoded.size_bytes <= 100_000
    line = next(WatchWriter(EncodedLines(max_bytes=10)).lines(new_shards(1, 5)))
    assert len(json.loads(line)["changes"]) == 5, "a line larger than the bound is made all the same"


def test_watches_that_came_at_different_times_each_get_the_parts_they_lack() -> None:
    encoded = EncodedLines()
    early, late = (WatchWriter(encoded), WatchReader()), (WatchWriter(encoded), WatchReader())
    parts = parts_of(3)
    first = ChangeSet(1, (SegmentChanged(segment(0, parts)),))
    parts = parts.appended(part(3, 4))
    second = ChangeSet(2, (SegmentChanged(segment(0, parts)),))
    third = ChangeSet(3, (SegmentChanged(segment(0, parts.appended(part(4, 5)))),))
    assert [early[1].read(line) for line in early[0].lines(first)] == [first]
    for writer, reader in (early, late):
        for told in (second, third):
            assert [reader.read(line) for line in writer.lines(told)] == [told]


def test_a_change_set_that_breaks_off_is_not_a_change_set() -> None:
    lines = list(WatchWriter(EncodedLines()).lines(new_shards(1, 1_000)))
    (other,) = WatchWriter(EncodedLines()).lines(new_shards(2, 1))
    reader = WatchReader()
    assert reader.read(lines[0]) is None
    with pytest.raises(OutcomeUnknown, match="watch again"):
        reader.read(other)


@pytest.mark.fault("twenty-watchers-http-topic")
async def test_twenty_watchers_of_a_large_topic_cost_one_encoding(tmp_path: Path) -> None:
    async with running("http/memory", tmp_path) as world:
        await world.node()
        server = MetaServer(world.service)
        url = await server.start("127.0.0.1", 0)
        version = (await world.client.snapshot()).version

        async def watched(http: aiohttp.ClientSession) -> int:
            reader = WatchReader()
            async with http.get("/v1/watch", params={"after": str(version)}) as response:
                while True:
                    line = (await asyncio.wait_for(response.content.readuntil(b"\n"), 20)).strip()
                    if line and (told := reader.read(line)) is not None:
                        return len(told.changes)

        async with aiohttp.ClientSession(url, read_bufsize=1 << 20) as http:
            watching = [asyncio.ensure_future(watched(http)) for _ in range(20)]
            await eventually(lambda: server.stats.connections == 20)
            await world.topic("large", shard_count=2_000)
            assert await asyncio.gather(*watching) == [2_001] * 20
        assert server._encoded.records_encoded == 2_001
        await server.close()


@pytest.mark.fault("twenty-watchers-http-topic")
async def test_a_watcher_without_progress_is_ended_and_has_no_queue(tmp_path: Path) -> None:
    async with running("http/memory", tmp_path) as world:
        await world.node()
        server = MetaServer(world.service, limits=HttpLimits(request_timeout_s=0.2))
        url = await server.start("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1)
        writer.write(b"GET /v1/watch?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await eventually(lambda: server.stats.connections == 1)
        for number in range(10):
            await world.topic(f"t{number}", shard_count=4_000)
        await eventually(lambda: server.stats.closed_for_fault == 1 and server.stats.connections == 0)
        assert server._encoded.size_bytes <= server._encoded.max_bytes
        await server.close()

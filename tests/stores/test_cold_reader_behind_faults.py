"""Cold reads from S3 on bad days: slow, refusing, cutting, silent; the answer is right or it is an error (F42-F45)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects import ObjectStore, StoreSettings
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader
from support.cold_data import ColdShard, batches_from
from support.fault_proxy import (
    BlackHole,
    CutBody,
    Fault,
    FaultProxy,
    Latency,
    LostAnswer,
    Rule,
    ServerError,
    ShortBody,
)
from support.http_messages import Head
from support.s3_servers import S3Server
from support.waiting import eventually

Opener = Callable[..., ObjectStore]

QUICK = StoreSettings(attempt_timeout_ms=1_200, deadline_ms=9_000, attempts=5, backoff_ms=1, backoff_cap_ms=10)
LIMITS = ColdReadLimits(
    cache_bytes=4 << 20, window_min_bytes=64 << 10, window_max_bytes=1 << 20, block_bytes=64 << 10, bytes_per_s=None
)


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.real_s3)])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def proxy(server: S3Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.port) as running:
        yield running


@pytest.fixture
async def shard(server: S3Server, request: pytest.FixtureRequest, opener: Opener) -> ColdShard:
    """Three sealed segments and one that is still being uploaded, put without the proxy."""
    prefix = "cold/" + "".join(c if c.isalnum() else "-" for c in request.node.name)
    made = ColdShard(opener(server.url(prefix)))
    for epoch in range(4):
        state = RemoteState.PARTIAL if epoch == 3 else RemoteState.COMPLETE
        batches = batches_from(made.end_offset, 60, epoch=epoch, value_bytes=4_000)
        await made.add([batches[:40], batches[40:43], batches[43:]], state=state)
    return made


@pytest.fixture
async def reader(server: S3Server, proxy: FaultProxy, shard: ColdShard, opener: Opener) -> AsyncIterator[ColdReader]:
    prefix = shard.store.url.removeprefix(f"s3://{server.bucket}/")

    async def reload(key: SegmentKey) -> Segment | None:
        return next((segment for segment in shard.segments if segment.key == key), None)

    made = ColdReader(opener(server.through(proxy.port).url(prefix), QUICK), shard.names, LIMITS, reload)
    yield made
    await made.close()


async def scan(reader: ColdReader, shard: ColdShard, max_bytes: int = 50_000) -> None:
    """Read everything; each batch must be the next one, byte for byte."""
    found = offset = 0
    while offset < shard.end_offset:
        for piece in await reader.read(shard.segments, offset, max_bytes):
            for at, header in walk(piece, source="answer"):
                assert bytes(piece[at : at + header.size_bytes]) == shard.batches[found]
                found += 1
                offset = header.end_offset
    assert found == len(shard.batches)


async def test_a_scan_across_segments_comes_back_whole(reader: ColdReader, shard: ColdShard) -> None:
    await scan(reader, shard)
    assert reader.stats.fetch_failures == 0


@pytest.mark.parametrize(
    "fault",
    [ServerError(), CutBody(500), ShortBody(7), LostAnswer(), Latency(0.0, 0.02)],
    ids=lambda fault: type(fault).__name__,
)
async def test_a_scan_gets_over_a_fault_of_each_request(
    fault: Fault, reader: ColdReader, shard: ColdShard, proxy: FaultProxy
) -> None:
    seen: set[tuple[str, str]] = set()

    def is_first_time(head: Head) -> bool:
        request = (head.target, head.headers.get("range", ""))
        if request in seen:
            return False
        seen.add(request)
        return True

    rule = proxy.add(Rule(fault, methods={"GET"}, when=is_first_time))
    await scan(reader, shard)
    assert rule.hits == len(seen) > 40


@pytest.mark.fault("short-body-wrong-range")
@pytest.mark.parametrize("kind", [".manifest", ".chunk"])
async def test_a_body_that_stays_short_is_an_error_and_never_cached(
    kind: str, reader: ColdReader, shard: ColdShard, proxy: FaultProxy
) -> None:
    """Not reported as damaged data, which would stop a consumer: a network fault says nothing about stored data."""
    proxy.add(Rule(ShortBody(1), methods={"GET"}, target_contains=kind))
    with pytest.raises(Unavailable):
        await reader.read(shard.segments, 0, 1_000)
    proxy.clear()
    await scan(reader, shard)


@pytest.mark.fault("connection-silent-half-data")
async def test_a_black_hole_delays_one_block_and_no_other(
    reader: ColdReader, shard: ColdShard, proxy: FaultProxy
) -> None:
    """F42: the request that hangs runs into its deadline and is sent again."""
    await reader.read(shard.segments, 0, 1)
    rule = proxy.add(Rule(BlackHole(), methods={"GET"}, times=1))
    hung = asyncio.ensure_future(reader.read(shard.segments, 200, 1))
    await eventually(lambda: rule.hits == 1)
    await reader.read(shard.segments, 500, 1)
    assert not hung.done()
    assert await hung


@pytest.mark.fault("reader-gives-midway")
async def test_a_cancelled_reader_leaves_a_slow_fetch_to_the_others(
    reader: ColdReader, shard: ColdShard, proxy: FaultProxy
) -> None:
    """F43: a reader that goes away does not cancel a fetch that another reader waits for."""
    partial = shard.segments[3:]
    offset = partial[0].remote.parts[1].base_offset
    proxy.add(Rule(Latency(0.2), methods={"GET"}))
    first = asyncio.ensure_future(reader.read(partial, offset, 1))
    second = asyncio.ensure_future(reader.read(partial, offset, 1))
    await eventually(lambda: reader.stats.joined == 1)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert await second
    assert (reader.stats.fetches, proxy.seen.requests["GET"]) == (1, 1)


async def test_a_waiters_deadline_at_the_instant_of_completion_loses_nothing(
    reader: ColdReader, shard: ColdShard, proxy: FaultProxy
) -> None:
    """F47: whichever wins, the deadline or the answer, the next reader is served without another fetch."""
    partial = shard.segments[3:]
    offset = partial[0].remote.parts[1].base_offset
    proxy.add(Rule(Latency(0.02), methods={"GET"}))
    for wait_s in [0.0, 0.019, 0.021, 0.023, 0.025, 0.03]:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await reader.read(partial, offset, 1)
    assert await reader.read(partial, offset, 1)
    assert reader.stats.fetches == 1


async def test_a_store_that_is_away_is_asked_no_more_than_readers_need(
    reader: ColdReader, shard: ColdShard, proxy: FaultProxy
) -> None:
    await scan(reader, shard)
    asked = proxy.seen.requests["GET"]
    rule = proxy.add(Rule(ServerError(), methods={"GET"}))
    fresh = ColdReader(reader._store, shard.names, LIMITS, reader._reload)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await fresh.read(shard.segments, 0, 1 << 20)
    assert proxy.seen.requests["GET"] - asked == rule.hits == 3 * QUICK.attempts
    proxy.clear()
    await scan(fresh, shard)
    await fresh.close()


async def test_a_store_that_comes_back_is_read_again(reader: ColdReader, shard: ColdShard, proxy: FaultProxy) -> None:
    await proxy.refuse()
    with pytest.raises(Unavailable):
        await reader.read(shard.segments, 0, 1_000)
    await proxy.accept()
    await scan(reader, shard)

"""Commands about segments that are asked for at once share requests, and nothing else: no errors, and no fate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest

from stratalog.meta_api.attempts import Repeat
from stratalog.meta_api.gathered import MOST_TOGETHER, GatheredCommands
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.meta_api.wire import SEGMENT_COMMANDS, SEGMENT_COMMANDS_PATH, SegmentCommands
from stratalog.model.commands.table_commands import ProposeIsr, RollSegment
from stratalog.model.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_meta.api.routes import MAX_COMMANDS_TOGETHER
from support.fault_proxy import BlackHole, FaultProxy, Latency, LostAnswer, Rule
from support.meta_worlds import MetaWorld, running
from support.waiting import eventually

from .test_meta_http_client import HASTY, STEADY

TOGETHER = SEGMENT_COMMANDS_PATH


@asynccontextmanager
async def shards_behind_faults(
    tmp_path: Path, count: int
) -> AsyncIterator[tuple[MetaWorld, list[Segment], HttpMetaClient, FaultProxy]]:
    async with running("http/memory", tmp_path) as world:
        assert world.url is not None
        await world.node()
        topic = await world.topic(shard_count=count)
        assert topic.shard_count == count
        segments = [
            shard.segments[-1] for shard in sorted((await world.service.snapshot()).shards, key=lambda one: one.key)
        ]
        async with FaultProxy(int(world.url.rpartition(":")[2])) as proxy:
            client = HttpMetaClient(proxy.endpoint, STEADY)
            yield world, segments, client, proxy
            await client.close()


async def test_what_is_asked_for_at_once_takes_few_requests_and_each_has_its_own_answer(tmp_path: Path) -> None:
    async with shards_behind_faults(tmp_path, 300) as (_, segments, client, proxy):
        seen = proxy.add(Rule(Latency(0), target_contains="/v1/"))
        rolled = await asyncio.gather(
            *(client.perform(RollSegment(one.key, 10 + at)) for at, one in enumerate(segments))
        )
        assert [(one.key.shard, one.key.base_offset) for one in rolled] == [(at, 10 + at) for at in range(300)]
        assert seen.hits <= -(-300 // MOST_TOGETHER) + 2


async def test_who_is_alone_asks_as_ever(tmp_path: Path) -> None:
    async with shards_behind_faults(tmp_path, 1) as (_, (segment,), client, proxy):
        seen = proxy.add(Rule(Latency(0), target_contains="/v1/commands/roll-segment"))
        assert (await client.perform(RollSegment(segment.key, 5))).base_offset == 5
        assert seen.hits == 1


async def test_one_that_is_refused_keeps_no_other_from_being_done(tmp_path: Path) -> None:
    async with shards_behind_faults(tmp_path, 3) as (_, segments, client, _):
        gone = SegmentKey(segments[0].key.topic_id, 99, 0, 0)
        first, missing, stale, last = await asyncio.gather(
            client.perform(ProposeIsr(segments[0].key, (1,), segments[0].isr_version)),
            client.perform(ProposeIsr(gone, (1,), 0)),
            client.perform(ProposeIsr(segments[1].key, (1,), 99)),
            client.perform(ProposeIsr(segments[2].key, (1,), segments[2].isr_version)),
            return_exceptions=True,
        )
        assert isinstance(missing, NotFound) and isinstance(stale, Conflict)
        assert isinstance(first, Segment) and isinstance(last, Segment)


async def test_of_a_request_whose_answer_was_lost_each_change_is_reported_by_what_it_is(tmp_path: Path) -> None:
    """An idempotent command is repeated; one that must not be repeated is sent once, and its outcome is unknown."""
    async with shards_behind_faults(tmp_path, 40) as (world, segments, client, proxy):
        rolls, proposals = segments[:20], segments[20:]
        rule = proxy.add(Rule(LostAnswer(), target_contains=TOGETHER, times=2))
        answers = await asyncio.gather(
            *(client.perform(RollSegment(one.key, 7)) for one in rolls),
            *(client.perform(ProposeIsr(one.key, (1,), one.isr_version)) for one in proposals),
            return_exceptions=True,
        )
        assert rule.hits == 2, "one request of each kind"
        assert all(isinstance(one, Segment) and one.key.base_offset == 7 for one in answers[:20])
        assert all(isinstance(one, OutcomeUnknown) for one in answers[20:])
        shards = (await world.service.snapshot()).shards
        assert sorted(len(shard.segments) for shard in shards) == [1] * 20 + [2] * 20, "each was rolled once"


async def test_who_gave_up_while_it_stood_in_line_was_not_asked_for() -> None:
    asked: list[str] = []
    go_on = asyncio.Event()

    async def send(path: str, body: bytes, _: Repeat) -> bytes:
        asked.append(path)
        await go_on.wait()
        raise Unavailable("not now")

    line = GatheredCommands(Repeat.NEVER, send)
    key = SegmentKey(UUID(int=1), 0, 0, 0)
    held = []
    for version in range(2):
        held.append(asyncio.ensure_future(line.attempt(ProposeIsr(key, (1,), version))))
        await eventually(lambda: len(asked) == len(held))
    left = asyncio.ensure_future(line.attempt(ProposeIsr(key, (1,), 2)))
    await asyncio.sleep(0)
    left.cancel()
    with suppress(asyncio.CancelledError):
        await left
    go_on.set()
    for one in held:
        with pytest.raises(Unavailable):
            await one
    assert len(asked) == 2
    await line.close()


async def test_answers_that_are_not_as_many_as_the_commands_say_nothing_of_any() -> None:
    async def send(path: str, body: bytes, _: Repeat) -> bytes:
        assert len(SEGMENT_COMMANDS.read(body).items) == 3
        return b'[{"problem":{"title":"Conflict","status":409,"detail":"x"}}]'

    line = GatheredCommands(Repeat.IDEMPOTENT, send)
    key = SegmentKey(UUID(int=1), 0, 0, 0)
    asked = [line.attempt(RollSegment(key, offset)) for offset in range(3)]
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(answer, OutcomeUnknown)
    await line.close()


async def test_a_client_that_is_closed_leaves_no_request_waiting(tmp_path: Path) -> None:
    async with shards_behind_faults(tmp_path, 300) as (_, segments, client, proxy):
        proxy.add(Rule(BlackHole()))
        asked = [asyncio.ensure_future(client.perform(RollSegment(one.key, 3))) for one in segments]
        await asyncio.sleep(0)
        await client.close()
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, OutcomeUnknown | Unavailable)


async def test_more_than_the_service_takes_at_once_is_refused_with_nothing_done(tmp_path: Path) -> None:
    async with shards_behind_faults(tmp_path, 1) as (world, (segment,), _, _):
        body = SEGMENT_COMMANDS.write(SegmentCommands((RollSegment(segment.key, 5),) * (MAX_COMMANDS_TOGETHER + 1)))
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(world.url, headers=headers) as http:
            async with http.post(TOGETHER, data=body) as response:
                assert response.status == 400 and "at most 1000" in (await response.json())["detail"]
            async with http.post(TOGETHER, data=b'{"items":[{"delete_topic":{}}]}') as response:
                assert response.status == 400
        (shard,) = (await world.service.snapshot()).shards
        assert [one.key for one in shard.segments] == [segment.key]


async def test_one_that_hangs_is_reported_as_unknown_to_all_that_were_in_it(tmp_path: Path) -> None:
    async with shards_behind_faults(tmp_path, 4) as (_, segments, _, proxy):
        client = HttpMetaClient(proxy.endpoint, HASTY)
        rule = proxy.add(Rule(BlackHole(), target_contains=TOGETHER))
        asked = [client.perform(ProposeIsr(one.key, (1,), one.isr_version)) for one in segments]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, OutcomeUnknown)
        assert rule.hits == 1
        await client.close()


@pytest.mark.fault("node-requests-commands-end")
async def test_who_asks_again_the_moment_that_both_requests_end_is_sent() -> None:
    """No other request follows for long: a command that is not sent now is never done."""
    sent: list[asyncio.Future[bytes]] = []

    async def send(path: str, body: bytes, _: Repeat) -> bytes:
        sent.append(asyncio.get_running_loop().create_future())
        return await sent[-1]

    line = GatheredCommands(Repeat.IDEMPOTENT, send)

    async def ask_twice(shard: int) -> None:
        for offset in range(2):
            with suppress(Unavailable):
                await line.attempt(RollSegment(SegmentKey(UUID(int=1), shard, 0, 0), offset))

    async def ask_once() -> None:
        with suppress(Unavailable):
            await line.attempt(RollSegment(SegmentKey(UUID(int=1), 2, 0, 0), 0))

    asked = [asyncio.ensure_future(ask_twice(0))]
    await eventually(lambda: len(sent) == 1)
    asked.append(asyncio.ensure_future(ask_once()))
    await eventually(lambda: len(sent) == 2)
    for answer in sent[:2]:  # in one turn of the loop
        answer.set_exception(Unavailable("not now"))
    await eventually(lambda: len(sent) == 3)
    sent[2].set_exception(Unavailable("not now"))
    await asyncio.gather(*asked)
    await line.close()


@pytest.mark.fault("service-refuses-node-request")
async def test_what_a_service_refuses_to_read_as_a_whole_is_asked_for_one_by_one() -> None:
    """One command that it cannot read must not be told to the others: a roll that is refused ends a shard's lead."""
    asked: list[str] = []

    async def send(path: str, body: bytes, _: Repeat) -> bytes:
        asked.append(path)
        if path == TOGETHER:
            raise InvalidRequest("nobody knows that here")
        raise Unavailable("not now") if b'"end_offset":1' not in body else InvalidRequest("no such end")

    line = GatheredCommands(Repeat.NEVER, send)
    key = SegmentKey(UUID(int=1), 0, 0, 0)
    commands = [line.attempt(RollSegment(key, offset)) for offset in range(3)]
    answers = await asyncio.gather(*commands, return_exceptions=True)
    assert [type(one) for one in answers] == [Unavailable, InvalidRequest, Unavailable]
    assert asked == [TOGETHER] + ["/v1/commands/roll-segment"] * 3
    await line.close()


async def test_a_client_that_is_closed_while_it_asks_one_by_one_leaves_no_request_waiting() -> None:
    asked: list[str] = []

    async def send(path: str, body: bytes, _: Repeat) -> bytes:
        asked.append(path)
        if path == TOGETHER:
            raise InvalidRequest("nobody knows that here")
        return await asyncio.get_running_loop().create_future()

    line = GatheredCommands(Repeat.IDEMPOTENT, send)
    key = SegmentKey(UUID(int=1), 0, 0, 0)
    commands = [asyncio.ensure_future(line.attempt(RollSegment(key, offset))) for offset in range(3)]
    await eventually(lambda: len(asked) == 2)
    await line.close()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*commands, return_exceptions=True)
    assert [type(one) for one in answers] == [OutcomeUnknown] * 3


@pytest.mark.fault("node-requests-commands-end")
async def test_a_fault_of_one_request_leaves_no_request_waiting() -> None:
    asked: list[str] = []

    async def send(path: str, body: bytes, _: Repeat) -> bytes:
        asked.append(path)
        if len(asked) <= 2:
            raise ValueError("nobody expected that")
        raise Unavailable("not now")

    line = GatheredCommands(Repeat.IDEMPOTENT, send)
    key = SegmentKey(UUID(int=1), 0, 0, 0)
    commands = [line.attempt(RollSegment(key, offset)) for offset in range(3 * MOST_TOGETHER)]
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*commands, return_exceptions=True)
    assert [type(one) for one in answers] == [OutcomeUnknown] * (2 * MOST_TOGETHER) + [Unavailable] * MOST_TOGETHER
    await line.close()
